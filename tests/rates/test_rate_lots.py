"""Tokens ahead of use: charged first, never more than the rules allow, and back only in time."""

from __future__ import annotations

import gc
import random
from collections import Counter

import pytest
from virtual import Callers, open_rate, run

from bursar.errors import Refused
from bursar.rates.resource import RateDecider
from bursar.resource import Granted, Seen, Ticket
from bursar.resource.hand import AHEAD_MAX
from bursar.world import MILLISECOND_NS, SECOND_NS, World

POLICY = """
[resource.api]
kind = "rate"
servers = {{ {servers} }}
[resource.api.tenant]
acme = {{ limit = "{limit}/s" }}
steady = {{ reservation = "{reserved}/s" }}
"""


def make_policy(servers: str = 'a = "4000/s"', limit: int = 400, reserved: int = 0) -> str:
    return POLICY.format(servers=servers, limit=limit, reserved=reserved)


def ask(
    rate: RateDecider, amount: int = 1, *, tenant: str = "acme", held_by: str = "", ahead: int = AHEAD_MAX
) -> Granted:
    ticket = Ticket(tenant, amount, ahead=ahead, held_by=held_by)
    rate.decide(ticket)
    if isinstance(ticket.answer, Refused):
        raise ticket.answer
    assert isinstance(ticket.answer, Granted)
    return ticket.answer


async def skip_to_next_period(world: World, rate: RateDecider) -> None:
    book = rate.servers["a"].book
    period = book.period
    while book.period == period:
        await world.clock.sleep(MILLISECOND_NS)


class Holder:
    """A client that spends its lots as fast as it can, and waits where it must."""

    def __init__(self, world: World, rate: RateDecider, name: str, amount: int, ahead: int) -> None:
        self.periods: Counter[int] = Counter()
        self.world, self.rate, self.name, self.amount, self.ahead = world, rate, name, amount, ahead

    async def spend(self) -> None:
        while True:
            ticket = Ticket("acme", self.amount, wait_ns=SECOND_NS, ahead=self.ahead, held_by=self.name)
            self.rate.decide(ticket)
            granted = await ticket.wait()
            assert isinstance(granted, Granted)
            self.periods[granted.period] += granted.amount + granted.ahead
            if granted.ahead:
                self.rate.end_lot("acme", granted, Seen(granted.ahead), 0)
            await self.world.clock.sleep(MILLISECOND_NS // 10)


def test_there_are_no_lots_at_one_server_while_the_tenant_waits_at_another() -> None:
    """They would be charged at the pace of the one and used together with what goes at the other."""

    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy('a = "4000/s", b = "4000/s"'))
        index = rate.servers["a"].book.index("acme")
        if index is None:
            ask(rate, ahead=0)
            index = rate.servers["a"].book.index("acme")
        assert index is not None
        now, ticket = world.clock.now(), Ticket("acme", 1, ahead=AHEAD_MAX)
        assert rate.servers["b"]._find_ahead(now, ticket, index) > 0
        waiting = Ticket("acme", 300, wait_ns=SECOND_NS)
        waiting.place = [rate.servers["a"]]
        rate.servers["a"].queue(waiting)
        assert rate.servers["b"]._find_ahead(now, ticket, index) == 0

    run(body)


def test_a_lot_is_charged_and_ends_with_its_period() -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy())
        server = rate.servers["a"]
        granted = ask(rate)
        assert granted.ahead == 10, "half of a burst of 20"
        assert granted.until == server.book.expires_at
        assert granted.period == server.book.period
        assert server.used(0) == 11
        assert (granted.limit, granted.remaining) == (400, 389)

    run(body)


def test_one_caller_keeps_nothing_of_a_small_limit_from_another() -> None:
    """Of five, the workers of a service together get five, and not four because one has a token ahead."""

    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy(limit=5))
        for number in range(5):
            assert ask(rate, held_by="pq"[number % 2]).ahead == 0

    run(body)


def test_callers_spend_from_a_lot_without_asking_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy())
        assert door.try_acquire("acme") is not None
        assert list(door.hand.lots) == ["acme"]
        monkeypatch.setattr(rate, "decide", None)
        for _ in range(10):
            async with door.acquire("acme") as grant:
                assert grant.period == rate.servers["a"].book.period

    run(body)


