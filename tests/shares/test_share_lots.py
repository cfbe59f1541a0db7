"""Lots of a share: how many, until when, what they count as, and what becomes of the rest."""

from __future__ import annotations

import pytest
from test_share_resource import make_policy, with_share

from bursar.resource import PLACE_NS, Granted, Seen, Ticket
from bursar.world import MILLISECOND_NS, SECOND_NS

INTERVAL_NS = 50 * MILLISECOND_NS


class SetClock:
    def __init__(self, ns):
        self.ns = ns

    def now(self):
        return self.ns


def ask(resource, tenant, amount=1, ahead=10**6, held_by="", wait_ns=0):
    """A ticket that the kind was handed, without the door around it."""
    ticket = Ticket(tenant, amount, ahead=ahead, held_by=held_by, wait_ns=wait_ns)
    resource.decider.decide(ticket)
    return ticket


def take(resource, tenant, amount=1, **options):
    answer = ask(resource, tenant, amount, **options).answer
    assert isinstance(answer, Granted)
    return answer


async def next_interval(world, resource):
    number = resource.decider.book.number
    while resource.decider.book.number == number:
        await world.clock.sleep(MILLISECOND_NS)


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_what_is_out_ahead_is_at_most_five_milliseconds_of_the_target(world, resource):
    ahead = resource.decider.ahead
    most = 10_000 * PLACE_NS // SECOND_NS
    lots = [take(resource, tenant, held_by=f"{n}").ahead for tenant in "ab" for n in range(20)]
    assert sum(lots) == ahead.out == most == 50
    assert lots[:2] == [25, 13], "half of the room each, so that others find some too"


@with_share(make_policy(capacity=10_000, a=1, b=3))
async def test_a_tenant_has_at_most_what_its_bucket_is_filled_with_in_five_milliseconds(world, resource):
    resource.decider._gate.filter.refuse("a", 10_000)
    resource.decider._gate.filter.refuse("b", 10_000)
    await next_interval(world, resource)
    assert resource.decider.book.handout.lines["a"].rate == 2500
    lots = [take(resource, "a", held_by=f"{n}").ahead for n in range(20)]
    assert sum(lots) == 2500 * PLACE_NS // SECOND_NS == 12


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_nothing_goes_ahead_while_anybody_waits_nor_to_whoever_waited(world, resource):
    take(resource, "a", 2_000, ahead=0)
    patient = ask(resource, "b", 10, wait_ns=SECOND_NS)
    late = ask(resource, "a", 10, wait_ns=SECOND_NS)
    while late.answer is None or patient.answer is None:
        await world.clock.sleep(MILLISECOND_NS)
        assert resource.decider.ahead.out == 0
    assert patient.answer.ahead == late.answer.ahead == 0
    await world.clock.sleep(20 * MILLISECOND_NS)
    assert take(resource, "a").ahead > 0


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_a_timer_that_rings_late_brings_nothing_ahead(world, resource):
    take(resource, "a", 200, ahead=0)
    patient = ask(resource, "b", 10, wait_ns=SECOND_NS)
    resource.decider._ring(world.clock.now() + 18 * MILLISECOND_NS)
    assert isinstance(patient.answer, Granted) and patient.answer.ahead == 0


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_a_neighbour_never_waits_for_tokens_that_nobody_spent(world, resource):
    """What goes ahead makes up for time in which the target was idle; it takes none of the time to come."""
    assert take(resource, "a", 40).ahead == 25
    assert take(resource, "b", 30).ahead == 5, "of the ten milliseconds that may be made up for"
    assert take(resource, "b", 1, ahead=0).amount == 1


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_a_lot_ends_with_its_interval(world, resource):
    await next_interval(world, resource)
    await world.clock.sleep(10 * MILLISECOND_NS)
    granted = take(resource, "a")
    assert 0 < granted.until - world.clock.now() <= INTERVAL_NS - 10 * MILLISECOND_NS
    await next_interval(world, resource)
    assert 0 <= world.clock.now() - granted.until < MILLISECOND_NS


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_a_program_that_keeps_the_loop_from_running_has_lots_all_the_same(world, resource):
    """Its interval is not closed, and yet over: the lot ends where the next one would."""
    await next_interval(world, resource)
    begun = world.clock.now()
    resource.decider._clock = late = SetClock(begun + 3 * INTERVAL_NS + 10 * MILLISECOND_NS)
    granted = take(resource, "a")
    assert granted.ahead > 0
    assert late.ns < granted.until <= begun + 4 * INTERVAL_NS


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_a_lot_whose_holder_is_silent_is_in_nobodys_way_after_its_interval(world, resource):
    await next_interval(world, resource)
    assert take(resource, "a", held_by="silent").ahead == 25
    await next_interval(world, resource)
    assert take(resource, "a", held_by="other").ahead == 25


