"""Lots of a pool: how many, until when, what is reported of them, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

from test_pool_resource import PERIOD_NS, next_period, with_pool

from bursar.policy import PoolTenant
from bursar.pools.layout import unpack_report
from bursar.pools.resource import LIMIT_PART, PoolDecider
from bursar.resource import PLACE_NS, Granted, Seen, Ticket
from bursar.resource.door import Resource
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, World, Write

PLACE_MAX = 2000 * PLACE_NS // PERIOD_NS


def ask(decider: PoolDecider, tenant: str, amount: int = 1, **options: Any) -> Ticket:
    """A ticket that the kind was handed, without the door around it."""
    ticket = Ticket(tenant, amount, **{"ahead": 10**6, **options})
    decider.decide(ticket)
    return ticket


def take(decider: PoolDecider, tenant: str, amount: int = 1, **options: Any) -> Granted:
    answer = ask(decider, tenant, amount, **options).answer
    assert isinstance(answer, Granted)
    return answer


def reported(decider: PoolDecider, tenant: str) -> tuple[int, int]:
    """What its engine would say now: unspent and spent."""
    write = decider.engine(tenant).book._report()
    assert isinstance(write, Write)
    report = unpack_report(write.value)
    return report.unspent, report.spent


@with_pool()
async def test_what_is_out_ahead_is_at_most_five_milliseconds_of_the_data_node(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    lots = [take(decider, "acme", held_by=str(n)).ahead for n in range(20)]
    assert sum(lots) == decider.ahead.out == PLACE_MAX == 50
    assert lots[:2] == [25, 13], "half of the room each, so that others find some too"
    assert take(decider, "globex").ahead == 0


@with_pool()
async def test_of_a_tenant_with_a_limit_only_a_small_part_of_it_is_out_ahead(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    lots = [take(decider, "globex", held_by=str(n)).ahead for n in range(20)]
    assert sum(lots) == 600 // LIMIT_PART == 12


@with_pool()
async def test_tokens_in_lots_are_charged_to_the_limit(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    told = 0
    await next_period(world, decider)
    period = decider.engine("globex").book.period
    while decider.engine("globex").book.period == period:
        granted = ask(decider, "globex", held_by=str(told % 7)).answer
        if isinstance(granted, Granted) and granted.period == period:
            told += granted.amount + granted.ahead
        await world.clock.sleep(MILLISECOND_NS // 10)
    assert 0.97 * 600 <= told <= 600


@with_pool()
async def test_nothing_goes_ahead_while_anybody_waits_nor_to_whoever_waited(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("globex", 600, wait=1)
    patient = ask(decider, "globex", 10, wait_ns=SECOND_NS)
    assert take(decider, "acme").ahead == 0
    await next_period(world, decider)
    await world.clock.sleep(10 * MILLISECOND_NS)
    assert isinstance(patient.answer, Granted) and patient.answer.ahead == 0
    assert take(decider, "acme").ahead > 0


@with_pool()
async def test_a_lot_ends_with_its_period_and_says_which_that_was(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    book = decider.engine("acme").book
    granted = take(decider, "acme")
    assert granted.until == book.began + PERIOD_NS and granted.period == book.period
    grant = await records.acquire("acme")
    while (last := records.spend("acme", 1)) is not None:
        assert last.period == grant.period
    await records.acquire("acme")
    await world.clock.sleep(book.began + PERIOD_NS - world.clock.now())
    assert records.spend("acme", 1) is None
    await world.clock.sleep(MILLISECOND_NS)
    assert decider.ahead.out == 0


# What is reported


@with_pool()
async def test_unspent_lots_are_not_reported_as_used(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    await records.acquire("acme", 10)
    assert reported(decider, "acme")[1] == 10 and decider.ahead.out == 25
    for _ in range(3):
        assert records.try_acquire("acme", 2) is not None
    await world.clock.sleep(20 * MILLISECOND_NS)  # a tick tells what was spent from lots
    assert reported(decider, "acme")[1] == 16
    assert decider.ahead.out == 19


@with_pool(tenants={"acme": PoolTenant(reservation=Rate.of(5000)), "idle": PoolTenant()})
async def test_a_period_ends_with_what_was_used_and_not_with_what_was_lent(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    for number in range(4):
        take(decider, "acme", 100, held_by=str(number))
    assert decider.ahead.out == 25 + 13 + 6 + 3
    await next_period(world, decider)
    await world.clock.sleep(60 * MILLISECOND_NS)
    assert (await records.statistics()).part.used == 400


@with_pool()
async def test_what_may_still_come_back_is_not_returned_to_the_pool(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    """The tokens of a lot are neither spent nor given up: the sum that the monitor goes by stays."""
    await next_period(world, decider)
    before = sum(reported(decider, "acme"))
    granted = take(decider, "acme")
    assert sum(reported(decider, "acme")) == before
    decider.end_lot("acme", granted, Seen(4), granted.ahead - 4)
    assert sum(reported(decider, "acme")) == before
    assert reported(decider, "acme")[1] == 5


# What comes back


@with_pool()
async def test_tokens_that_come_back_in_their_period_can_be_spent_again(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    book = decider.engine("acme").book
    before = book.usable(world.clock.now())
    lot, request = take(decider, "acme"), take(decider, "acme", 500, ahead=0)
    assert book.usable(world.clock.now()) == before - 501 - lot.ahead
    decider.end_lot("acme", lot, Seen(2), lot.ahead - 2)
    decider.take_back("acme", request, 500)
    assert book.usable(world.clock.now()) == before - 3
    assert decider.ahead.out == 0


@with_pool()
async def test_tokens_that_come_back_later_are_void(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    lot, request = take(decider, "acme"), take(decider, "acme", 500, ahead=0)
    await next_period(world, decider)
    book = decider.engine("acme").book
    take(decider, "acme", 600, ahead=0)
    take(decider, "acme", held_by="other")
    before = book.usable(world.clock.now()), book.spent, book.lent
    decider.take_back("acme", request, 500)
    decider.end_lot("acme", lot, Seen(3), lot.ahead - 3)
    assert (book.usable(world.clock.now()), book.spent, book.lent) == before


@with_pool()
async def test_a_period_whose_number_comes_again_is_another_period(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    """Somebody spoils the ceiling for a moment: what is known of the period before is void."""
    await next_period(world, decider)
    engine = decider.engine("acme")
    request = take(decider, "acme", 500, ahead=0)
    ceiling = world.words.read(engine.book.names.ceiling)
    world.words.write(engine.book.names.ceiling, 5 << 36)
    engine.tick()
    world.words.write(engine.book.names.ceiling, ceiling)
    engine.tick()
    assert engine.book.period == request.period
    before = engine.book.reserve, engine.book.hand, engine.book.spent
    decider.take_back("acme", request, 500)
    assert (engine.book.reserve, engine.book.hand, engine.book.spent) == before


@with_pool()
async def test_whoever_waits_goes_when_tokens_come_back(
    world: World, records: Resource, decider: PoolDecider
) -> None:
    await next_period(world, decider)
    large = await records.acquire("globex", 600, wait=1)
    patient = ask(decider, "globex", 10, wait_ns=SECOND_NS)
    assert patient.answer is None
    large.settle(100)
    await large.release()
    assert isinstance(patient.answer, Granted)
