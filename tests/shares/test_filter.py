"""The token bucket filter (section II-A of the paper): rules, classes, deadlines, fallback."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bursar.errors import UsageError
from bursar.shares.filter import Filter
from bursar.shares.rules import Rule
from bursar.world import MILLISECOND_NS, SECOND_NS


def serve(filter, until, start=0, step=MILLISECOND_NS):
    """Every request the filter lets go from `start` to `until`, asked each step."""
    served = []
    for now in range(start, until, step):
        while (request := filter.take(now)) is not None:
            served.append((now, request))
    return served


def queue(filter, tenant, count, now=0, cost=1, operation="*"):
    for number in range(count):
        filter.submit(tenant, cost, number, now, operation)


def test_a_class_is_held_to_its_rate_after_a_burst_of_its_depth():
    strict = Filter(depth=3, eager=False)
    strict.start(Rule("a", 10, "a"), 0)
    queue(strict, "a", 100)
    served = serve(strict, SECOND_NS + 1)
    assert [now for now, _ in served[:3]] == [0, 0, 0]
    assert len(served) == 3 + 10
    assert [request.item for _, request in served] == list(range(13)), "first come, first served"


def test_idle_tokens_beyond_the_depth_are_lost():
    strict = Filter(depth=3, eager=False)
    strict.start(Rule("a", 1000, "a"), 0)
    queue(strict, "a", 1)
    assert strict.take(0) is not None
    queue(strict, "a", 50, now=SECOND_NS)
    taken = 0
    while strict.take(SECOND_NS) is not None:
        taken += 1
    assert taken == 3


def test_the_nearest_deadline_goes_first():
    strict = Filter(depth=1, eager=False)
    strict.start(Rule("slow", 10, "slow"), 0)
    strict.start(Rule("fast", 30, "fast"), 0)
    queue(strict, "slow", 100)
    queue(strict, "fast", 100)
    served = [request.tenant for _, request in serve(strict, SECOND_NS)]
    assert served.count("fast") / served.count("slow") == pytest.approx(3, rel=0.1)


def test_an_eager_filter_keeps_idle_threads_busy_in_proportion():
    eager = Filter(depth=1)
    eager.start(Rule("a", 10, "a"), 0)
    eager.start(Rule("b", 30, "b"), 0)
    queue(eager, "a", 1000)
    queue(eager, "b", 1000)
    served = []
    for now in range(0, 10 * SECOND_NS, 25 * MILLISECOND_NS):  # a thread that does 40 a second
        served.append(eager.take(now).tenant)
    assert served.count("b") / served.count("a") == pytest.approx(3, rel=0.05)
    strict = Filter(depth=1, eager=False)
    strict.start(Rule("a", 1, "a"), 0)
    queue(strict, "a", 2)
    assert strict.take(0) and strict.take(0) is None


def test_what_idle_threads_served_costs_no_tenant_its_share_later():
    eager = Filter(depth=3)
    eager.start(Rule("a", 10, "a"), 0)
    eager.start(Rule("b", 10, "b"), 0)
    queue(eager, "a", 3000)
    for now in range(0, 10 * SECOND_NS, 10 * MILLISECOND_NS):  # alone at ten times its rate
        assert eager.take(now).tenant == "a"
    queue(eager, "b", 1000, now=10 * SECOND_NS)
    served = []
    for now in range(10 * SECOND_NS, 15 * SECOND_NS, 50 * MILLISECOND_NS):
        served.append(eager.take(now).tenant)
    assert served.count("a") >= 40, "no more than two depths behind"


def test_the_fallback_queue_is_served_by_idle_threads_and_never_starves():
    busy = Filter(depth=3, patience_ns=100 * MILLISECOND_NS)
    busy.start(Rule("a", 10**6, "a"), 0)
    queue(busy, "a", 10_000)
    queue(busy, "stranger", 5)
    waits = []
    for now in range(0, SECOND_NS, MILLISECOND_NS):
        request = busy.take(now)
        if request.tenant == "stranger":
            waits.append(now)
    assert len(waits) == 5
    assert waits[0] == 100 * MILLISECOND_NS
    assert waits == sorted(waits)


def test_the_fallback_queue_has_no_rate():
    idle = Filter(eager=False)
    queue(idle, "stranger", 1000)
    assert len(serve(idle, 1)) == 1000


def test_a_started_rule_takes_over_the_waiting_requests_that_match_it():
    strict = Filter(depth=1, eager=False)
    queue(strict, "a", 5)
    queue(strict, "b", 2)
    strict.start(Rule("a", 1, "a"), 0)
    served = [request.tenant for _, request in serve(strict, 1)]
    assert served == ["a", "b", "b"]


def test_a_stopped_rule_hands_its_requests_to_the_next_rule_or_the_fallback():
    strict = Filter(depth=1, eager=False)
    strict.start(Rule("all", 1, "*", rank=9), 0)
    strict.start(Rule("a", 1, "a"), 0)
    queue(strict, "a", 4)
    strict.stop("a", 0)
    assert len(serve(strict, 1)) == 1, "held back by the wildcard rule now"
    strict.stop("all", 0)
    assert [request.item for _, request in serve(strict, 1)] == [1, 2, 3]


def test_a_rate_changes_while_requests_wait():
    strict = Filter(depth=1, eager=False)
    strict.start(Rule("a", 1, "a"), 0)
    queue(strict, "a", 1000)
    serve(strict, 1)
    strict.change("a", 0, rate=100)
    assert len(serve(strict, SECOND_NS + 1, start=1)) == pytest.approx(100, abs=1)


def test_rules_match_by_rank_then_age():
    some = Filter()
    some.start(Rule("any", 1, "*", rank=5), 0)
    some.start(Rule("batch", 1, "batch.*", rank=3), 0)
    some.start(Rule("reads", 1, "batch.7", "read", rank=4), 0)
    assert some.match("batch.7", "read").name == "batch"
    assert some.match("other", "read").name == "any"
    some.change("batch", 0, rank=6)
    assert some.match("batch.7", "read").name == "reads"
    assert some.match("batch.7", "write").name == "any"
    assert [rule.name for rule in some.rules] == ["reads", "any", "batch"]


def test_each_tenant_of_a_wildcard_rule_has_its_own_bucket():
    strict = Filter(depth=1, eager=False)
    strict.start(Rule("all", 1, "*"), 0)
    queue(strict, "a", 5)
    queue(strict, "b", 5)
    assert [request.tenant for _, request in serve(strict, 1)] == ["a", "b"]


@pytest.mark.parametrize("cost", [4096, 1_048_576])
def test_a_bucket_holds_three_requests_whatever_they_cost(cost):
    strict = Filter(eager=False)
    strict.start(Rule("a", 10 * cost, "a"), 0)
    queue(strict, "a", 30, cost=cost)
    served = [now for now, _ in serve(strict, SECOND_NS + 1)]
    assert served[:3] == [0, 0, 0] and len(served) == 13


def test_a_withdrawn_request_is_never_served_and_is_no_demand():
    strict = Filter(depth=1, eager=False)
    strict.start(Rule("a", 1, "a"), 0)
    requests = [strict.submit("a", 1, number, 0) for number in range(4)]
    stranger = strict.submit("x", 1, 9, 0)
    assert strict.withdraw(requests[0], 0) and strict.withdraw(requests[2], 0)
    assert strict.withdraw(stranger, 0) and not strict.withdraw(stranger, 0)
    assert [request.item for _, request in serve(strict, 3 * SECOND_NS)] == [1, 3]
    usage = strict.usage["a"]
    assert (usage.served, usage.backlog, usage.refused) == (2, 0, 2)
    assert strict.collect()["a"] == 4


def test_tokens_given_back_bring_forward_what_waits_for_them():
    strict = Filter(depth=2, eager=False)
    strict.start(Rule("a", 1, "a"), 0)
    assert strict.take_from("a", 2, 0) and strict.take_from("a", 2, 0)
    queue(strict, "a", 1, cost=2)
    assert strict.next_at() == 2 * SECOND_NS
    strict.give_back("a", 2, 0)
    assert strict.next_at() == 0 and strict.take(0) is not None


def test_refused_requests_are_demand_but_asking_in_a_loop_is_not_more_of_it():
    strict = Filter(depth=2, eager=False)
    strict.start(Rule("a", 1, "a"), 0)
    taken = [strict.take_from("a", 1, 0) for _ in range(1000)]
    assert taken == [True, True] + [False] * 998
    assert strict.collect()["a"] == 2 + 3


def test_demand_is_what_was_served_and_what_waits():
    strict = Filter(depth=1, eager=False)
    strict.start(Rule("a", 1, "a"), 0)
    queue(strict, "a", 5, cost=2)
    serve(strict, 2 * SECOND_NS)
    usage = strict.usage["a"]
    assert (usage.served, usage.backlog) == (2, 8)
    assert strict.collect() == {"a": 10}
    assert strict.collect() == {"a": 8}
    strict.stop("a", 2 * SECOND_NS)
    serve(strict, 1)
    strict.collect()
    assert strict.collect() == {}


def test_the_heap_stays_in_proportion_to_the_waiting_classes():
    """What O(log n) rests on: entries of the past do not pile up, however often rates change."""
    crowd = Filter()
    for number in range(500):
        crowd.start(Rule(f"r{number}", 1 + number % 7, f"t{number}"), 0)
        crowd.submit(f"t{number}", 1, number, 0)
    for change in range(20):
        for number in range(500):
            crowd.change(f"r{number}", change, rate=1 + change)
        assert len(crowd._heap) <= 2 * 500 + 64
    assert len(serve(crowd, 1)) == 500


@pytest.mark.parametrize(
    "build",
    [lambda: Rule("a", 0), lambda: Rule("a", -1), lambda: Rule("a", 1, "*x"), lambda: Filter(depth=0)],
)
def test_nonsense_is_refused(build):
    with pytest.raises(UsageError):
        build()


def test_unknown_and_double_rules_are_refused():
    some = Filter()
    some.start(Rule("a", 1), 0)
    with pytest.raises(UsageError, match="runs already"):
        some.start(Rule("a", 1), 0)
    with pytest.raises(UsageError, match="no rule"):
        some.stop("b", 0)
    with pytest.raises(UsageError, match="at least 1"):
        some.submit("a", 0, None, 0)


def test_holding_all_at_once_is_what_a_rule_for_each_would_be():
    """The plain reference of `hold`: rules started, changed and stopped one by one."""
    chance = random.Random(7)
    tenants = [f"t{number}" for number in range(12)]
    held, plain = Filter(depth=2, eager=False), Filter(depth=2, eager=False)
    rules = set()
    for interval in range(60):
        now = interval * 100 * MILLISECOND_NS
        # Distinct ranks: of two that are due at one moment it is known which goes first.
        ranks = {tenant: rank for rank, tenant in enumerate(chance.sample(tenants, chance.randrange(12)))}
        rates = {tenant: chance.randrange(1, 60) for tenant in ranks}
        held.hold(list(ranks), list(rates.values()), list(ranks.values()), now)
        for tenant in sorted(rules - ranks.keys()):
            plain.stop(tenant, now)
        for tenant, rank in ranks.items():
            if tenant in rules:
                plain.change(tenant, now, rate=rates[tenant], rank=rank)
            else:
                plain.start(Rule(tenant, rates[tenant], tenant, rank=rank), now)
        rules = set(ranks)
        for tenant in chance.choices(tenants, k=20):
            cost = chance.randrange(1, 5)
            held.submit(tenant, cost, 0, now)
            plain.submit(tenant, cost, 0, now)
        then = now + 100 * MILLISECOND_NS
        # In which order they leave the fallback queue depends on which rule was stopped first.
        assert sorted((at, request.tenant) for at, request in serve(held, then, now)) == sorted(
            (at, request.tenant) for at, request in serve(plain, then, now)
        )
        assert held.collect() == plain.collect()


class Anything(RuleBasedStateMachine):
    """Rules come and go while requests flow: each request is served exactly once, in order
    within its tenant and operation, and no rate is exceeded."""

    def __init__(self):
        super().__init__()
        self.filter = Filter(depth=2, eager=False)
        self.now = 0
        self.number = 0
        self.waiting = {}
        self.rates = {}

    @rule(tenant=st.sampled_from("abc"), cost=st.integers(1, 5), operation=st.sampled_from(["read", "write"]))
    def submit(self, tenant, cost, operation):
        self.number += 1
        self.waiting[self.number] = self.filter.submit(tenant, cost, self.number, self.now, operation)

    @rule(
        name=st.sampled_from("xyz"),
        rate=st.integers(1, 50),
        tenant=st.sampled_from(["a", "b", "*"]),
        operation=st.sampled_from(["*", "read"]),
        rank=st.integers(0, 3),
    )
    def start_or_change(self, name, rate, tenant, operation, rank):
        if name in self.rates:
            self.filter.change(name, self.now, rate=rate, rank=rank)
        else:
            self.filter.start(Rule(name, rate, tenant, operation, rank), self.now)
        self.rates[name] = rate

    @precondition(lambda self: self.rates)
    @rule()
    def stop(self):
        name = sorted(self.rates)[0]
        del self.rates[name]
        self.filter.stop(name, self.now)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 50))
    def withdraw(self, which):
        number = sorted(self.waiting)[which % len(self.waiting)]
        assert self.filter.withdraw(self.waiting.pop(number), self.now)

    @rule(passed=st.integers(0, 3 * SECOND_NS))
    def serve(self, passed):
        self.now += passed
        while (request := self.filter.take(self.now)) is not None:
            assert self.waiting.pop(request.item) is request

    @invariant()
    def backlog_is_what_waits(self):
        backlog = sum(usage.backlog for usage in self.filter.usage.values())
        assert backlog == sum(request.cost for request in self.waiting.values())
        assert (len(self.filter) > 0) == bool(self.waiting)

    def teardown(self):
        for _ in range(200):
            self.serve(5 * SECOND_NS)
        assert not self.waiting, "everything is served in the end"


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
