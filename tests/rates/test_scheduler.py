"""The token scheduler against a plain reading of algorithm 1 (section II-A) and section V."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.errors import UsageError
from bursar.rates.scheduler import COST_MAX, UNBOUNDED, Scheduler, kernels
from bursar.world import MILLISECOND_NS, SECOND_NS

BURST_NS = SECOND_NS // 20


@dataclass
class Queue:
    weight: int
    waiting: int = 0
    cost: int = 1
    dispatched: int = 0
    allowance: int = 0
    priority: int = 0
    owed: int = 0
    excess: int = 0
    credit: int = 0
    tag: int = 0
    order: int = 0
    step: int = 0  # 1: has priority tokens, 2: under its allowance, 0: not eligible
    starts: list[int] = field(default_factory=lambda: [0, 0, 0])
    in_turns: bool = False


class Reference:
    """Algorithm 1 by searching all queues: of the eligible ones the one of the lowest tag. A request that
    costs no more than its tenant's weight is part of a turn of so many tokens; a larger one counts as
    that much of virtual time, from the moment that it came to the front."""

    def __init__(self, weights: list[int]) -> None:
        self.queues = [Queue(weight) for weight in weights]
        self.virtual = [0, 0, 0]
        self.orders = 0

    def arrive(self, queue: Queue, count: int) -> None:
        if queue.waiting == 0:
            queue.credit = 0
            queue.starts = list(self.virtual)
        queue.waiting += count

    def price(self, queue: Queue, cost: int) -> None:
        if cost != queue.cost:
            queue.cost, queue.step = cost, 0

    def settle(self, queue: Queue) -> None:
        fits = queue.waiting > 0 and queue.dispatched + queue.cost <= queue.allowance
        step = 0 if not fits else (1 if queue.dispatched + queue.owed < queue.priority else 2)
        if step != queue.step:
            queue.step = step
            if step:
                self.join(queue)

    def join(self, queue: Queue) -> None:
        self.orders += 1
        queue.order, step = self.orders, queue.step
        queue.in_turns = queue.credit < queue.cost <= queue.weight
        if queue.in_turns:
            queue.tag = self.virtual[step] + kernels.TURN
        else:
            span = max(0, queue.cost - queue.credit) * kernels.TURN // queue.weight
            queue.starts[step] = max(queue.starts[step], self.virtual[step] - span)
            queue.tag = queue.starts[step] + span

    def choose(self) -> int:
        for step in (1, 2):
            eligible = [q for q in self.queues if q.step == step]
            if eligible:
                queue = min(eligible, key=lambda q: (q.tag, q.order))
                self.serve(queue)
                return self.queues.index(queue)
        return -1

    def serve(self, queue: Queue) -> None:
        step = queue.step
        if queue.credit < queue.cost:
            queue.credit = queue.credit + queue.weight if queue.in_turns else queue.cost
        queue.credit -= queue.cost
        queue.starts[step] = queue.tag
        self.virtual[step] = max(self.virtual[step], queue.tag)
        if step == 1 and queue.cost > max(kernels.SMALL, queue.priority >> kernels.SMALL_BITS):
            queue.excess += max(0, queue.dispatched + queue.owed + queue.cost - queue.priority)
        queue.waiting -= 1
        queue.dispatched += queue.cost
        self.settle(queue)
        if queue.step == step and (not queue.in_turns or queue.credit < queue.cost):
            self.join(queue)

    def open_period(self) -> None:
        for queue in self.queues:
            queue.owed = max(0, queue.owed - max(0, queue.priority - queue.dispatched)) + queue.excess
            queue.dispatched = queue.allowance = queue.priority = queue.excess = 0
            queue.step = 0
            pairs = zip(queue.starts, self.virtual, strict=True)
            queue.starts = [start - virtual for start, virtual in pairs]
        self.virtual = [0, 0, 0]


class PaperAlgorithm:
    """Algorithm 1 as printed: queues by number, one `next` for both steps, counters that go down."""

    def __init__(self, pending: list[int], reserved: list[int], limited: list[int]) -> None:
        self.pending, self.reserved, self.limited = pending, reserved, limited
        self.next = 0

    def choose(self) -> int:
        count = len(self.pending)
        for tokens in (self.reserved, self.limited):
            for k in range(count):
                i = (self.next + k) % count
                if self.pending[i] > 0 and tokens[i] > 0:
                    self.pending[i] -= 1
                    tokens[i] -= 1
                    self.next = (i + 1) % count
                    return i
        return -1


tenants = st.integers(0, 5)
amounts = st.integers(0, 12)
actions = st.one_of(
    st.tuples(st.just("arrive"), tenants, st.integers(0, 6)),
    st.tuples(st.just("withdraw"), tenants),
    st.tuples(st.just("price"), tenants, st.integers(1, 8)),
    st.tuples(st.just("grant"), tenants, amounts, amounts),
    st.tuples(st.just("choose"), st.integers(1, 8)),
    st.tuples(st.just("open")),
)


@settings(max_examples=400, deadline=None)
@given(
    weights=st.lists(st.integers(1, 3), min_size=6, max_size=6),
    script=st.lists(actions, min_size=1, max_size=60),
)
def test_every_choice_is_the_one_a_search_of_all_queues_finds(weights, script):
    real, plain = Scheduler(weights), Reference(weights)
    for name, *args in script:
        if name == "open":
            real.open_period()
            plain.open_period()
        elif name == "choose":
            for _ in range(args[0]):
                chosen = real.choose()
                assert chosen == plain.choose()
                assert chosen == -1 or real.dispatched[chosen] <= real.allowance[chosen]
        else:
            apply(real, plain, name, args)
        assert real.pending.tolist() == [q.waiting for q in plain.queues]
        assert real.dispatched.tolist() == [q.dispatched for q in plain.queues]
    check_rings(real)


def apply(real: Scheduler, plain: Reference, name: str, args: list[int]) -> None:
    queue = plain.queues[args[0]]
    if name == "arrive":
        real.arrive(*args)
        plain.arrive(queue, args[1])
    elif name == "withdraw":
        if queue.waiting == 0:
            return
        real.withdraw(*args)
        queue.waiting -= 1
    elif name == "price":
        real.price(*args)
        plain.price(queue, args[1])
    else:
        extra, priority = args[1:]
        real.grant(args[0], queue.dispatched + priority + extra, queue.dispatched + priority)
        queue.allowance = queue.dispatched + priority + extra
        queue.priority = queue.dispatched + priority
    plain.settle(queue)


def check_rings(scheduler: Scheduler) -> None:
    """Each tenant is in the ring or heap that its row names, and in no other."""
    table, heads, state = scheduler._table, scheduler._heads, scheduler._state
    seen = {}
    for ring, head in enumerate(heads):
        tenant = head
        while tenant != kernels.NOBODY and tenant not in seen:
            seen[tenant] = ring
            assert table[table[tenant, kernels.NEXT], kernels.PREVIOUS] == tenant
            tenant = table[tenant, kernels.NEXT]
    for rest in (0, 1):
        heap = table[: state[kernels.SIZE + rest], kernels.HEAP + rest]
        tags = [(table[tenant, kernels.TAG], table[tenant, kernels.ORDER]) for tenant in heap]
        assert all(tags[(k - 1) // 2] <= tags[k] for k in range(1, len(tags)))
        assert table[heap, kernels.NEXT].tolist() == list(range(len(heap)))
        seen |= dict.fromkeys(heap, kernels.FIRST_HEAP + rest)
    named = {t: r for t, r in enumerate(table[:, kernels.RING]) if r != kernels.NOBODY}
    assert seen == named


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_backlogged_tenants_get_what_algorithm_1_as_printed_gives_them(data):
    """Same tokens, same backlog: the totals agree, and on the way no tenant is further from the
    paper's order than the turn a tenant may lose when it moves from one ring to the other."""
    count = data.draw(st.integers(1, 6))
    pending = data.draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))
    reserved = data.draw(st.lists(st.integers(0, 10), min_size=count, max_size=count))
    limited = data.draw(st.lists(st.integers(0, 10), min_size=count, max_size=count))
    real = Scheduler([1] * count)
    for i in range(count):
        real.grant(i, reserved[i] + limited[i], reserved[i])
        real.arrive(i, pending[i])
    paper = PaperAlgorithm(list(pending), list(reserved), list(limited))
    totals = np.zeros(count, dtype=int)
    for _ in range(sum(pending) + 1):
        chosen, printed = real.choose(), paper.choose()
        assert (chosen == -1) == (printed == -1)
        if printed >= 0:
            totals[printed] += 1
        assert np.abs(real.dispatched - totals).max() <= 2
    assert real.dispatched.tolist() == totals.tolist()


