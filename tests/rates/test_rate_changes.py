"""Every key of a rate's policy that changes while it runs, and servers that come and go: in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_rate_tenants import skip_period
from virtual import Callers, open_rate, read, run

from bursar.errors import Refused, Unknown, UsageError
from bursar.fleet.following import FleetView
from bursar.fleet.layout import HEAD, NodeRecord
from bursar.policy.live import LIVE, WHY_NOT
from bursar.policy.values import RatePolicy
from bursar.rates.resource import RateDecider
from bursar.world import MILLISECOND_NS, SECOND_NS, World

POLICY = """
[resource.api]
kind = "rate"
interval = "{interval}"
pacing = {pacing}
drift_ppm = {drift}
servers = {{ {servers} }}
[resource.api.tenant]
acme = {{ limit = "{limit}/s", burst = 5 }}
"""
FIRST = {"interval": "100ms", "pacing": "false", "drift": 100, "servers": 'a = "1k/s"', "limit": 200}


def make_policy(**changes: object) -> str:
    return POLICY.format(**{**FIRST, **changes})


def test_every_key_changes_live_or_says_why_it_does_not() -> None:
    fields = set(RatePolicy.__struct_fields__) - {"name"}
    impossible = {field for kind, field in WHY_NOT if kind == "rate"}
    assert fields == set(LIVE["rate"]) | impossible
    assert impossible == {"period_ns", "zones"}


def test_a_limit_holds_from_the_next_period_on() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy())
        acme = Callers(world, door, "acme")
        acme.start(20)
        await skip_period(world, rate, 2)
        await world.clock.sleep(300 * MILLISECOND_NS)
        changed_in = rate.book.state.period
        await door.reconfigure(read(make_policy(limit=350)))
        await skip_period(world, rate, 3)
        assert acme.periods[changed_in] == 200
        assert acme.periods[changed_in + 1] == 350

    run(body)


def test_pacing_and_interval_change_at_once() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy())
        acme = Callers(world, door, "acme")
        acme.start(20)
        await skip_period(world, rate, 2)
        assert acme.busiest(SECOND_NS // 10) >= 60, "as fast as the server can"
        await door.reconfigure(read(make_policy(pacing="true", interval="auto", drift=200)))
        assert rate.book.interval_ns == SECOND_NS // 5
        await skip_period(world, rate, 1)
        acme.times.clear()
        await skip_period(world, rate, 3)
        assert acme.busiest(SECOND_NS // 10) <= 30
        assert set(acme.full_periods()[-2:]) <= {199, 200}
        await door.reconfigure(read(make_policy(pacing="false")))
        await skip_period(world, rate, 2)
        assert acme.busiest(SECOND_NS // 10) >= 60

    run(body, seconds=20)


def test_servers_are_added_and_removed_and_change_their_capacity() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy(servers='a = "100/s"', limit=900))
        acme = Callers(world, door, "acme")
        acme.start(40)
        await skip_period(world, rate, 3)
        assert acme.full_periods()[-1] <= 110
        await door.reconfigure(read(make_policy(servers='a = "100/s", b = "300/s"', limit=900)))
        joined_in = rate.book.state.period
        await skip_period(world, rate, 2)
        assert list(rate.servers) == ["a", "b"]
        assert 390 <= acme.periods[joined_in + 1] <= 440, "b serves from the next period on"
        await door.reconfigure(read(make_policy(servers='b = "500/s"', limit=900)))
        await skip_period(world, rate, 2)
        assert list(rate.servers) == ["b"]
        assert 490 <= acme.full_periods()[-1] <= 540
        await door.reconfigure(read(make_policy(servers='a = "100/s", b = "500/s"', limit=900)))
        await skip_period(world, rate, 3)
        assert 590 <= acme.full_periods()[-1] <= 650, "one that comes back is another life"

    run(body, seconds=30)


def test_whoever_waits_for_a_server_that_goes_is_served_by_another() -> None:
    async def body(world: World) -> None:
        door, _ = await open_rate(world, make_policy(servers='a = "10/s", b = "100/s"'))
        grants = [door.acquire("acme", wait=3) for _ in range(30)]
        waiting = [world.spawn(_hold(grant), "waits") for grant in grants]
        await world.clock.sleep(20 * MILLISECOND_NS)
        await door.reconfigure(read(make_policy(servers='b = "100/s"')))
        await world.clock.sleep(SECOND_NS)
        assert all(task.done() for task in waiting)

    run(body)


async def _hold(acquisition) -> None:  # type: ignore[no-untyped-def]
    await acquisition


def test_the_period_does_not_change() -> None:
    async def body(world: World) -> None:
        door, _ = await open_rate(world, make_policy())
        text = make_policy().replace('interval = "100ms"', 'period = "2s"')
        with pytest.raises(UsageError, match="period"):
            await door.reconfigure(read(text))

    run(body)


def test_zones_do_not_change_and_the_operator_is_told_why() -> None:
    async def body(world: World) -> None:
        door, _ = await open_rate(world, make_policy())
        with pytest.raises(UsageError, match="each zone has its own part of every limit"):
            await door.reconfigure(read(make_policy(servers='a = { capacity = "1k/s", zone = "eu" }')))

    run(body)


# -- nodes -----------------------------------------------------------------------------------------


class Passing(Callers):
    """Callers that give up when their node goes."""

    async def _call(self, amount: int) -> None:
        try:
            await super()._call(amount)
        except Unknown:
            return


class Nodes:
    """The fleet as every node of a run knows it, without a store to learn it from."""

    def __init__(self) -> None:
        self.up: dict[str, NodeRecord] = {}
        self.views: dict[str, FleetView] = {}

    async def open(self, world: World, text: str) -> tuple[World, object, RateDecider]:
        view = self.views[world.name] = FleetView()
        world = replace(world, fleet=view)
        self.up[world.name] = NodeRecord(name=world.name, incarnation=world.incarnation)
        self.tell()
        door, rate = await open_rate(world, text)
        return world, door, rate

    def leave(self, name: str) -> None:
        del self.up[name]
        self.tell()

    def tell(self) -> None:
        for view in self.views.values():
            view.see(dict(self.up), frozenset(self.up))


def test_a_node_that_joins_serves_within_two_periods_and_one_that_leaves_hands_back() -> None:
    nodes, periods, ends = Nodes(), {}, []
    text = make_policy(servers='"*" = "200/s"', limit=600)

    async def body(world: World) -> None:
        if world.name == "b":
            await world.clock.sleep(3 * SECOND_NS)
        world, door, rate = await nodes.open(world, text)
        assert list(rate.servers) == [world.name]
        joined_in = rate.servers[world.name].book.period
        acme = Passing(world, door, "acme")
        acme.start(30)
        periods[world.name] = acme.periods
        if world.name == "b":
            await skip_period(world, rate, 2)
            assert acme.periods[joined_in + 1] >= 190, "within two periods"
            await world.clock.sleep(300 * MILLISECOND_NS)
            ends.append(rate.servers["b"].book.period)
            nodes.leave("b")
            await door.stop()
            return
        await world.clock.sleep(9 * SECOND_NS)
        left_in = ends[0]
        for period in range(2, max(acme.periods)):
            assert sum(each[period] for each in periods.values()) <= 600
        assert periods["b"][left_in] < 150, "it went within the period"
        assert acme.periods[left_in] >= 190

    run(body, "b", seconds=20)


def test_another_node_leads_at_once_when_the_leader_stops() -> None:
    nodes, deciders, seen = Nodes(), {}, []
    text = make_policy(servers='"*" = "200/s"', limit=300)

    async def body(world: World) -> None:
        world, door, rate = await nodes.open(world, text)
        deciders[world.name] = rate
        acme = Passing(world, door, "acme")
        acme.start(30)
        await world.clock.sleep(2 * SECOND_NS)
        leads = rate.book.leading
        if leads:
            await door.stop()
            seen.append(rate.servers[world.name].book.period)
            return
        await world.clock.sleep(SECOND_NS // 10)
        assert rate.book.leading, "within an interval, not when the session ends"
        await world.clock.sleep(3 * SECOND_NS)
        # One that the old leader opened and gave nobody tokens of is passed over, at once.
        after = {period: told for period, told in acme.periods.items() if period > seen[0]}
        assert [told >= 190 for _, told in sorted(after.items())[:2]] == [True, True], after
        assert sum(after.values()) >= 3 * 190, "no time was lost"

    run(body, "b", seconds=20)


def test_a_node_that_cannot_follow_opens_no_period() -> None:
    async def body(world: World) -> None:
        view = FleetView()
        world = replace(world, fleet=view)
        await world.store.ensure("/fleet")
        await world.store.create(HEAD, b"1")
        view.head = 0
        view.see({world.name: NodeRecord(name=world.name, incarnation=1)}, frozenset())
        door, rate = await open_rate(world, make_policy())
        await skip_period(world, rate, 2)
        await world.store.set(HEAD, b"2")  # terms that this node does not know
        await world.clock.sleep(2 * SECOND_NS)
        assert not rate.book.leading
        opened = rate.book.state.period
        await world.clock.sleep(2 * SECOND_NS)
        assert (rate.book.leading, rate.book.state.period) == (False, opened)
        with pytest.raises(Refused):
            while True:
                await door.acquire("acme", 200)
        view.head = 1  # it has followed
        await skip_period(world, rate, 2)
        assert rate.book.leading

    run(body, seconds=20)


def test_every_node_says_that_a_reservation_cannot_be_met() -> None:
    nodes = Nodes()
    text = make_policy(servers='"*" = "100/s"', limit=300).replace(
        "acme = {", 'acme = { reservation = "250/s",'
    )

    async def body(world: World) -> None:
        world, door, rate = await nodes.open(world, text)
        Passing(world, door, "acme").start(40)
        await world.clock.sleep(3 * SECOND_NS + SECOND_NS // 2)
        figures = rate.explain("acme").figures
        assert figures["shortfall"], f"{world.name}, leading: {rate.book.leading}"

    run(body, "b", seconds=10)