# Rule 3: demand is what arrived


async def trickle(world, resource, tenant, seconds):
    until = world.clock.now() + int(seconds * SECOND_NS)
    while world.clock.now() < until:
        await resource.acquire(tenant, wait=1)
        await world.clock.sleep(2 * MILLISECOND_NS)


def record_of_a_light_user(lots):
    records = []

    @with_share(make_policy(capacity=20_000, a=1, b=1))
    async def measure(world, resource):
        if not lots:
            resource.decider._charge_lot = lambda ticket, now: None

        async def greedy():
            while True:
                await resource.acquire("b", 20, wait=5)

        world.spawn(greedy(), "greedy")
        await trickle(world, resource, "a", 2.0)
        lines = resource.decider.book.handout.lines
        records.extend([resource.decider.book.record("a"), lines["a"].demand])

    measure()
    return records


def test_a_light_user_is_owed_as_much_with_lots_as_without():
    with_lots, demand = record_of_a_light_user(lots=True)
    without, demand_without = record_of_a_light_user(lots=False)
    assert without > 1000
    assert with_lots == pytest.approx(without, rel=0.02)
    assert demand == pytest.approx(demand_without, abs=2)


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_demand_is_what_was_spent_from_a_lot_and_not_the_lot(world, resource):
    await next_interval(world, resource)
    await resource.acquire("a")
    assert resource.decider.ahead.out > 10
    for _ in range(3):
        assert resource.try_acquire("a", 2) is not None
    await next_interval(world, resource)
    assert resource.decider.book.handout.lines["a"].demand == 7
    await next_interval(world, resource)
    assert resource.decider.book.handout.lines == {}


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_what_was_spent_from_a_lot_is_told_before_demand_is_read(world, resource):
    await next_interval(world, resource)
    await resource.acquire("a")
    assert resource.try_acquire("a", 6) is not None
    seen = await resource.decider._target._enforcer.collect()
    assert seen.demand == {"a": 7}


# What comes back


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_a_lot_that_comes_back_in_its_interval_is_as_if_it_had_not_been(world, resource):
    gate, ahead = resource.decider._gate, resource.decider.ahead
    granted = take(resource, "a")
    assert gate.idle_tokens(world.clock.now()) == 99 - granted.ahead
    resource.decider.end_lot("a", granted, Seen(5), granted.ahead - 5)
    assert ahead.out == 0
    assert gate.idle_tokens(world.clock.now()) == 99 - 5
    assert gate.filter.collect()["a"] == 1 + 5


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_a_request_that_comes_back_in_its_interval_is_as_if_it_had_not_been(world, resource):
    gate = resource.decider._gate
    resource.decider._gate.filter.refuse("a", 10_000)
    await next_interval(world, resource)
    before = gate.filter.take_ahead("a", 10**6, world.clock.now())
    gate.filter.give_back("a", before, world.clock.now())
    granted = take(resource, "a", 50, ahead=0)
    assert gate.idle_tokens(world.clock.now()) == 50
    resource.decider.take_back("a", granted, 30)
    assert gate.idle_tokens(world.clock.now()) == 80
    assert gate.filter.take_ahead("a", 10**6, world.clock.now()) == before - 20
    assert gate.filter.collect()["a"] == 20


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_what_comes_back_later_is_nothing(world, resource):
    gate = resource.decider._gate
    lot, request = take(resource, "a"), take(resource, "a", 500, ahead=0)
    await next_interval(world, resource)
    take(resource, "a", 5, ahead=0)
    free_at = gate.full_at(world.clock.now())
    resource.decider.take_back("a", request, 500)
    resource.decider.end_lot("a", lot, Seen(), lot.ahead)
    assert gate.full_at(world.clock.now()) == free_at
    assert gate.filter.collect()["a"] == 5


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_whoever_waits_goes_when_tokens_come_back(world, resource):
    large = take(resource, "a", 5_000, ahead=0)
    patient = ask(resource, "b", 10, wait_ns=SECOND_NS)
    assert patient.answer is None
    resource.decider.take_back("a", large, 5_000)
    assert isinstance(patient.answer, Granted)


@with_share(make_policy(capacity=10_000, a=1, b=1))
async def test_settling_for_less_through_the_door_gives_the_rest_back(world, resource):
    gate = resource.decider._gate
    async with resource.acquire("a", 2_000) as grant:
        assert resource.try_acquire("b") is None
        grant.settle(10)
    assert gate.idle_tokens(world.clock.now()) > 0
    assert resource.try_acquire("b") is not None