def test_equal_tenants_are_served_in_the_printed_order():
    real = Scheduler([1] * 5)
    for i in range(5):
        real.grant(i, 10, 4)
        real.arrive(i, 10)
    paper = PaperAlgorithm([10] * 5, [4] * 5, [6] * 5)
    assert [real.choose() for _ in range(50)] == [paper.choose() for _ in range(50)]


def test_priority_goes_first_and_nobody_else_is_served_meanwhile():
    s = Scheduler([1, 1])
    s.grant(0, UNBOUNDED, 0)
    s.grant(1, UNBOUNDED, 3)
    s.arrive(0, 5)
    s.arrive(1, 5)
    assert s.choose_many(10).tolist() == [1, 1, 1, 0, 1, 0, 1, 0, 0, 0]


def test_service_without_priority_counts_towards_the_reservation():
    s = Scheduler([1, 1])
    s.grant(0, 100, 0)
    s.arrive(0, 100)
    assert s.choose_many(10).tolist() == [0] * 10
    s.grant(0, 100, 12)
    s.grant(1, 100, 5)
    s.arrive(1, 100)
    assert s.priority_left.tolist() == [2, 5]
    assert s.choose_many(7).tolist().count(0) == 2


def test_a_grant_that_comes_twice_changes_nothing():
    s = Scheduler([1])
    s.arrive(0, 100)
    s.grant(0, 10, 5)
    assert len(s.choose_many(7)) == 7
    s.grant(0, 10, 5)
    assert len(s.choose_many(7)) == 3


