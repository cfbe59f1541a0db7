"""The token scheduler against a plain reading of algorithm 1 (section II-A) and section V."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.errors import UsageError
from bursar.rates.scheduler import BURST_DEFAULT, COST_MAX, UNBOUNDED, Scheduler, kernels


@dataclass
class Queue:
    weight: int
    waiting: int = 0
    cost: int = 1
    dispatched: int = 0
    allowance: int = 0
    priority: int = 0
    credit: int = 0
    since: int = 0
    step: int = 0  # 1: has priority tokens, 2: under its allowance, 0: not eligible


class Reference:
    """Algorithm 1 by searching all queues: of the eligible ones the first in turn. A queue's
    place in the turns is the moment it became eligible or last finished a turn."""

    def __init__(self, weights: list[int]) -> None:
        self.queues = [Queue(weight) for weight in weights]
        self.moment = 0
        self.quantum = 1

    def settle(self, queue: Queue) -> None:
        fits = queue.waiting > 0 and queue.dispatched + queue.cost <= queue.allowance
        step = 0 if not fits else (1 if queue.dispatched < queue.priority else 2)
        if step != queue.step:
            queue.step = step
            queue.credit = 0
            self.send_to_the_end(queue)

    def send_to_the_end(self, queue: Queue) -> None:
        self.moment += 1
        queue.since = self.moment

    def choose(self) -> int:
        for step in (1, 2):
            eligible = [q for q in self.queues if q.step == step]
            if eligible:
                queue = min(eligible, key=lambda q: q.since)
                self.serve(queue)
                return self.queues.index(queue)
        return -1

    def serve(self, queue: Queue) -> None:
        if queue.credit < queue.cost:
            queue.credit += queue.weight * self.quantum
        queue.credit -= queue.cost
        queue.waiting -= 1
        queue.dispatched += queue.cost
        before = queue.since
        self.settle(queue)
        if queue.since == before and queue.credit < queue.cost:
            self.send_to_the_end(queue)

    def open_period(self) -> None:
        for queue in self.queues:
            queue.dispatched = queue.allowance = queue.priority = queue.credit = 0
            queue.step = 0
        self.quantum = max(1, *(queue.cost for queue in self.queues))


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
    st.tuples(st.just("price"), tenants, st.integers(1, 4)),
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
        queue.waiting += args[1]
    elif name == "withdraw":
        if queue.waiting == 0:
            return
        real.withdraw(*args)
        queue.waiting -= 1
    elif name == "price":
        real.price(*args)
        queue.cost = args[1]
        plain.quantum = max(plain.quantum, args[1])
    else:
        extra, priority = args[1:]
        real.grant(args[0], queue.dispatched + priority + extra, queue.dispatched + priority)
        queue.allowance = queue.dispatched + priority + extra
        queue.priority = queue.dispatched + priority
    plain.settle(queue)


def check_rings(scheduler: Scheduler) -> None:
    """Each tenant is in the ring its row names, and in no other."""
    table, heads = scheduler._table, scheduler._heads
    seen = {}
    for ring, head in enumerate(heads):
        tenant = head
        while tenant != kernels.NOBODY and tenant not in seen:
            seen[tenant] = ring
            assert table[table[tenant, kernels.NEXT], kernels.PREVIOUS] == tenant
            tenant = table[tenant, kernels.NEXT]
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


@pytest.mark.parametrize("burst", [None, BURST_DEFAULT])
@pytest.mark.parametrize("count", [10, 1_000, 100_000])
def test_a_choice_takes_as_many_steps_among_many_tenants_as_among_few(count, burst):
    """Counted in rows worked on: one for each choice, and at most the bounded number of
    releases where tenants are paced."""
    s = Scheduler([1] * count, burst=burst)
    everyone = np.arange(count)
    s.grant_many(everyone, np.full(count, 3), np.full(count, 1))
    only = everyone[:: max(1, count // 10)]
    for tenant in only:
        s.arrive(tenant, 3)
    worst = 0
    served = 0
    for step in range(60):
        before = s.visits
        served += s.choose(step / 59) >= 0
        worst = max(worst, s.visits - before)
    assert served == 3 * only.size
    assert worst <= (1 if burst is None else 9)


# Pacing


def run_paced(s: Scheduler, periods: int, steps: int, allowance: int, priority: int, idle_until: float = 0.0):
    """Times (in periods) at which a tenant with a long queue is dispatched, served as soon as
    the scheduler allows."""
    times = []
    for period in range(periods):
        s.open_period()
        s.grant(0, allowance, priority)
        for step in range(steps):
            now = step / steps
            if period == 0 and now < idle_until:
                continue
            if s.pending[0] == 0:
                s.arrive(0, 10**6)
            times += [period + now] * len(s.choose_many(10**5, now))
    return np.array(times)


def busiest_window(times: np.ndarray) -> int:
    return int((np.searchsorted(times, times + 1.0, side="left") - np.arange(times.size)).max())


@pytest.mark.parametrize("idle_until", [0.0, 0.5, 0.95])
def test_pacing_keeps_a_window_over_two_periods_near_the_limit(idle_until):
    paced = run_paced(Scheduler([1], burst=0.05), 3, 2000, 1000, 0, idle_until)
    assert busiest_window(paced) <= 1000 * 1.05 + 1
    plain = run_paced(Scheduler([1]), 3, 2000, 1000, 0, idle_until)
    assert busiest_window(plain) >= (1900 if idle_until else 1000)


def test_a_paced_tenant_that_waits_all_along_gets_its_whole_limit():
    s = Scheduler([1], burst=0.05)
    times = run_paced(s, 4, 3000, 1000, 0)
    assert np.bincount(times.astype(int)).min() >= 990
    assert busiest_window(times) <= 1051


def test_pacing_does_not_hold_back_the_reservation():
    """Tokens that come late in the period, with priority, are all spent in what is left of it."""
    s = Scheduler([1], burst=0.05)
    s.arrive(0, 2000)
    s.grant(0, 10)
    s.choose_many(100, 0.9)
    s.grant(0, 1000, 800)
    assert len(s.choose_many(2000, 0.95)) >= 790
    assert s.priority_left.tolist() == [0]


def test_priority_is_charged_to_the_pace():
    """Having spent its reservation at once, a tenant waits until its pace has caught up, so that
    a steady tenant shows its limit in every window."""
    s = Scheduler([1], burst=0.05)
    times = run_paced(s, 4, 2000, 1000, 500)
    assert (times < 0.4).sum() == 500
    assert busiest_window(times) <= 1051


def test_a_tenant_without_limit_is_not_paced():
    s = Scheduler([1], burst=0.05)
    s.arrive(0, 10_000)
    s.grant(0, UNBOUNDED)
    assert len(s.choose_many(20_000, 0.0)) == 10_000


def test_a_pace_of_its_own_lets_a_small_allowance_go_at_once():
    s = Scheduler([1], burst=0.05)
    s.arrive(0, 100)
    s.grant(0, 20, 0, 10_000)
    assert len(s.choose_many(100, 0.0)) == 20


def test_the_scheduler_says_when_a_paced_tenant_may_go_on():
    s = Scheduler([1, 1], burst=0.05)
    assert s.find_release() is None
    s.arrive(0, 1000)
    s.grant(0, 200)
    assert len(s.choose_many(1000, 0.1)) == 10
    release = s.find_release()
    assert release is not None and 0.1 < release < 0.11
    assert s.choose(release - 0.0001) == -1
    assert s.choose(release) == 0
    s.grant(0, 11)
    assert s.choose(1.0) == -1
    assert s.find_release() is None
    assert Scheduler([1]).find_release() is None


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
        lambda s: Scheduler([1], burst=2.0),
        lambda s: Scheduler([1], burst=BURST_DEFAULT).choose(),
    ],
)
def test_bad_calls_say_what_to_pass(call):
    s = Scheduler([1, 1])
    with pytest.raises(UsageError):
        call(s)
    assert s.choose() == -1


@settings(max_examples=100, deadline=None)
@given(
    burst=st.sampled_from((None, BURST_DEFAULT)),
    script=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 40)), max_size=60),
)
def test_taking_at_once_is_arriving_and_being_chosen(burst, script):
    at_once, by_steps = (Scheduler([1, 2, 1], burst=burst) for _ in range(2))
    for scheduler in (at_once, by_steps):
        for tenant in range(3):
            scheduler.grant(tenant, 20, 5 * tenant)
    moment = 0.0
    for tenant, cost, wait in script:
        moment = min(1.0, moment + wait / 1000)
        by_steps.price(tenant, cost)
        by_steps.arrive(tenant)
        chosen = by_steps.choose(moment) == tenant
        if not chosen:
            by_steps.withdraw(tenant)
        assert at_once.take(tenant, cost, moment) == chosen
        for column in ("pending", "dispatched", "allowance"):
            assert np.array_equal(getattr(at_once, column), getattr(by_steps, column))