def test_what_is_out_never_passes_the_burst_nor_five_milliseconds_of_the_server() -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy())
        out = [ask(rate, held_by="p").ahead, ask(rate, held_by="q").ahead]
        assert out[0] > out[1] > 0 and sum(out) <= 20 - 2
        for name in "rstuvw":
            await world.clock.sleep(100 * MILLISECOND_NS)
            out.append(ask(rate, held_by=name).ahead)
        assert 15 <= sum(out) <= 20, "those of all holders together, though the pace would allow more"
        others = [ask(rate, tenant="steady", held_by=name).ahead for name in "pqrstuvw"]
        assert sum(out) + sum(others) <= 20, "and those of all tenants"

    run(body)


def test_a_tenant_without_a_limit_has_no_more_out_than_the_server_does_in_five_milliseconds() -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy())
        assert 15 <= sum(ask(rate, tenant="steady", held_by=name).ahead for name in "pqrstuvw") <= 20

    run(body)


@pytest.mark.parametrize(("capacity", "out"), [(400, [1, 1, 0]), (100, [0, 0, 0])])
def test_the_tokens_out_at_a_slow_server_are_few_or_none(capacity: int, out: list[int]) -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy(f'a = "{capacity}/s"'))
        assert [ask(rate, held_by=name).ahead for name in "pqr"] == out

    run(body)


def test_a_holder_that_asks_again_has_used_up_its_last_lot() -> None:
    """Else the room for lots would be lost with each refill until the period ends."""

    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy())
        for _ in range(10):
            granted = ask(rate, held_by="p")
            assert granted.ahead > 0
            rate.end_lot("acme", granted, Seen(granted.ahead), 0)
            await world.clock.sleep(50 * MILLISECOND_NS)

    run(body)


def test_nobody_gets_tokens_ahead_while_somebody_waits_for_the_server() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy('a = "1000/s"'))
        Callers(world, door, "steady").start(200)
        await world.clock.sleep(SECOND_NS // 10)
        ticket = Ticket("acme", 1, wait_ns=SECOND_NS, ahead=AHEAD_MAX)
        rate.decide(ticket)
        granted = await ticket.wait()
        assert isinstance(granted, Granted) and granted.ahead == 0

    run(body)


def test_whoever_waits_for_tokens_of_its_own_keeps_nobody_from_tokens_ahead() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy())
        acme = Callers(world, door, "acme")
        acme.start(100)
        await world.clock.sleep(SECOND_NS // 10)
        assert rate.servers["a"].waiting("acme") > 50
        assert ask(rate, tenant="steady").ahead > 0

    run(body)


@pytest.mark.parametrize("seed", range(8))
def test_with_lots_out_returned_and_lost_no_period_is_charged_more_than_the_limit(seed: int) -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy('a = "4000/s", b = "2000/s"'))
        chance = random.Random(seed)
        spent: Counter[int] = Counter()
        lots: list[Granted] = []
        for _ in range(3_000):
            await world.clock.sleep(chance.randrange(0, 5 * MILLISECOND_NS))
            ticket = Ticket(
                "acme", chance.choice((1, 1, 1, 7)), ahead=AHEAD_MAX, held_by=chance.choice("pqrs")
            )
            rate.decide(ticket)
            if isinstance(ticket.answer, Granted):
                lots.append(ticket.answer)
                spent[ticket.answer.period] += ticket.answer.amount
            elif ticket.answer is None:
                rate.withdraw(ticket)
            if lots and chance.random() < 0.8:
                lot = lots.pop(chance.randrange(len(lots)))
                used = chance.randrange(lot.ahead + 1) if world.clock.now() < lot.until else 0
                spent[lot.period] += used
                rate.end_lot("acme", lot, Seen(used), lot.ahead - used)
        assert max(spent.values()) <= 400
        assert sorted(spent.values())[-3] >= 350, "and nearly all of it can be used"

    run(body)


def test_four_greedy_holders_leave_their_neighbour_its_reservation() -> None:
    """For three quarters of the server, and with a few requests outstanding."""

    async def body(world: World) -> None:
        assert await run_beside_holders(world, callers=4) >= 0.99 * 300

    run(body)


