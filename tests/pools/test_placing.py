"""One reservation over several data nodes: it follows the requests, and no node promises more than it has."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pool_resource import make_policy

import bursar.pools.placing as placing_module
from bursar.errors import NoAnswerError, PolicyError, Refused
from bursar.policy import PoolPolicy, PoolTenant, parse
from bursar.policy.values import POOL_INTERVALS, Table
from bursar.pools.layout import Names, pack, pack_report
from bursar.pools.placing import Placing
from bursar.pools.resource import open_resource
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, Read, World
from virtual_time import run_in_virtual_time

INTERVAL_NS = 100 * MILLISECOND_NS
NODES = {"p.a": 1000, "p.b": 1000, "p.c": 500}


class Reports:
    """Words as nodes' monitors and engines leave them."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.words: dict[str, int] = {}

    def tell(self, node: str, period: int, tenant: str, spent: int, *, waiting: bool) -> None:
        names = Names(node)
        self.words[names.ceiling] = pack(period, 0)
        self.words[names.report(tenant, period)] = pack_report(period, 0, spent, waiting)

    def look(self, now: int) -> None:
        self.placing.receive(now, [self.words.get(each.word, 0) for each in self.placing.operations()])


def make_placing(**reservations: int) -> Placing:
    return Placing(NODES, reservations, interval_ns=INTERVAL_NS, period_ns=POOL_INTERVALS * INTERVAL_NS)


def run(reports: Reports, begins: int, intervals: int, use: dict[tuple[str, str], int]) -> None:
    """So many intervals in which each tenant spends so much at a node, and waits for more."""
    for period in range(begins, begins + intervals):
        for node in NODES:
            reports.words[Names(node).ceiling] = pack(period, 0)
        for (node, tenant), spent in use.items():
            reports.tell(node, period, tenant, spent, waiting=True)
        reports.look(period * INTERVAL_NS)


def test_a_reservation_is_where_its_requests_wait_and_follows_them() -> None:
    placing = make_placing(acme=9000, globex=4000)
    reports = Reports(placing)
    run(reports, 1, 5, {("p.a", "acme"): 900, ("p.b", "globex"): 400})
    placed = placing.place()
    assert placed["p.a"]["acme"] == 900 and placed["p.b"]["globex"] == 400
    run(reports, 6, 3, {("p.b", "acme"): 100, ("p.c", "globex"): 400})
    placed = placing.place()
    assert placed["p.b"]["acme"] == 1000 and placed["p.c"]["globex"] == 400, "what it lost is made up for"
    assert placing.due[0] > 1500


def test_who_waits_nowhere_is_owed_nothing_and_has_but_a_start_everywhere() -> None:
    placing = make_placing(acme=9000)
    for look in range(1, 5):
        Reports(placing).look(look * INTERVAL_NS)
    placed = {node: tokens["acme"] for node, tokens in placing.place().items()}
    assert placing.due[0] == 0
    assert all(placed.values()) and sum(placed.values()) <= 900 // placing_module.STARTER_PART


def test_of_a_node_that_cannot_do_all_each_tenant_has_its_part() -> None:
    placing = make_placing(acme=9000, globex=9000)
    reports = Reports(placing)
    run(reports, 1, 4, {("p.c", "acme"): 250, ("p.c", "globex"): 250})
    placed = placing.place()["p.c"]
    assert placed["acme"] == placed["globex"] == 250


LOOKS = st.lists(
    st.tuples(
        st.sampled_from(list(NODES)),
        st.integers(1, 6),
        st.sampled_from(["acme", "globex", "initech"]),
        st.integers(0, 3000),
        st.booleans(),
        st.integers(0, 300),
    ),
    max_size=30,
)


def check_any_words(looks: list[tuple[str, int, str, int, bool, int]]) -> None:
    """Whatever the words say: no node is promised more than its capacity, no tenant more than its
    reservation of the interval and what it is behind with, at most a period's."""
    placing = make_placing(acme=9000, globex=9000, initech=6500)
    reports, now = Reports(placing), 0
    for node, period, tenant, spent, waiting, passed_ms in looks:
        now += passed_ms * MILLISECOND_NS
        reports.tell(node, period, tenant, spent, waiting=waiting)
        reports.look(now)
        placed = placing.place()
        for each, tokens in placed.items():
            assert min(tokens.values()) >= 0 and sum(tokens.values()) <= NODES[each], each
        for row, (name, reserved) in enumerate((("acme", 9000), ("globex", 9000), ("initech", 6500))):
            due = max(0.0, float(placing.due[row]))
            assert due <= reserved
            assert sum(tokens[name] for tokens in placed.values()) <= reserved // POOL_INTERVALS + due


