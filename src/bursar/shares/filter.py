"""A classful token bucket filter: which queued request may go next, and when.

The paper's section II-A, after Lustre's. Requests are matched against ordered *rules*; the
requests of one tenant under one rule form a *class* with its own queue (first come, first served)
and its own bucket, filled at the rule's rate. Classes wait in a heap for the moment at which their
bucket covers their first request, so that each decision costs O(log classes).

Requests that no rule matches wait in the *fallback* queue, which has no rate: idle threads serve
it, and a request that has waited for `patience_ns` goes before everything else, so that busy
classes cannot starve it.

An *eager* filter lets a thread that would otherwise idle take the request that is due next, ahead
of its time: whoever has demand keeps the target busy. The bucket is charged for it, down to one
depth below empty: using what nobody wanted does not cost a tenant its share later on. A filter
that is not eager is the paper's: it would rather idle.

Time is an argument everywhere, in nanoseconds; tokens are counted in billionths, so that
`rate * nanoseconds` is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Generic

from bursar.errors import UsageError
from bursar.shares.queues import Class, Fallback, ItemT, Request, Usage
from bursar.shares.rules import ANY, Rule, RuleTable
from bursar.world import MILLISECOND_NS, SECOND_NS

DEPTH_REQUESTS = 3
"""How many requests' worth of tokens a bucket holds, as in Lustre."""

PATIENCE_NS = 100 * MILLISECOND_NS
_HEAP_SLACK = 64


