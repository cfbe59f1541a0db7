"""The quota experiments: workloads, the counted network, the paper's message bound."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from bursar.errors import FormatError
from bursar_lab.experiments.quotas.bound import FANOUT, NODES, count_messages
from bursar_lab.experiments.quotas.grid import Grid, tree_distance, tree_parents
from bursar_lab.experiments.quotas.runs import ALGORITHMS, Algorithm, make_loopback, make_trace, make_wan, run
from bursar_lab.experiments.quotas.traces import make_world_cup, make_zipf, read_world_cup

LOOPBACK = make_loopback(100_000)


def test_one_reallocation_takes_between_3m_and_3n_messages() -> None:
    """Section IV-B3, of the printed algorithm; who asks saves a message, its request is its answer."""
    least, most = count_messages()
    assert 3 * FANOUT - 1 <= least <= most <= 3 * NODES


def test_costs_are_steps_in_the_tree() -> None:
    """Section V-A: a neighbour costs one, a grandchild two."""
    parents = tree_parents(31)
    assert tree_distance(parents, 0, 3) == 1
    assert tree_distance(parents, 0, 6) == 2
    assert tree_distance(parents, 6, 7) == 2
    assert tree_distance(parents, 6, 11) == 4


def test_the_zipf_trace_is_skewed_and_the_world_cup_trace_is_even_with_heavy_tails() -> None:
    zipf = make_zipf(30, 60_000, seed=1)
    counts = sorted((len(times) for times in zipf.times), reverse=True)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.2)
    cup = make_world_cup(60_000, seed=1)
    assert cup.nodes == 30
    assert max(map(len, cup.times)) < 1.3 * min(map(len, cup.times))
    sizes = np.sort(np.concatenate(cup.sizes))
    assert sizes[-len(sizes) // 10 :].sum() > 0.5 * sizes.sum(), "a tenth of the requests has most bytes"
    assert all(np.all(np.diff(times) >= 0) for times in cup.times)


def test_the_world_cup_logs_are_read(tmp_path: Path) -> None:
    record = struct.Struct(">IIIIBBBB")
    rows = [(100, 1, 1, 500, 0, 2, 1, 65), (100, 2, 1, 700, 0, 2, 1, 33), (102, 3, 1, 2**32 - 1, 0, 2, 1, 33)]
    rows.append((103, 3, 1, 0, 0, 2, 1, 65))
    path = tmp_path / "wc_day1_1"
    path.write_bytes(b"".join(record.pack(*row) for row in rows))
    trace = read_world_cup(path)
    assert [list(sizes) for sizes in trace.sizes] == [[700], [500, 1]], "unknown sizes are left out"
    assert [list(times) for times in trace.times] == [[500_000_000], [0, 3_000_000_000]]
    assert read_world_cup(path, requests_max=1).requests == 1
    path.write_bytes(b"x" * 30)
    with pytest.raises(FormatError, match="not records of 20"):
        read_world_cup(path)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_every_algorithm_uses_the_quota_up_and_no_unit_is_lost(algorithm: Algorithm) -> None:
    trace = make_trace("zipf", 12, seed=3, each=200)
    quota = 12 * 150 * trace.mean
    rules = LOOPBACK.adjust(algorithm.rules)
    grid = Grid(trace, quota, rules, LOOPBACK.latency, seed=3, mesh=algorithm.mesh, book_class=algorithm.book)
    outcome = grid.run(1 - trace.mean / quota)
    flying = sum(book.ledger.account("quota").in_outbox() for book in grid.books)
    assert outcome.spent <= quota
    assert outcome.spent + grid.unspent() <= quota <= outcome.spent + grid.unspent() + flying
    assert quota - outcome.spent <= trace.mean


def test_bursar_talks_less_than_the_printed_form_and_asking_everybody() -> None:
    """A tenth of the size of `bursar experiment quotas-cost`."""
    trace = make_trace("zipf", 20, seed=1, each=1_000)
    costs = {algorithm.name: run(algorithm, trace, LOOPBACK, 1).outcome.cost for algorithm in ALGORITHMS}
    assert costs["bursar"] < 0.6 * costs["sequential"]
    assert costs["bursar"] < 0.4 * costs["paper"]


def test_parents_are_near_on_a_wide_network() -> None:
    wan = make_wan(20_000)
    parents = wan.parents(30)
    far = [node for node, parent in enumerate(parents) if parent is not None and (node - parent) % 5]
    assert len(far) == 4, "only the first node of each other region has a parent elsewhere"