@settings(max_examples=60, deadline=None)
@given(LOOKS)
def test_no_node_promises_more_than_it_has_whatever_the_words_say(
    looks: list[tuple[str, int, str, int, bool, int]],
) -> None:
    check_any_words(looks)


def test_a_node_that_promises_what_others_could_do_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake: what is wanted at a node is placed there, whether it can do it or not."""
    import numpy as np

    monkeypatch.setattr(placing_module, "_fit", lambda want, capacity, due: np.minimum(want, due[:, None]))
    looks = [("p.c", 1, "acme", 200, True, 20), ("p.c", 1, "globex", 200, True, 20)]
    with pytest.raises(AssertionError, match=r"p\.c"):
        check_any_words(looks)


# -- through the door


def node_policy(node: str) -> PoolPolicy:
    nodes = Table({f"records.{each}": Rate.of(10_000) for each in "ab"})
    return msgspec.structs.replace(
        make_policy(tenants={"acme": PoolTenant(reservation=Rate.of(8000))}, client_capacity=None),
        name=f"records.{node}",
        nodes=nodes,
        period_ns=INTERVAL_NS,
    )


def test_a_tenant_that_turns_to_another_node_has_its_reservation_there() -> None:
    async def body(world: World) -> None:
        pools = {each: open_resource(world, f"records.{each}", node_policy(each)) for each in "ab"}
        for pool in pools.values():
            await pool.start()
        for each in "aba":
            got, until = 0, world.clock.now() + SECOND_NS
            while world.clock.now() < until:
                try:
                    got += (await pools[each].acquire("acme", 50, wait=0.2)).amount
                except (Refused, NoAnswerError):
                    await world.clock.sleep(MILLISECOND_NS)
            assert got >= 0.95 * 8000, f"{got} at {each}"
        sentences = (await pools["a"].explain("acme")).sentences
        assert any("over 2 nodes" in sentence for sentence in sentences)
        for pool in pools.values():
            await pool.stop()

    run_in_virtual_time(body)


def test_what_the_nodes_together_cannot_do_is_cut_and_named() -> None:
    async def body(world: World) -> None:
        policy = node_policy("a")
        greedy = {"acme": PoolTenant(reservation=Rate.of(20_001))}
        records = open_resource(world, "records.a", msgspec.structs.replace(policy, tenants=greedy))
        (problem,) = (await records.statistics()).part.problems
        assert "the reservation of acme does not fit: it is short of 1 a period" in problem

    run_in_virtual_time(body)


TEXT = """
[resource.records]
kind = "pool"
{}
[resource.records.tenant]
acme = {{ reservation = "150k/s" }}
"""


def test_each_node_is_a_resource_of_its_own() -> None:
    policy = parse(TEXT.format('nodes = { a = "100k/s", b = "80k/s" }\nperiod = "2s"'))
    assert sorted(policy.resources) == ["records.a", "records.b"]
    pool = policy.resource("records.b")
    assert isinstance(pool, PoolPolicy)
    assert (pool.capacity, pool.period_ns) == (Rate.of(80_000), SECOND_NS // 5)
    assert dict(pool.nodes) == {"records.a": Rate.of(100_000), "records.b": Rate.of(80_000)}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('nodes = { a = "1k/s" }\ncapacity = "1k/s"', "capacity of its own"),
        ('nodes = { a = "1k/s" }\nperiod = "500ms"', "ten times in a period"),
        ('nodes = { a = "1k/s" }\ntenant.x.limit = "1/s"', "no limit holds over all"),
        ('nodes = { a = "1k/s" }\n[resource."records.a"]\nkind = "pool"', "of which there is one"),
    ],
)
def test_what_does_not_go_with_nodes_is_said(line: str, words: str) -> None:
    text = f'[resource.records]\nkind = "pool"\n{line}\n'
    with pytest.raises(PolicyError, match=words):
        parse(text)


def test_what_is_read_is_every_word_of_every_node() -> None:
    names = [each.word for each in make_placing(acme=1).operations() if isinstance(each, Read)]
    assert names[:3] == ["pool/p.a/ceiling", "pool/p.a/report/acme/0", "pool/p.a/report/acme/1"]
    assert len(names) == 9
