"""Words that are a round trip away: many operations go in one exchange, and nobody stands still for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_pool_resource import PERIOD_NS, make_policy, reserve

from bursar.errors import NoAnswerError, Refused, Unknown
from bursar.pools.layout import Names, unpack
from bursar.pools.resource import PoolDecider, open_resource
from bursar.resource.door import Resource
from bursar.sim.scenarios.pool.small import apply
from bursar.world import MILLISECOND_NS, SECOND_NS, Swap, WordOperation, World
from virtual_time import run_in_virtual_time

ROUND_TRIP_NS = MILLISECOND_NS


class DistantWords:
    """Implements `bursar.world.FarWords` as a plain dict, a millisecond away."""

    def __init__(self, world: World) -> None:
        self.words: dict[str, int] = {}
        self.exchanges: list[list[str]] = []
        self.broken = False
        self._clock = world.clock

    async def perform(self, groups: Sequence[Sequence[WordOperation]]) -> list[list[int]]:
        await self._clock.sleep(ROUND_TRIP_NS)
        if self.broken:
            raise NoAnswerError("gone")
        self.exchanges.append([operation.word for group in groups for operation in group])
        return [self._perform(group) for group in groups]

    def _perform(self, group: Sequence[WordOperation]) -> list[int]:
        answers = []
        for operation in group:
            answers.append(apply(self.words, operation))
            if isinstance(operation, Swap) and answers[-1] != operation.expected:
                break
        return answers

    async def close(self) -> None:
        return


Body = Callable[[World, DistantWords, Callable[..., Awaitable[Resource]]], Awaitable[None]]


def far(body: Body) -> Callable[[], None]:
    """The coroutine runs in virtual time, and opens programs that share distant words."""

    async def run(world: World) -> None:
        words, opened = DistantWords(world), []

        async def open_program(**changes: Any) -> Resource:
            resource = open_resource(replace(world, far_words=words), "records", make_policy(**changes))
            await resource.start()
            opened.append(resource)
            return resource

        await body(world, words, open_program)
        for resource in opened:
            await resource.stop()

    def test() -> None:
        run_in_virtual_time(run)

    test.__name__ = body.__name__
    return test


def decider_of(resource: Resource) -> PoolDecider:
    decider = resource.decider
    assert isinstance(decider, PoolDecider)
    return decider


@far
async def test_a_period_is_opened_and_every_reservation_dispatched_in_one_exchange(
    world: World, words: DistantWords, open_program: Any
) -> None:
    tenants = reserve({f"t{number}": 100 for number in range(50)})
    await open_program(tenants=tenants)
    names = Names("records")
    opening = [names.ceiling, names.taken, *(names.tokens(tenant) for tenant in tenants)]
    assert any(set(opening) <= set(exchange) for exchange in words.exchanges)
    assert unpack(words.words[names.tokens("t49")]) == (1, 21), "20 tokens, and one that says so"


@far
async def test_programs_share_a_pool_without_touching_words_to_take(
    world: World, words: DistantWords, open_program: Any
) -> None:
    programs = [await open_program(pacing=True) for _ in range(3)]
    spent: dict[tuple[str, int], int] = {}
    until = world.clock.now() + SECOND_NS

    async def call(program: Resource, tenant: str) -> None:
        while world.clock.now() < until:
            grant = await program.acquire(tenant, 10, wait=1)
            spent[tenant, grant.period] = spent.get((tenant, grant.period), 0) + 10

    pairs = zip(programs, ("acme", "globex", "acme"), strict=True)
    await asyncio.gather(*(call(program, tenant) for program, tenant in pairs for _ in range(8)))
    periods = sorted({period for _, period in spent})[1:-1]
    assert len(periods) >= 3
    for period in periods:
        assert spent["acme", period] >= 1000 and 400 <= spent["globex", period] <= 600
        assert sum(tokens for (_, each), tokens in spent.items() if each == period) <= 2000
    assert sum(decider_of(each)._book.leading for each in programs) == 1


@far
async def test_a_program_that_asks_nothing_claims_nothing(
    world: World, words: DistantWords, open_program: Any
) -> None:
    idle, busy = await open_program(), await open_program()
    await world.clock.sleep(2 * PERIOD_NS)
    for _ in range(20):
        await busy.acquire("acme", 10, wait=1)
        await world.clock.sleep(PERIOD_NS // 10)
    assert decider_of(busy)._engines.open("acme").engine.book.reservation == 1000
    assert (await idle.explain("acme")).figures["claimed"] is False
    assert "acme" not in decider_of(idle)._engines


@far
async def test_words_that_cannot_be_reached_hold_nobody_up(
    world: World, words: DistantWords, open_program: Any
) -> None:
    program = await open_program(without_bursar=make_policy().without_bursar)
    await program.acquire("acme", 10, wait=1)
    words.broken = True
    await world.clock.sleep(2 * PERIOD_NS)
    before = world.clock.now()
    with pytest.raises((Unknown, Refused)):
        await program.acquire("globex", 300)
    assert world.clock.now() - before <= 250 * MILLISECOND_NS
    assert (await program.statistics()).part.unreachable > 0
    words.broken = False
    assert (await program.acquire("globex", 10, wait=2)).period > 0