def test_a_smaller_grant_stops_a_tenant_and_takes_nothing_back():
    s = Scheduler([1])
    s.arrive(0, 100)
    s.grant(0, 10)
    s.choose_many(8)
    s.grant(0, 5)
    assert s.choose() == -1
    assert s.dispatched.tolist() == [8]


def test_the_scheduler_does_not_idle_while_anyone_may_be_served():
    s = Scheduler([1, 1, 1])
    s.arrive(0, 3)
    s.arrive(1, 3)
    s.grant(0, 2, 2)
    s.grant(2, 100, 100)
    assert s.choose_many(9).tolist() == [0, 0]
    assert s.choose() == -1
    s.grant(1, 1)
    assert s.choose() == 1


def test_turns_follow_the_weights_in_both_rings():
    """Section V, local priorities."""
    s = Scheduler([1, 2, 5])
    for i in range(3):
        s.arrive(i, 10_000)
        s.grant(i, 5_000, 1_000)
    s.choose_many(800)
    assert s.dispatched.tolist() == [100, 200, 500]
    for i in range(3):
        s.grant(i, 5_000, 0)
    s.choose_many(800)
    assert s.dispatched.tolist() == [200, 400, 1_000]


def test_a_change_of_weight_counts_from_the_next_turn():
    s = Scheduler([1, 1])
    for i in range(2):
        s.arrive(i, 1000)
        s.grant(i, 1000)
    s.set_weight(1, 3)
    assert s.choose_many(8).tolist() == [0, 1, 1, 1, 0, 1, 1, 1]


def test_tenants_are_even_in_tokens_when_requests_cost_differently():
    s = Scheduler([1, 1, 2])
    costs = [1, 7, 3]
    for i, cost in enumerate(costs):
        s.arrive(i, 100_000)
        s.price(i, cost)
        s.grant(i, UNBOUNDED)
    s.choose_many(20_000)
    assert np.abs(s.dispatched / np.array([1, 1, 2]) - s.dispatched[0]).max() <= 2 * max(costs)