class Filter(Generic[ItemT]):
    """Requests in, requests out, in the order and at the rates that the rules say.

    Invariants: every request is in one queue, from `submit` until `take` or `withdraw`; a class is
    in the heap exactly once with its present version while its queue is not empty; a bucket
    never holds more than its size: `depth` requests like its first, and at least `size_min`
    tokens."""

    def __init__(
        self,
        depth: int = DEPTH_REQUESTS,
        *,
        size_min: int = 0,
        eager: bool = True,
        patience_ns: int = PATIENCE_NS,
    ) -> None:
        if depth < 1:
            raise UsageError(f"a bucket's depth is at least 1 request, not {depth!r}")
        self._depth = depth
        self.size_min = size_min
        self._eager = eager
        self._patience_ns = patience_ns
        self._rules = RuleTable()
        self._classes: dict[tuple[str, str], Class[ItemT]] = {}
        self._of_rule: dict[str, set[str]] = {}
        self._heap: list[tuple[int, int, int, int, Class[ItemT]]] = []
        self._pushed = 0
        self._waiting = 0
        self._fallback: Fallback[ItemT] = Fallback()
        self._fallback_at = 0
        self.usage: dict[str, Usage] = {}
        self.backlog = 0  # tokens of all that wait

    # Rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        """In the order in which they match."""
        return tuple(self._rules)

    def start(self, rule: Rule, now: int) -> None:
        """Add a rule. Requests that waited in the fallback queue and match it come under it."""
        self._rules.add(rule)
        self._of_rule[rule.name] = set()
        self._place_again(self._fallback.take_matching(rule), now)

    def change(self, name: str, now: int, *, rate: int | None = None, rank: int | None = None) -> None:
        """Change a rule's rate or rank while requests flow. What a bucket holds stays in it. A
        rank decides for requests that arrive from now on."""
        old = self._rules[name]
        rate = old.rate if rate is None else rate
        rank = old.rank if rank is None else rank
        if (rate, rank) == (old.rate, old.rank):
            return
        rule = replace(old, rate=rate, rank=rank)
        self._rules.replace(old, rule)
        for tenant in sorted(self._of_rule[name]):
            member = self._classes[name, tenant]
            member.count(now)
            member.rate = rule.rate
            if member.queue:
                self._push(member)

    def stop(self, name: str, now: int) -> None:
        """Remove a rule. Its waiting requests go where they would have gone without it."""
        self._rules.remove(self._rules[name])
        orphans: list[Request[ItemT]] = []
        for tenant in sorted(self._of_rule.pop(name)):
            member = self._classes.pop((name, tenant))
            member.version += 1
            if member.queue:
                self._waiting -= 1
            orphans += member.queue
        orphans.sort(key=lambda request: request.arrived_at)
        self._place_again(orphans, now)

    def match(self, tenant: str, operation: str) -> Rule | None:
        """The rule that such a request comes under."""
        return self._rules.match(tenant, operation)

    # Requests

    def submit(self, tenant: str, cost: int, item: ItemT, now: int, operation: str = ANY) -> Request[ItemT]:
        """Queue a request that costs `cost` tokens."""
        if cost < 1:
            raise UsageError(f"a request costs at least 1 token, not {cost!r}")
        request = Request(tenant, operation, cost, item, now)
        usage = self.usage.setdefault(tenant, Usage())
        usage.arrived += cost
        usage.backlog += cost
        self.backlog += cost
        self._place(request, now)
        return request

    def take(self, now: int, *, due_only: bool = False) -> Request[ItemT] | None:
        """The request to serve now, or None when no thread has anything to do before
        `next_at()`. `due_only` leaves alone what would go ahead of its time."""
        if self._fallback_is_impatient(now):
            return self._take_fallback(now)
        due = self._first_class()
        if due is not None and self._heap[0][0] <= now:
            return self._take_class(due, now)
        if self._fallback:
            return self._take_fallback(now)
        if due is not None and self._eager and not due_only:
            return self._take_class(due, now)
        return None

    def take_from(self, tenant: str, cost: int, now: int, operation: str = ANY) -> bool:
        """Serve a request at once that never queues: true if its class has the tokens and
        nobody of it waits, or if `take` would have let it go at once."""
        if cost < 1:
            raise UsageError(f"a request costs at least 1 token, not {cost!r}")
        usage = self.usage.setdefault(tenant, Usage())
        usage.arrived += cost
        if not self._charge(tenant, cost, now, operation):
            usage.refuse(cost)
            return False
        usage.served += cost
        return True

    def _charge(self, tenant: str, cost: int, now: int, operation: str) -> bool:
        rule = self._rules.match(tenant, operation)
        alone = not self._waiting and not self._fallback
        if rule is None:
            return alone
        member = self._class(rule, tenant, cost, now)
        if member.queue:
            return False
        self._measure(member, cost, now)
        if member.due_at(cost) > now and not (self._eager and alone):
            return False
        member.charge(cost)
        return True

    def take_ahead(self, tenant: str, tokens: int, now: int, operation: str = ANY) -> int:
        """Charge up to so many whole tokens that a bucket holds, for requests to come; all of them
        where no rule matches. It is no demand until `observe` says that requests came for them."""
        rule = self._rules.match(tenant, operation)
        if rule is None:
            return tokens
        member = self._class(rule, tenant, 1, now)
        member.count(now)
        tokens = min(tokens, max(0, member.tokens) // SECOND_NS)
        member.charge(tokens)
        return tokens

    def give_back(self, tenant: str, tokens: int, now: int, operation: str = ANY) -> None:
        """Put tokens back that were charged and not used."""
        rule = self._rules.match(tenant, operation)
        member = None if rule is None else self._classes.get((rule.name, tenant))
        if member is None:
            return
        member.count(now)
        member.tokens = min(member.size * SECOND_NS, member.tokens + tokens * SECOND_NS)
        if member.queue:
            self._push(member)

    def refuse(self, tenant: str, cost: int) -> None:
        """Count a request that was turned away before it came here: it is demand too."""
        usage = self.usage.setdefault(tenant, Usage())
        usage.arrived += cost
        usage.refuse(cost)

    def observe(self, tenant: str, arrived: int, refused: int) -> None:
        """Count requests that were served from tokens charged before, and requests that were turned
        away where those were held: of these, how large each was is not known."""
        usage = self.usage.setdefault(tenant, Usage())
        usage.arrived += arrived + refused
        usage.served += arrived
        if refused:
            usage.refused += refused
            usage.refused_most = max(usage.refused_most, 1)

    def forget(self, tenant: str, tokens: int) -> None:
        """Count tokens no longer that were served and came back unused, since the last `collect`."""
        usage = self.usage.get(tenant)
        if usage is not None:
            gone = min(tokens, usage.served)
            usage.arrived -= gone
            usage.served -= gone

    def withdraw(self, request: Request[ItemT], now: int) -> bool:
        """Take a request back that was not served yet; false if it was."""
        if not request.queued:
            return False
        request.queued = False
        usage = self.usage[request.tenant]
        usage.backlog -= request.cost
        self.backlog -= request.cost
        usage.refuse(request.cost)
        member = request.home
        if member is None:
            self._fallback.remove(request)
        elif member.queue[0] is request:
            self._trim(member.queue)
            self._requeue(member, now)
        return True

    def next_at(self) -> int | None:
        """When `take` will have something at the latest, if nothing else arrives; None: never."""
        due = self._first_class()
        if self._fallback:
            return self._fallback.head.arrived_at
        return None if due is None else self._heap[0][0]

    def __len__(self) -> int:
        """How many classes and fallback requests wait."""
        return self._waiting + len(self._fallback)

    # Statistics

    def collect(self) -> dict[str, Usage]:
        """What each tenant did since the last call; tenants that did nothing are left out."""
        seen = self.usage
        self.usage = {tenant: Usage(backlog=usage.backlog) for tenant, usage in seen.items() if usage.backlog}
        return {tenant: usage for tenant, usage in seen.items() if usage.demand}

    # Inside

    def _class(self, rule: Rule, tenant: str, cost: int, now: int) -> Class[ItemT]:
        key = (rule.name, tenant)
        member = self._classes.get(key)
        if member is None:
            size = max(self.size_min, self._depth * cost)
            member = self._classes[key] = Class(key, rule.rate, size, now)
            self._of_rule[rule.name].add(tenant)
        return member

    def _place(self, request: Request[ItemT], now: int) -> None:
        rule = self._rules.match(request.tenant, request.operation)
        if rule is None:
            self._fallback.add(request)
            return
        member = request.home = self._class(rule, request.tenant, request.cost, now)
        member.queue.append(request)
        if len(member.queue) == 1:
            self._waiting += 1
            self._measure(member, request.cost, now)
            self._push(member)

    def _place_again(self, requests: Iterable[Request[ItemT]], now: int) -> None:
        for request in requests:
            if request.queued:
                self._place(request, now)

    def _push(self, member: Class[ItemT]) -> None:
        member.version += 1
        self._pushed += 1
        rule = self._rules[member.key[0]]
        due_at = member.due_at(member.queue[0].cost)
        heappush(self._heap, (due_at, rule.rank, self._pushed, member.version, member))
        if len(self._heap) > 2 * self._waiting + _HEAP_SLACK:
            self._heap = [entry for entry in self._heap if entry[3] == entry[4].version and entry[4].queue]
            heapify(self._heap)

    def _first_class(self) -> Class[ItemT] | None:
        """The class that is due first, with entries of the past out of the way."""
        while self._heap:
            entry = self._heap[0]
            if entry[3] == entry[4].version and entry[4].queue:
                return entry[4]
            heappop(self._heap)
        return None

    def _take_class(self, member: Class[ItemT], now: int) -> Request[ItemT]:
        heappop(self._heap)
        request = member.queue.popleft()
        member.count(now)
        member.charge(request.cost)
        self._trim(member.queue)
        self._requeue(member, now)
        return self._serve(request)

    def _requeue(self, member: Class[ItemT], now: int) -> None:
        member.version += 1
        if member.queue:
            self._measure(member, member.queue[0].cost, now)
            self._push(member)
        else:
            self._waiting -= 1

    def _measure(self, member: Class[ItemT], cost: int, now: int) -> None:
        """The first request of a class says how much its bucket holds."""
        member.size = max(self.size_min, self._depth * cost)
        member.count(now)

    def _fallback_is_impatient(self, now: int) -> bool:
        if not self._fallback:
            return False
        since = max(self._fallback.head.arrived_at, self._fallback_at)
        return now - since >= self._patience_ns

    def _take_fallback(self, now: int) -> Request[ItemT]:
        request = self._fallback.head
        self._fallback.remove(request)
        self._fallback_at = now
        return self._serve(request)

    def _serve(self, request: Request[ItemT]) -> Request[ItemT]:
        request.queued = False
        usage = self.usage[request.tenant]
        usage.served += request.cost
        usage.backlog -= request.cost
        self.backlog -= request.cost
        return request

    @staticmethod
    def _trim(queue: deque[Request[ItemT]]) -> None:
        """Drop withdrawn requests from the head, so that the head is always a live one."""
        while queue and not queue[0].queued:
            queue.popleft()
