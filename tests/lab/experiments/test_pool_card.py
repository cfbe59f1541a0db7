"""The card that stands in for a data node's own passes what it should, and no more."""

from __future__ import annotations

import itertools
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from bursar.world import SECOND_NS
from bursar_lab.experiments.pools.card import LAG_NS, ClientCard, NodeCard
from bursar_lab.experiments.pools.card_node import OWN, open_node
from bursar_lab.experiments.pools.reader import WINDOW

SENDERS, SENDS, AT_ONCE, CARD_RATE = 3, 20_000, 7, 1_000_000


def send_many(path: Path, together: Barrier, results: multiprocessing.Queue[list[int]]) -> None:
    card = NodeCard(path)
    together.wait(60)
    results.put([card.send(0, AT_ONCE) for _ in range(SENDS)])
    card.close()


def test_requests_of_several_processes_pass_one_after_another(tmp_path: Path) -> None:
    card = NodeCard(tmp_path / "card")
    card.set_rate(CARD_RATE)
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[list[int]] = context.Queue()
    together = context.Barrier(SENDERS)
    work = (tmp_path / "card", together, results)
    senders = [context.Process(target=send_many, args=work) for _ in range(SENDERS)]
    for sender in senders:
        sender.start()
    passed = sorted(itertools.chain.from_iterable(results.get(timeout=60) for _ in senders))
    for sender in senders:
        sender.join(60)
    took_ns = AT_ONCE * SECOND_NS // CARD_RATE
    assert passed == [(k + 1) * took_ns for k in range(SENDERS * SENDS)]
    card.close()


def test_an_idle_card_saves_nothing_up(tmp_path: Path) -> None:
    card = NodeCard(tmp_path / "card")
    card.set_rate(1000)
    assert card.send(0, 10) == 10_000_000
    assert card.send(SECOND_NS, 10) == SECOND_NS + 10_000_000
    card.close()


def test_congestion_slows_what_is_sent_from_then_on(tmp_path: Path) -> None:
    card = NodeCard(tmp_path / "card")
    card.set_rate(1000)
    card.send(0, 10)
    card.set_rate(500)
    assert card.send(0, 10) == 30_000_000
    card.close()


def test_a_client_makes_up_for_a_little_lateness_only() -> None:
    card = ClientCard(1000)
    card.send(SECOND_NS, 1)
    assert SECOND_NS - 4_000_000 < card.free_at < SECOND_NS
    card.send(SECOND_NS, 10)
    assert card.free_at == SECOND_NS + 7_000_000


def test_a_client_never_does_more_than_its_own_card_passes() -> None:
    with open_node() as node:
        run = node.run_bare([None], 2.5)
    most = run.done.max()
    assert 0 < most <= OWN * (1 + LAG_NS / SECOND_NS) + WINDOW
