"""The queues before a server, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from virtual import run

from bursar.errors import Refused, Unknown
from bursar.policy.values import KEEP, REFUSE, WithoutBursar
from bursar.rates import choices
from bursar.rates.choices import decide_among, withdraw
from bursar.rates.columns import make_allowances
from bursar.rates.dispatcher import PATIENCE_MAX_NS, TURNOVER_NS, Dispatcher
from bursar.rates.messages import UNBOUNDED, Allowance, Grant
from bursar.rates.promises import Promises
from bursar.rates.scheduler import Scheduler
from bursar.rates.server import ServerBook
from bursar.rates.terms import Terms
from bursar.resource import Ahead, Granted, Ticket
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, World

TENANTS = ("a", "b")


def make_dispatcher(
    world: World, *, name: str = "s", paced: bool = False, limit: int | None = None, **options: Any
) -> Dispatcher:
    period_ns = options.pop("period_ns", SECOND_NS)
    promises = options.pop("promises", None) or Promises(period_ns)
    scheduler = Scheduler([1, 1], period_ns=period_ns if paced else None)
    book = ServerBook(name, world.incarnation, TENANTS, scheduler)
    dispatcher = Dispatcher(world, book, period_ns=period_ns, promises=promises, **options)
    for tenant in TENANTS:
        index = promises.set(tenant, Terms(0, limit, 1, 5), whole=True)
        dispatcher.set_terms(tenant, promises.terms(index), promises.burst_ns(index))
    dispatcher.start()
    return dispatcher


def grant(world: World, dispatcher: Dispatcher, allowance: int, time_ns: int = 60 * SECOND_NS) -> None:
    now = world.clock.now()
    pace = 0 if allowance >= UNBOUNDED else allowance
    rows = make_allowances(Allowance(tenant, allowance, 0, pace) for tenant in TENANTS)
    book = dispatcher.book
    message = Grant(1, book.sequence + 1, world.incarnation, book.period + 1, now, time_ns, rows)
    assert book.receive(now, "c", message)
    dispatcher.pump()


def ask(dispatcher: Dispatcher, tenant: str = "a", amount: int = 1, wait_ns: int = 60 * SECOND_NS) -> Ticket:
    ticket = Ticket(tenant, amount, wait_ns=wait_ns)
    decide_among((dispatcher,), ticket)
    return ticket


async def take(dispatcher: Dispatcher, tenant: str = "a", amount: int = 1) -> Granted:
    answer = await ask(dispatcher, tenant, amount).wait()
    assert isinstance(answer, Granted)
    return answer


def refuse(dispatcher: Dispatcher, amount: int = 1) -> Refused:
    answer = ask(dispatcher, amount=amount, wait_ns=0).answer
    assert isinstance(answer, Refused)
    return answer


def test_a_request_that_nobody_wants_any_more_leaves_its_place_to_others() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world, concurrency=1)
        grant(world, dispatcher, UNBOUNDED)
        first = await take(dispatcher)
        waits = [ask(dispatcher) for _ in range(3)]
        withdraw(waits[0])
        withdraw(waits[2])
        dispatcher.finish(first.data)
        assert isinstance(waits[1].answer, Granted) and waits[0].answer is waits[2].answer is None
        assert (dispatcher.services.count, dispatcher.waiting("a")) == (1, 0)
        dispatcher.finish(waits[1].answer.data)
        dispatcher.finish(waits[1].answer.data)
        assert dispatcher.services.count == 0

    run(body)


def test_a_place_in_service_that_was_forgotten_is_free_again() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world, concurrency=1)
        grant(world, dispatcher, UNBOUNDED)
        held = await take(dispatcher)
        waiting = ask(dispatcher)
        assert refuse(dispatcher).retry_after is None
        del held
        gc.collect()
        dispatcher.look_up()
        assert isinstance(waiting.answer, Granted)

    run(body)


def test_a_server_bound_by_concurrency_hands_out_nothing_ahead() -> None:
    async def body(world: World) -> None:
        for options, ahead in (({"concurrency": 5}, 0), ({}, 20)):
            dispatcher = make_dispatcher(world, ahead=Ahead(), **options)
            grant(world, dispatcher, UNBOUNDED)
            ticket = Ticket("a", 1, ahead=1000)
            decide_among((dispatcher,), ticket)
            assert isinstance(ticket.answer, Granted) and ticket.answer.ahead == min(ahead, 3)

    run(body)


def test_a_server_does_its_capacity_and_not_more() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world, capacity=1_000.0)
        grant(world, dispatcher, UNBOUNDED)
        await world.clock.sleep(SECOND_NS)
        count = 0

        async def send(tenant: str) -> None:
            nonlocal count
            while True:
                await take(dispatcher, tenant)
                count += 1
                await asyncio.sleep(0)

        for tenant in TENANTS * 5:
            world.spawn(send(tenant), "send")
        await world.clock.sleep(SECOND_NS)
        assert 990 <= count <= 1_000 + 60, "its capacity, and what it may run ahead and catch up"

    run(body)


def test_a_server_does_its_capacity_through_the_ends_of_periods() -> None:
    async def body(world: World) -> None:
        period_ns = 20 * MILLISECOND_NS
        dispatcher = make_dispatcher(world, capacity=500.0, period_ns=period_ns)
        count = 0

        async def send(tenant: str) -> None:
            nonlocal count
            while True:
                await take(dispatcher, tenant)
                count += 1
                await asyncio.sleep(0)

        for tenant in TENANTS * 2:
            world.spawn(send(tenant), "send")
        for _ in range(50):
            grant(world, dispatcher, UNBOUNDED, time_ns=period_ns)
            await world.clock.sleep(period_ns + MILLISECOND_NS)
        assert count >= 0.95 * 500

    run(body)


def test_paced_requests_go_when_it_is_their_time_without_anything_else_happening() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world, paced=True, limit=20, period_ns=SECOND_NS // 2)
        grant(world, dispatcher, 20)
        began = world.clock.now()
        await asyncio.gather(*(take(dispatcher) for _ in range(10)))
        assert 125 <= (world.clock.now() - began) // MILLISECOND_NS <= 130, "five at once, five at their pace"

    run(body)


@pytest.mark.parametrize(
    ("mode", "goes"),
    [(REFUSE, 0), (KEEP, 3), (WithoutBursar(mode="safe", rate=Rate.of(100)), 5)],
    ids=["refuse", "keep", "safe"],
)
def test_a_server_goes_on_alone_with_what_was_charged_without_anybody_asking_again(
    mode: WithoutBursar, goes: int
) -> None:
    """Of ten that were allowed three were used, in the last period that there was."""

    async def body(world: World) -> None:
        period_ns = 50 * MILLISECOND_NS
        seen: list[tuple[str, int, int]] = []
        dispatcher = make_dispatcher(
            world, period_ns=period_ns, without_bursar=mode, dispatched=lambda *each: seen.append(each)
        )
        grant(world, dispatcher, 10, time_ns=period_ns)
        for _ in range(3):
            assert (await take(dispatcher)).period == 1
        await world.clock.sleep(period_ns)
        waits = [ask(dispatcher) for _ in range(20)]
        await world.clock.sleep(period_ns + MILLISECOND_NS)
        granted = [ticket.answer for ticket in waits if isinstance(ticket.answer, Granted)]
        assert len(granted) == goes
        assert all(each.fallback == mode.mode and each.period == 0 for each in granted)
        assert dispatcher.charged == [3, 0] and dispatcher.charged_alone == [goes, 0]
        assert seen == [("a", 1, 1)] * 3 + [("a", 0, 1)] * goes
        await world.clock.sleep(period_ns)
        assert sum(isinstance(ticket.answer, Granted) for ticket in waits) == 2 * goes, "in each period"

    run(body)


def test_a_tenant_without_a_limit_keeps_what_it_used_and_not_any_number() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world, without_bursar=KEEP)
        grant(world, dispatcher, UNBOUNDED, time_ns=SECOND_NS)
        await asyncio.gather(*(take(dispatcher) for _ in range(7)))
        await world.clock.sleep(3 * SECOND_NS)
        went = sum(isinstance(ask(dispatcher, wait_ns=0).answer, Granted) for _ in range(100))
        assert went == 7
        assert "goes on without a controller" in refuse(dispatcher).why

    run(body)


def test_a_lower_limit_binds_a_server_that_is_alone() -> None:
    async def body(world: World) -> None:
        promises = Promises(SECOND_NS)
        dispatcher = make_dispatcher(world, without_bursar=KEEP, limit=50, promises=promises)
        grant(world, dispatcher, 50, time_ns=SECOND_NS)
        await asyncio.gather(*(take(dispatcher) for _ in range(30)))
        promises.set("a", Terms(0, 10, 1, 5), whole=True)
        await world.clock.sleep(3 * SECOND_NS)
        assert sum(isinstance(ask(dispatcher, wait_ns=0).answer, Granted) for _ in range(100)) == 10

    run(body)


def test_nothing_is_handed_out_ahead_while_alone_and_nothing_comes_back() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world, without_bursar=KEEP, ahead=Ahead(), capacity=8_000.0, limit=1_000)
        grant(world, dispatcher, 1_000, time_ns=SECOND_NS)
        before = await take(dispatcher, amount=50)
        await world.clock.sleep(3 * SECOND_NS)
        ticket = Ticket("a", 10, ahead=1000)
        decide_among((dispatcher,), ticket)
        assert isinstance(ticket.answer, Granted) and ticket.answer.ahead == 0
        dispatcher.take_back(before.data, 50)
        assert dispatcher.unused(0) == 40

    run(body)


def test_a_server_that_never_had_tokens_does_not_go_on_alone() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world, without_bursar=KEEP)
        await world.clock.sleep(9 * SECOND_NS)
        assert not dispatcher.is_ready()
        assert isinstance(ask(dispatcher, wait_ns=0).answer, Unknown)

    run(body)


def test_the_pause_between_two_periods_is_not_the_callers() -> None:
    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world)
        first = ask(dispatcher, wait_ns=0)
        assert first.answer is None
        assert dispatcher.patience_ns(first) == PATIENCE_MAX_NS and not dispatcher.is_ready()
        grant(world, dispatcher, 10, time_ns=SECOND_NS)
        assert isinstance(first.answer, Granted) and first.answer.period == 1
        assert dispatcher.patience_ns(first) == 0 and dispatcher.is_ready()
        await world.clock.sleep(SECOND_NS + TURNOVER_NS // 2)
        assert dispatcher.patience_ns(first) == TURNOVER_NS - TURNOVER_NS // 2
        second = ask(dispatcher, wait_ns=0)
        assert second.answer is None
        await world.clock.sleep(TURNOVER_NS)
        assert dispatcher.patience_ns(first) == 0, "no controller is waited for longer than that"
        assert isinstance(withdraw(second), Unknown)
        assert isinstance(ask(dispatcher, wait_ns=0).answer, Unknown)

    run(body)


def test_a_refusal_says_what_stands_in_the_way_and_when_it_no_longer_does() -> None:
    async def body(world: World) -> None:
        paced = make_dispatcher(world, paced=True, limit=100)
        grant(world, paced, 100, time_ns=SECOND_NS)
        await take(paced, amount=3)
        refused = refuse(paced, 4)
        assert refused.why == "a has 97 tokens left, but pacing spreads them over the period"
        assert (refused.limit, refused.remaining) == (100, 2)
        await goes_after(world, paced, refused, 4)
        await take(paced, amount=90)
        refused = refuse(paced, 9)
        assert refused.why == "a has 3 of its 100 tokens left for this period, and asked for 9"
        assert refused.remaining is not None and refused.remaining <= 3
        await world.clock.sleep(SECOND_NS)
        grant(world, paced, 100)
        await goes_after(world, paced, refused, 9)

    run(body)


def test_a_refusal_at_a_full_server_is_over_when_it_has_rested() -> None:
    async def body(world: World) -> None:
        full = make_dispatcher(world, capacity=100.0)
        grant(world, full, UNBOUNDED)
        while not isinstance(ask(full, wait_ns=0).answer, Refused):
            assert full.waiting("a") == 0
        refused = refuse(full)
        assert "s is at its capacity" in refused.why and refused.remaining == 0
        await goes_after(world, full, refused, 1)

    run(body)


async def goes_after(world: World, dispatcher: Dispatcher, refused: Refused, amount: int) -> None:
    assert refused.retry_after is not None and refused.retry_after > 0
    await world.clock.sleep(int(refused.retry_after * SECOND_NS) + 1)
    assert isinstance(ask(dispatcher, amount=amount, wait_ns=0).answer, Granted)


def test_more_requests_than_can_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "QUEUE_MAX", 3)

    async def body(world: World) -> None:
        dispatcher = make_dispatcher(world)
        grant(world, dispatcher, 0)
        tickets = [ask(dispatcher) for _ in range(4)]
        assert [ticket.answer is None for ticket in tickets] == [True] * 3 + [False]

    run(body)


def test_a_request_waits_at_every_server_that_may_serve_it_and_goes_once() -> None:
    async def body(world: World) -> None:
        promises = Promises(SECOND_NS)
        servers = [make_dispatcher(world, name=name, promises=promises) for name in "xyz"]
        for server in servers:
            grant(world, server, 1)
            await take(server)
        ticket = Ticket("a", 1, wait_ns=SECOND_NS)
        decide_among(servers, ticket)
        assert [server.waiting("a") for server in servers] == [1, 1, 1]
        assert sum(server.book.observed.arrived[0] for server in servers) == 3 + 1, "but it came once"
        grant(world, servers[1], 1)
        assert isinstance(ticket.answer, Granted) and ticket.answer.data.server is servers[1]
        assert [server.waiting("a") for server in servers] == [0, 0, 0]
        assert [int(server.book.scheduler.pending[0]) for server in servers] == [0, 0, 0]

    run(body)


def test_a_request_larger_than_any_servers_part_shows_its_demand_at_one_of_them() -> None:
    """At all of them alike, each would keep its part and none have enough."""

    async def body(world: World) -> None:
        promises = Promises(SECOND_NS)
        servers = [make_dispatcher(world, name=name, promises=promises) for name in "xy"]
        for server in servers:
            grant(world, server, 50)
        ticket = Ticket("a", 60, wait_ns=SECOND_NS)
        decide_among(servers, ticket)
        assert [server.waiting("a") for server in servers] == [1, 0]
        withdraw(ticket)
        assert [server.waiting("a") for server in servers] == [0, 0]

    run(body)