def test_a_large_request_keeps_its_place_when_periods_end():
    """Twenty tokens go in each; among equals it has its turn when as many went for the other."""
    s = Scheduler([1, 1])
    s.arrive(0, 10_000)
    s.price(1, 50)
    s.arrive(1, 1)
    went = []
    for _ in range(6):
        s.open_period()
        s.grant_many(np.arange(2), np.array([1000, 50]), np.zeros(2))
        went += s.choose_many(20).tolist()
    assert went.index(1) <= 51 and went.count(1) == 1


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    costs=st.lists(st.integers(1, 60), min_size=20, max_size=20),
    a_period=st.integers(5, 40),
)
def test_no_request_at_the_front_waits_past_the_bound(weights, costs, a_period):
    """Every tenant has a request waiting, of a cost of its own; a period ends every few requests."""
    s = Scheduler(weights)
    everyone = np.arange(len(weights))
    fronts, since, total = [0] * len(weights), [0] * len(weights), 0
    for tenant in everyone.tolist():
        fronts[tenant] = costs[tenant]
        s.price(tenant, costs[tenant])
        s.arrive(tenant, 100_000)
    for step in range(300):
        if step % a_period == 0:
            s.open_period()
            s.grant_many(everyone, np.full(len(weights), UNBOUNDED), np.zeros(len(weights)))
        chosen = s.choose()
        total += fronts[chosen]
        weight, others = weights[chosen], len(weights) - 1
        turns = max(fronts[chosen], weight) * sum(weights) / weight
        assert total - since[chosen] <= turns + max(costs) * others + sum(weights) - weight
        since[chosen], fronts[chosen] = total, costs[step % 20]
        s.price(chosen, fronts[chosen])


def test_what_a_large_request_took_beyond_the_reservation_is_taken_off_the_next_periods():
    s = Scheduler([1, 1])
    s.price(0, 40)
    s.arrive(0, 100)
    s.arrive(1, 10_000)
    firsts = []
    for _ in range(8):
        s.open_period()
        s.grant(0, UNBOUNDED, 10)
        s.grant(1, UNBOUNDED, 10)
        firsts.append(s.choose_many(11).tolist().count(0))
    assert firsts == [1, 0, 0, 0, 1, 0, 0, 0]


def test_a_request_goes_only_if_the_allowance_covers_it_whole():
    s = Scheduler([1])
    s.arrive(0, 10)
    s.price(0, 3)
    s.grant(0, 8, 1)
    assert s.choose_many(10).tolist() == [0, 0]
    assert s.dispatched.tolist() == [6]
    s.price(0, 2)
    assert s.choose() == 0
    assert s.dispatched.tolist() == [8]


def test_a_withdrawn_request_is_not_chosen():
    s = Scheduler([1])
    s.grant(0, 10)
    s.arrive(0, 2)
    s.withdraw(0)
    assert s.choose_many(5).tolist() == [0]
    with pytest.raises(UsageError, match="no waiting request"):
        s.withdraw(0)


def test_a_new_period_keeps_the_queue_and_nothing_else():
    s = Scheduler([1])
    s.grant(0, 10, 5)
    s.arrive(0, 20)
    s.choose_many(7)
    s.open_period()
    assert (s.pending[0], s.dispatched[0], s.allowance[0], s.priority[0]) == (13, 0, 0, 0)
    assert s.choose() == -1


def test_periods_do_not_favour_the_first_tenants():
    """Each period ends in the middle of a round; over many of them all are served alike."""
    s = Scheduler([1] * 10)
    everyone = np.arange(10)
    served = np.zeros(10, dtype=int)
    for i in range(10):
        s.arrive(i, 10_000)
    for _ in range(100):
        s.open_period()
        s.grant_many(everyone, np.full(10, 50), np.zeros(10))
        s.choose_many(13)
        served += s.dispatched
    assert served.max() - served.min() <= 1


def test_tenants_can_be_added_at_any_time():
    s = Scheduler()
    indices = [s.add(1 + i % 3) for i in range(100)]
    assert indices == list(range(100))
    for i in indices:
        s.arrive(i, 1)
        s.grant(i, 1)
    more = s.add()
    s.arrive(more, 1)
    s.grant(more, 1, 1)
    assert s.choose_many(200).tolist() == [100, *range(100)]
    check_rings(s)


