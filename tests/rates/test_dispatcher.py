"""The queues before a server, on the real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bursar.errors import Refused, Unknown
from bursar.policy.values import KEEP, REFUSE, WithoutBursar
from bursar.rates.dispatcher import DEADLINES_SPARE, TURNOVER_NS, Dispatcher
from bursar.rates.messages import UNBOUNDED, Allowance, Grant
from bursar.rates.scheduler import Scheduler
from bursar.rates.server import ServerBook
from bursar.runtime.world import LiveWorld, open_world
from bursar.world import MILLISECOND_NS, SECOND_NS

TENANTS = ("a", "b")


@pytest.fixture
async def world() -> AsyncIterator[LiveWorld]:
    world = await open_world("s")
    yield world
    await world.close()


def make_dispatcher(world: LiveWorld, *, burst: float | None = None, **options: Any) -> Dispatcher:
    book = ServerBook("s", world.incarnation, TENANTS, Scheduler([1, 1], burst=burst))
    dispatcher = Dispatcher(world, book, period_ns=options.pop("period_ns", SECOND_NS), **options)
    dispatcher.start()
    return dispatcher


def grant(world: LiveWorld, dispatcher: Dispatcher, allowance: int, time_ns: int = 60 * SECOND_NS) -> None:
    now = world.clock.now()
    rows = tuple(Allowance(tenant, allowance, 0) for tenant in TENANTS)
    book = dispatcher.book
    message = Grant(1, book.sequence + 1, world.incarnation, book.period + 1, now, time_ns, rows)
    assert book.receive(now, "c", message)
    dispatcher.pump()


async def test_those_whose_time_is_up_are_told_in_their_order(world: LiveWorld) -> None:
    dispatcher = make_dispatcher(world)
    grant(world, dispatcher, 0)
    told: list[int] = []

    async def ask(wait_ms: int) -> None:
        began = time.monotonic()
        with pytest.raises(Refused, match="used its 0 tokens"):
            await dispatcher.take("a", 1, wait_ms * MILLISECOND_NS)
        assert time.monotonic() - began >= wait_ms / 1000
        told.append(wait_ms)

    await asyncio.gather(*(ask(wait_ms) for wait_ms in (60, 20, 90, 40)))
    assert told == [20, 40, 60, 90]
    assert dispatcher.waiting("a") == 0


async def test_deadlines_of_requests_that_went_are_not_kept(world: LiveWorld) -> None:
    dispatcher = make_dispatcher(world, concurrency=1)
    grant(world, dispatcher, UNBOUNDED)

    async def work() -> None:
        await asyncio.sleep(0)

    await asyncio.gather(*(dispatcher.submit("a", work(), wait_ns=60 * SECOND_NS) for _ in range(2_000)))
    for _ in range(10):
        await asyncio.gather(*(dispatcher.submit("a", work(), wait_ns=60 * SECOND_NS) for _ in range(20)))
    assert len(dispatcher._deadlines) <= 2 * 20 + DEADLINES_SPARE + 1


async def test_a_request_that_is_cancelled_leaves_its_place_to_others(world: LiveWorld) -> None:
    dispatcher = make_dispatcher(world, concurrency=1)
    grant(world, dispatcher, UNBOUNDED)
    await dispatcher.take("a", 1, 0)
    waits = [asyncio.ensure_future(dispatcher.take("a", 1, SECOND_NS)) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    dispatcher.finished()
    waits[2].cancel()
    assert await waits[1]
    assert dispatcher.in_service == 1
    assert await asyncio.gather(waits[0], waits[2], return_exceptions=True)
    assert dispatcher.waiting("a") == 0
    dispatcher.finished()
    assert dispatcher.try_take("b")


async def test_a_place_given_to_a_request_that_is_being_cancelled_is_given_back(world: LiveWorld) -> None:
    dispatcher = make_dispatcher(world, concurrency=1)
    grant(world, dispatcher, UNBOUNDED)
    await dispatcher.take("a", 1, 0)
    wait = asyncio.ensure_future(dispatcher.take("a", 1, SECOND_NS))
    await asyncio.sleep(0)
    dispatcher.finished()
    assert dispatcher.in_service == 1
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert dispatcher.in_service == 0


async def test_a_server_does_its_capacity_and_not_more(world: LiveWorld) -> None:
    dispatcher = make_dispatcher(world, capacity=1_000.0)
    grant(world, dispatcher, UNBOUNDED)
    count, ended = 0, False

    async def work() -> None:
        nonlocal count
        count += not ended

    async def send(tenant: str) -> None:
        while not ended:
            await dispatcher.submit(tenant, work(), wait_ns=SECOND_NS)

    sends = [asyncio.ensure_future(send(tenant)) for tenant in TENANTS for _ in range(5)]
    began = time.monotonic()
    await asyncio.sleep(0.4)
    ended = True
    elapsed_s = time.monotonic() - began
    await asyncio.gather(*sends)
    assert count <= 1_000 * elapsed_s + 60, "its capacity, and what it may run ahead and catch up"
    assert count >= 300


async def test_a_server_does_its_capacity_through_the_ends_of_periods(world: LiveWorld) -> None:
    period_ns = 20 * MILLISECOND_NS
    dispatcher = make_dispatcher(world, capacity=500.0, period_ns=period_ns)
    ended, count = False, 0

    async def send(tenant: str) -> None:
        nonlocal count
        while not ended:
            await dispatcher.take(tenant, 1, SECOND_NS)
            dispatcher.finished()
            count += 1

    sends = [asyncio.ensure_future(send(tenant)) for tenant in TENANTS for _ in range(2)]
    began = time.monotonic()
    while (elapsed_s := time.monotonic() - began) < 0.8:
        grant(world, dispatcher, UNBOUNDED, time_ns=period_ns)
        await asyncio.sleep(period_ns / SECOND_NS)
    ended = True
    grant(world, dispatcher, UNBOUNDED)
    assert count >= 0.7 * 500 * elapsed_s
    await asyncio.gather(*sends)


async def test_paced_requests_go_when_it_is_their_time_without_anything_else_happening(
    world: LiveWorld,
) -> None:
    dispatcher = make_dispatcher(world, burst=0.05, period_ns=SECOND_NS // 2)
    grant(world, dispatcher, 20)
    began = time.monotonic()
    await asyncio.gather(*(dispatcher.take("a", 1, SECOND_NS) for _ in range(10)))
    assert 0.15 <= time.monotonic() - began <= 0.9


@pytest.mark.parametrize(
    ("mode", "goes"), [(REFUSE, False), (KEEP, True), (WithoutBursar(mode="safe", rate=None), True)]
)
async def test_a_server_goes_on_alone_without_anybody_asking_again(
    world: LiveWorld, mode: WithoutBursar, goes: bool
) -> None:
    period_ns = 50 * MILLISECOND_NS
    dispatcher = make_dispatcher(world, period_ns=period_ns, without_bursar=mode)
    grant(world, dispatcher, 1, time_ns=period_ns)
    assert await dispatcher.take("a", 1, 0) == 1
    wait = asyncio.ensure_future(dispatcher.take("a", 1, 400 * MILLISECOND_NS))
    await asyncio.wait([wait])
    assert (wait.exception() is None) == goes


async def test_a_request_without_patience_sits_out_the_pause_between_two_periods(world: LiveWorld) -> None:
    dispatcher = make_dispatcher(world)
    first = asyncio.ensure_future(dispatcher.take("a", 1, 0))
    await asyncio.sleep(0)
    grant(world, dispatcher, 10, time_ns=0)
    second = asyncio.ensure_future(dispatcher.take("b", 1, 0))
    await asyncio.sleep(0)
    assert not first.done() and not second.done()
    grant(world, dispatcher, 10)
    assert [await first, await second] == [2, 2]


async def test_after_the_pause_nobody_is_kept_waiting_for_a_controller(world: LiveWorld) -> None:
    dispatcher = make_dispatcher(world)
    grant(world, dispatcher, 10, time_ns=-TURNOVER_NS)
    began = time.monotonic()
    with pytest.raises(Unknown, match="no controller"):
        await dispatcher.take("a", 1, 0)
    assert time.monotonic() - began < TURNOVER_NS / SECOND_NS


async def test_a_refusal_says_what_holds_back_a_tenant_with_tokens(world: LiveWorld) -> None:
    paced = make_dispatcher(world, burst=0.05)
    grant(world, paced, 100)
    with pytest.raises(Refused, match=r"has \d+ tokens left at s, but pacing spreads them") as refusal:
        for _ in range(100):
            await paced.take("a", 1, 0)
    assert 0 < refusal.value.retry_after < 1.0
    full = make_dispatcher(world, capacity=100.0)
    grant(world, full, UNBOUNDED)
    with pytest.raises(Refused, match="the server is at its capacity"):
        for _ in range(100):
            await full.take("a", 1, 0)