def test_neither_lots_nor_large_requests_cost_a_neighbour_with_hardly_anything_waiting() -> None:
    least: dict[str, int] = {}

    def measure(name: str, **options: int) -> None:
        async def body(world: World) -> None:
            least[name] = await run_beside_holders(world, callers=2, **options)

        run(body)

    measure("none", ahead=0)
    measure("lots")
    measure("large", amount=20)
    assert min(least["lots"], least["large"]) >= 0.99 * least["none"] > 0.85 * 300, least


async def run_beside_holders(world: World, *, callers: int, amount: int = 1, ahead: int = AHEAD_MAX) -> int:
    """The least that the neighbour got in a period."""
    door, rate = await open_rate(world, make_policy('a = "400/s"', limit=390, reserved=300))
    holders = [Holder(world, rate, f"h{number}", amount, ahead) for number in range(4)]
    for holder in holders:
        world.spawn(holder.spend(), "holder")
    steady = Callers(world, door, "steady")
    steady.start(callers)
    await world.clock.sleep(8 * SECOND_NS)
    assert sum(sum(holder.periods.values()) for holder in holders) >= 8 * 40, "they get the rest"
    return min(steady.full_periods()[1:])


# Tokens that come back


def test_tokens_come_back_with_count_pace_and_capacity() -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy('a = "400/s"'))
        server = rate.servers["a"]
        big = ask(rate, 100, ahead=0)
        with pytest.raises(Refused, match="pacing"):
            ask(rate, ahead=0)
        rate.take_back("acme", big, 100)
        assert server.used(0) == 0
        assert server.capacity.find_spare(world.clock.now()) >= 1
        again = ask(rate, 100, ahead=0)
        assert again.remaining == 300

    run(body)


def test_tokens_of_a_period_that_is_over_do_not_come_back() -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy())
        old = ask(rate)
        await skip_to_next_period(world, rate)
        ask(rate, 5, ahead=0)
        rate.end_lot("acme", old, Seen(), old.ahead)
        rate.take_back("acme", old, old.amount)
        assert rate.servers["a"].used(0) == 5

    run(body)


def test_whoever_waits_goes_when_tokens_come_back() -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy())
        big = ask(rate, 400, ahead=0)
        ticket = Ticket("acme", 300, wait_ns=SECOND_NS)
        rate.decide(ticket)
        assert ticket.answer is None
        rate.take_back("acme", big, 400)
        assert isinstance(ticket.answer, Granted)

    run(body)


def test_demand_is_what_was_spent_and_not_what_was_handed_out() -> None:
    async def body(world: World) -> None:
        _, rate = await open_rate(world, make_policy())
        arrived = rate.servers["a"].book.observed.arrived
        granted = ask(rate)
        assert granted.ahead == 10 and arrived[0] == 1
        rate.observe("acme", granted, Seen(3))
        assert arrived[0] == 4
        rate.end_lot("acme", granted, Seen(1, refused=2), 6)
        assert arrived[0] == 7

    run(body)


# Requests in service


@pytest.mark.parametrize("capacity", ["auto", "4000/s"])
def test_grants_that_nobody_releases_leave_nothing_in_service(capacity: str) -> None:
    """As in `if cache.try_acquire("acme"): ...`, which is how it is shown."""

    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy(f'a = "{capacity}"'))
        went = 0
        for _ in range(276):
            if door.try_acquire("acme"):
                went += 1
            await world.clock.sleep(MILLISECOND_NS)
        gc.collect()
        rate.servers["a"].look_up()
        assert went > 100
        assert rate.servers["a"].services.count == 0

    run(body)


def test_a_request_is_in_service_until_it_is_released_though_its_lot_lives_on() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy('a = "auto"'))
        services = rate.servers["a"].services
        grant = await door.acquire("acme")
        assert services.count == 1 and list(door.hand.lots) == ["acme"]
        await grant.release()
        await grant.release()
        assert services.count == 0
        forgotten = await door.acquire("acme", 12)
        del forgotten
        gc.collect()
        assert door.try_acquire("steady") is not None, "whoever asks next finds it"
        gc.collect()
        rate.servers["a"].look_up()
        assert services.count == 0

    run(body)