@pytest.mark.parametrize("period_ns", [None, SECOND_NS])
@pytest.mark.parametrize("count", [10, 1_000, 100_000])
def test_a_choice_takes_as_many_steps_among_many_tenants_as_among_few(count, period_ns):
    """Counted in rows worked on: one for each choice, and at most the bounded number of
    releases where tenants are paced."""
    s = Scheduler([1] * count, period_ns=period_ns)
    everyone = np.arange(count)
    s.grant_many(everyone, np.full(count, 3), np.full(count, 1), np.full(count, 3), 0)
    only = everyone[:: max(1, count // 10)]
    for tenant in only:
        s.arrive(tenant, 3, 0)
    worst = 0
    served = 0
    for step in range(60):
        before = s.visits
        served += s.choose(step * SECOND_NS // 59) >= 0
        worst = max(worst, s.visits - before)
    assert served == 3 * only.size
    assert worst <= (1 if period_ns is None else 9)


# Pacing


def make_paced(limit: int, burst_ns: int = BURST_NS, priority: int = 0, now: int = 0) -> Scheduler:
    s = Scheduler([1], period_ns=SECOND_NS)
    s.set_burst(0, burst_ns)
    s.grant(0, limit, priority, limit, now)
    return s


def run_paced(
    s: Scheduler,
    periods: int,
    steps: int,
    limit: int,
    priority: int = 0,
    busy: tuple[float, float] = (0, 9e9),
) -> np.ndarray:
    """Times (in periods) at which a tenant with a long queue from `busy[0]` to `busy[1]` on is
    dispatched, served as soon as the scheduler allows."""
    times: list[float] = []
    for step in range(periods * steps):
        now = step * SECOND_NS // steps
        if step % steps == 0:
            s.open_period(now)
            s.grant(0, limit, priority, limit, now)
        waits = busy[0] <= step / steps < busy[1]
        if waits and s.pending[0] == 0:
            s.arrive(0, 10**6, now)
        while not waits and s.pending[0]:
            s.withdraw(0)
        times += [step / steps] * len(s.choose_many(10**5, now))
    return np.array(times)


def busiest_window(times: np.ndarray) -> int:
    return int((np.searchsorted(times, times + 1.0, side="left") - np.arange(times.size)).max())


@pytest.mark.parametrize("begins", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("priority", [0, 900])
def test_pacing_keeps_a_window_over_two_periods_near_the_limit(begins, priority):
    """The reserved part too: what comes first need not come all at once."""
    paced = run_paced(make_paced(1000), 3, 2000, 1000, priority, (begins, 9))
    assert busiest_window(paced) <= 1000 * 1.05 + 1
    plain = run_paced(Scheduler([1]), 3, 2000, 1000, priority, (begins, 9))
    assert busiest_window(plain) >= (1900 if begins else 1000)


def test_a_paced_tenant_that_waits_all_along_gets_its_whole_limit():
    times = run_paced(make_paced(1000), 4, 3000, 1000)
    assert np.bincount(times.astype(int)).min() >= 999
    assert busiest_window(times) <= 1051


@pytest.mark.parametrize("late_ns", [0, 30 * MILLISECOND_NS, 200 * MILLISECOND_NS])
def test_one_that_waited_for_others_or_for_its_tokens_catches_up_within_the_period(late_ns):
    s = make_paced(100, burst_ns=0)
    s.arrive(0, 1000, 0)
    assert len(s.choose_many(1000, late_ns)) == late_ns // (10 * MILLISECOND_NS) + 1
    s.open_period(SECOND_NS)
    s.grant(0, 0, 0, 1, SECOND_NS)
    assert s.choose(SECOND_NS + SECOND_NS // 4) == -1
    s.grant(0, 90, 90, 100, SECOND_NS + SECOND_NS // 2)
    assert len(s.choose_many(1000, SECOND_NS + SECOND_NS // 2)) >= 50


def test_one_that_had_nothing_to_send_saved_nothing_up():
    s = make_paced(100)
    assert [s.take(0, 1, 700 * MILLISECOND_NS) for _ in range(6)] == [0] * 5 + [None]
    assert s.take(0, 1, 710 * MILLISECOND_NS) == 0
    assert s.take(0, 1, 710 * MILLISECOND_NS) is None


def test_what_was_saved_up_by_waiting_does_not_outlast_the_period():
    s = make_paced(100)
    s.arrive(0, 1000, 0)
    s.open_period(SECOND_NS)
    s.grant(0, 100, 0, 100, SECOND_NS)
    assert len(s.choose_many(1000, SECOND_NS)) == 5


def test_five_a_minute_is_five_at_once_and_then_one_every_twelve_seconds():
    minute = 60 * SECOND_NS
    s = Scheduler([1], period_ns=minute)
    s.set_burst(0, minute)
    s.grant(0, 5, 0, 5, 0)
    assert [s.take(0, 1, 59 * SECOND_NS) for _ in range(6)] == [0] * 5 + [None]
    s.open_period(minute)
    s.grant(0, 5, 0, 5, minute)
    taken = [moment for moment in range(60, 120) if s.take(0, 1, moment * SECOND_NS) is not None]
    assert taken == [71, 83, 95, 107, 119]


def test_a_tenant_without_limit_is_not_paced():
    s = Scheduler([1], period_ns=SECOND_NS)
    s.arrive(0, 10_000, 0)
    s.grant(0, UNBOUNDED, now=0)
    assert len(s.choose_many(20_000, 0)) == 10_000


def test_a_request_larger_than_the_burst_goes_and_those_after_it_wait_for_it():
    s = make_paced(100)
    assert s.take(0, 50, 0) == 0
    assert s.find_due(0, 1) == 460 * MILLISECOND_NS
    assert s.take(0, 1, 459 * MILLISECOND_NS) is None
    assert s.take(0, 1, 460 * MILLISECOND_NS) == 0
    assert s.find_due(0, 50) == 510 * MILLISECOND_NS


def test_who_is_ahead_of_its_pace_is_as_many_tokens_ahead_of_the_next():
    """A server where a tenant had a small part of its tokens gets all of them: what it used at the
    old pace is not held against the new one."""
    s = make_paced(2, burst_ns=0)
    assert s.take(0, 1, 0) == 0
    s.grant(0, 400, 0, 400, 10 * MILLISECOND_NS)
    assert s.find_due(0) == 10 * MILLISECOND_NS + 2_450_000
    s.grant(0, 400, 0, 2, 10 * MILLISECOND_NS)
    assert s.find_due(0) == 500 * MILLISECOND_NS


def test_the_scheduler_says_when_a_paced_tenant_may_go_on():
    s = Scheduler([1, 1], period_ns=SECOND_NS)
    s.set_burst(0, BURST_NS)
    assert s.find_release() is None
    tenth = SECOND_NS // 10
    s.arrive(0, 1000, tenth)
    s.grant(0, 200, 0, 200, tenth)
    assert len(s.choose_many(1000, tenth)) == 10
    release = s.find_release()
    assert release is not None and s.find_due(0) <= release <= s.find_due(0) + SECOND_NS // 1000
    assert s.choose(release - 1_000_000) == -1
    assert s.choose(release) == 0
    s.grant(0, 11, 0, 200, release)
    assert s.choose(SECOND_NS) == -1
    assert s.find_release() is None
    assert Scheduler([1]).find_release() is None


@pytest.mark.parametrize("period_ns", [10 * MILLISECOND_NS, SECOND_NS, 86_400 * SECOND_NS])
def test_nobody_waits_much_longer_than_its_pace_asks_whatever_the_period(period_ns):
    """In a day too, of which a thousandth is more than a minute."""
    s = Scheduler([1], period_ns=period_ns)
    s.grant(0, 1000, 0, 1000, 0)
    s.arrive(0, 50, 0)
    now: int | None = 0
    went = looks = 0
    while went < 20:
        looks += 1
        assert now is not None and looks < 3000
        while s.choose(now) == 0:
            assert now - went * period_ns // 1000 <= MILLISECOND_NS * 1.1
            went += 1
        now = s.find_release()


# Tokens ahead, and tokens that come back


def test_tokens_ahead_are_what_allowance_and_burst_have_and_not_more():
    s = make_paced(100)
    assert s.take(0, 1, 0, more=2) == 2
    assert s.take(0, 1, 0, more=100) == 1, "the burst is five"
    assert s.take(0, 1, 0) is None
    assert s.dispatched.tolist() == [5]
    small = make_paced(3, burst_ns=SECOND_NS)
    assert small.take(0, 1, 0, more=100) == 2
    free = Scheduler([1], period_ns=SECOND_NS)
    free.grant(0, UNBOUNDED, now=0)
    assert free.take(0, 1, 0, more=100) == 100


def test_neither_a_request_nor_tokens_ahead_pass_the_ceiling():
    scheduler = Scheduler([1, 1])
    scheduler.grant(0, 100)
    scheduler.grant(1, 100)
    scheduler.cap(0, 5)
    assert scheduler.take(0, 2, more=10) == 3
    assert scheduler.take(0, 1) is None
    assert scheduler.take(1, 1, more=10) == 10, "another tenant's ceiling is its own"
    scheduler.cap(0, 8)
    assert scheduler.take(0, 4) is None
    assert scheduler.take(0, 3, more=10) == 0
    scheduler.open_period()
    scheduler.grant(0, 100)
    assert scheduler.take(0, 1, more=99) == 99, "a period begins without ceilings"


def test_what_comes_back_is_room_below_the_ceiling_again():
    scheduler = Scheduler([1])
    scheduler.grant(0, 100)
    scheduler.cap_many([5])
    assert scheduler.take(0, 1, more=10) == 4
    scheduler.give_back(0, 2)
    assert scheduler.take(0, 1, more=10) == 1
    assert scheduler.take(0, 1) is None


def test_one_who_waits_below_its_ceiling_is_found_and_goes_when_it_is_raised():
    scheduler = Scheduler([1, 1], period_ns=SECOND_NS)
    for tenant in range(2):
        scheduler.grant(tenant, 100, now=0)
        scheduler.arrive(tenant, 1, now=0)
    scheduler.price(0, 3)
    scheduler.cap_many([2, 0])
    assert scheduler.choose(0) == -1
    assert sorted(scheduler.find_short()) == [0, 1] and scheduler.front_cost(0) == 3
    scheduler.cap(0, 3)
    assert scheduler.find_short() == [1]
    assert scheduler.choose(0) == 0 and scheduler.choose(0) == -1


def test_tokens_that_come_back_undo_the_count_and_the_pace():
    s = make_paced(100)
    assert s.take(0, 1, 0, more=4) == 4
    s.give_back(0, 4, 0)
    assert s.dispatched.tolist() == [1]
    assert s.take(0, 1, 0, more=100) == 3


def test_tokens_that_come_back_bring_no_time_with_them():
    """A lot that was out while its tenant's burst was refilled: two bursts at once otherwise."""
    s = make_paced(100)
    assert s.take(0, 1, 0, more=4) == 4
    s.give_back(0, 4, SECOND_NS // 2)
    assert s.dispatched.tolist() == [1]
    assert s.take(0, 1, SECOND_NS // 2, more=100) == 4
    assert s.take(0, 1, SECOND_NS // 2) is None
    later = 9 * SECOND_NS // 10
    s.arrive(0, 20, later)
    s.give_back(0, 4, later)
    assert len(s.choose_many(20, later)) == 5, "not for those who wait either"


def test_whoever_waits_may_go_when_tokens_come_back():
    s = make_paced(5, burst_ns=SECOND_NS)
    assert s.take(0, 1, 0, more=4) == 4
    s.arrive(0, 2, 0)
    assert s.choose(0) == -1
    s.give_back(0, 1, 0)
    assert s.choose_many(5, 0).tolist() == [0]


@settings(max_examples=200, deadline=None)
@given(
    script=st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(0, 6), st.integers(0, 80)), max_size=60
    )
)
def test_whatever_is_taken_ahead_and_comes_back_a_window_shows_the_limit_and_a_burst(script):
    """Used: what was taken less what came back, by the time it was taken."""
    s = make_paced(100, burst_ns=100 * MILLISECOND_NS)
    used: list[list[int]] = []
    now = 0
    for cost, more, back, wait_ms in script:
        now += wait_ms * MILLISECOND_NS
        got = s.take(0, cost, now, more=more)
        if got is not None:
            used.append([now, cost + got])
        if used and back:
            gone = min(back, used[-1][1])
            used[-1][1] -= gone
            s.give_back(0, gone, now)
        assert s.dispatched[0] == sum(tokens for _, tokens in used) <= 100
    for first, (begins, _) in enumerate(used):
        for ends, _ in used[first:]:
            seen = sum(tokens for at, tokens in used if begins <= at <= ends)
            assert seen <= 10 + (ends - begins) / (10 * MILLISECOND_NS) + 1e-6


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.arrive(2),
        lambda s: s.arrive(-1),
        lambda s: s.arrive(0, -1),
        lambda s: s.grant(0, 3, 4),
        lambda s: s.grant(0, -1),
        lambda s: s.grant(0, UNBOUNDED + 1),
        lambda s: s.grant(0, 1, 0, -1),
        lambda s: s.price(0, 0),
        lambda s: s.price(0, COST_MAX + 1),
        lambda s: s.add(0),
        lambda s: s.add(1.5),
        lambda s: s.set_weight(0, 0),
        lambda s: s.grant_many(np.array([2]), np.array([1]), np.array([0])),
        lambda s: s.grant_many(np.array([0]), np.array([1]), np.array([2])),
        lambda s: s.grant_many(np.array([0, 1]), np.array([1]), np.array([0])),
        lambda s: Scheduler([0]),
        lambda s: s.give_back(0, -1),
        lambda s: s.set_burst(0, -1),
        lambda s: Scheduler([1], period_ns=0),
        lambda s: Scheduler([1], period_ns=SECOND_NS).choose(),
    ],
)
def test_bad_calls_say_what_to_pass(call):
    s = Scheduler([1, 1])
    with pytest.raises(UsageError):
        call(s)
    assert s.choose() == -1


def test_nobody_is_overtaken_at_once_but_those_who_wait_for_tokens_of_their_own():
    s = Scheduler([1, 1, 1], period_ns=SECOND_NS)
    for tenant, allowance in enumerate((10, 0, 10)):
        s.grant(tenant, allowance, 0, 100, 0)
    s.arrive(1, 3, 0)
    assert s.take(0, 1, 0) == 0, "the second has no tokens, and waits for no turn"
    s.arrive(2, 2, 0)
    assert s.take(0, 1, 0) is None, "the third could go"
    assert s.choose_many(5, 0).tolist() == [2]
    assert s.take(0, 1, 0) is None, "pacing holds it back"
    assert s.take(2, 1, SECOND_NS // 2) is None, "its own came first"
    assert s.take(0, 1, SECOND_NS // 2) is None, "by now the third could go again"
    assert s.choose(SECOND_NS // 2) == 2
    assert s.take(0, 1, SECOND_NS // 2) == 0
    assert (s.dispatched.tolist(), s.pending.tolist()) == ([2, 0, 2], [0, 3, 0])
    check_rings(s)


@settings(max_examples=100, deadline=None)
@given(
    period_ns=st.sampled_from((None, SECOND_NS)),
    script=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 40)), max_size=60),
)
def test_taking_at_once_is_arriving_and_being_chosen(period_ns, script):
    at_once, by_steps = (Scheduler([1, 2, 1], period_ns=period_ns) for _ in range(2))
    for scheduler in (at_once, by_steps):
        for tenant in range(3):
            scheduler.set_burst(tenant, BURST_NS)
            scheduler.grant(tenant, 20, 5 * tenant, 20, 0)
    now = 0
    for tenant, cost, wait in script:
        now += wait * MILLISECOND_NS
        by_steps.price(tenant, cost)
        by_steps.arrive(tenant, 1, now)
        chosen = by_steps.choose(now) == tenant
        if not chosen:
            by_steps.withdraw(tenant)
        assert (at_once.take(tenant, cost, now) == 0) == chosen
        for column in ("pending", "dispatched", "allowance"):
            assert np.array_equal(getattr(at_once, column), getattr(by_steps, column))


def test_a_number_that_changes_hands_leaves_those_who_wait_their_turn_alone() -> None:
    scheduler = Scheduler([1, 1, 1])
    for tenant in (1, 2):
        scheduler.grant(tenant, 100)
        scheduler.price(tenant, 5)  # more than its weight: in the heap
        scheduler.arrive(tenant)
    scheduler.reset(0)
    assert [scheduler.choose(), scheduler.choose(), scheduler.choose()] == [1, 2, -1]
