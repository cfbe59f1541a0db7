"""A classful token bucket filter: which queued request may go next, and when.

The paper's section II-A, after Lustre's. Requests are matched against ordered *rules*; the
requests of one tenant under one rule form a *class* with its own queue (first come, first served)
and its own bucket, filled at the rule's rate. Classes wait in a heap for the moment at which their
bucket covers their first request, so that each decision costs O(log classes).

A tenant may also be *held* to a rate of its own (`hold`), as the target's loop does with all of a handout
at once: that comes before every rule, whatever the operation.

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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Generic

import numpy as np

from bursar.errors import UsageError
from bursar.shares.borrowing import TOKENS_MAX
from bursar.shares.handout import Demands
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
        self._held: dict[str, Class[ItemT]] = {}
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
            member.rate, member.rank = rule.rate, rule.rank
            if member.queue:
                self._push(member)

    def stop(self, name: str, now: int) -> None:
        """Remove a rule. Its waiting requests go where they would have gone without it."""
        self._rules.remove(self._rules[name])
        orphans: list[Request[ItemT]] = []
        for tenant in sorted(self._of_rule.pop(name)):
            orphans += self._dissolve(self._classes.pop((name, tenant)))
        orphans.sort(key=lambda request: request.arrived_at)
        self._place_again(orphans, now)

    def hold(self, tenants: Sequence[str], rates: Sequence[int], ranks: Sequence[int], now: int) -> None:
        """Hold each of these tenants to a rate of its own, before any rule, and nobody else. What a
        bucket holds stays in it; who is held no longer goes where it would have gone without."""
        before, entries, came = self._held, [], 0
        held: dict[str, Class[ItemT]] = {}
        pushed = self._pushed
        # Written out, since it is done for every tenant in every interval: `count`, and `_push`.
        for tenant, rate, rank in zip(tenants, rates, ranks, strict=True):
            member = before.get(tenant)
            if member is None:
                came += 1
                held[tenant] = Class(rate, rank, 0, now)
                continue
            held[tenant] = member
            if rate == member.rate and rank == member.rank:
                continue
            passed_ns = now - member.counted_at
            if passed_ns > 0:
                tokens, most = member.tokens + member.rate * passed_ns, member.size * SECOND_NS
                member.tokens = most if tokens > most else tokens
                member.counted_at = now
            member.rate, member.rank = rate, rank
            if member.queue:
                pushed += 1
                version = member.version = member.version + 1
                missing = member.queue[0].cost * SECOND_NS - member.tokens
                due_at = member.counted_at - (-missing // rate) if missing > 0 else member.counted_at
                entries.append((due_at, rank, pushed, version, member))
        self._pushed = pushed
        self._held = held
        if entries:
            self._rebuild(entries)
        if len(held) - came < len(before):
            self._release([tenant for tenant in before if tenant not in held], before, now)
        if self._fallback and came:
            self._take_in([tenant for tenant in tenants if tenant not in before], now)

    def rate_of(self, tenant: str) -> int | None:
        """What it is held to, if it is."""
        member = self._held.get(tenant)
        return None if member is None else member.rate

    def _release(self, tenants: list[str], before: dict[str, Class[ItemT]], now: int) -> None:
        orphans = [request for tenant in tenants for request in self._dissolve(before[tenant])]
        orphans.sort(key=lambda request: request.arrived_at)
        self._place_again(orphans, now)

    def _take_in(self, tenants: list[str], now: int) -> None:
        for tenant in tenants:
            self._place_again(self._fallback.take_of(tenant), now)

    def _dissolve(self, member: Class[ItemT]) -> Iterable[Request[ItemT]]:
        """Of a class that is no more: what waited in it."""
        member.version += 1
        if member.queue:
            self._waiting -= 1
        return member.queue

    def match(self, tenant: str, operation: str) -> Rule | None:
        """The rule that such a request comes under."""
        return self._rules.match(tenant, operation)

    # Requests

    def submit(self, tenant: str, cost: int, item: ItemT, now: int, operation: str = ANY) -> Request[ItemT]:
        """Queue a request that costs `cost` tokens."""
        if cost < 1:
            raise UsageError(f"a request costs at least 1 token, not {cost!r}")
        request = Request(tenant, operation, cost, item, now)
        usage = self._usage_of(tenant)
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
        usage = self._usage_of(tenant)
        usage.arrived += cost
        if not self._charge(tenant, cost, now, operation):
            usage.refuse(cost)
            return False
        usage.served += cost
        return True

    def _charge(self, tenant: str, cost: int, now: int, operation: str) -> bool:
        member = self._find(tenant, operation, cost, now)
        alone = not self._waiting and not self._fallback
        if member is None:
            return alone
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
        member = self._find(tenant, operation, 1, now)
        if member is None:
            return tokens
        member.count(now)
        tokens = min(tokens, max(0, member.tokens) // SECOND_NS)
        member.charge(tokens)
        return tokens

    def give_back(self, tenant: str, tokens: int, now: int, operation: str = ANY) -> None:
        """Put tokens back that were charged and not used."""
        member = self._held.get(tenant)
        if member is None:
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
        usage = self._usage_of(tenant)
        usage.arrived += cost
        usage.refuse(cost)

    def observe(self, tenant: str, arrived: int, refused: int) -> None:
        """Count requests that were served from tokens charged before, and requests that were turned
        away where those were held: of these, how large each was is not known."""
        usage = self._usage_of(tenant)
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

    def collect(self) -> Demands:
        """What each tenant wanted since the last call; those that wanted nothing are left out."""
        seen = self.usage
        names: list[str] = []
        tokens: list[int] = []
        self.usage = {}
        for tenant, usage in seen.items():
            demand = usage.demand if usage.refused else usage.served + usage.backlog
            if demand:
                names.append(tenant)
                tokens.append(demand if demand < TOKENS_MAX else TOKENS_MAX)
            if usage.backlog:
                usage.begin()
                self.usage[tenant] = usage
        return Demands(names, np.array(tokens, np.int64))

    # Inside

    def _usage_of(self, tenant: str) -> Usage:
        usage = self.usage.get(tenant)
        if usage is None:
            usage = self.usage[tenant] = Usage()
        return usage

    def _find(self, tenant: str, operation: str, cost: int, now: int) -> Class[ItemT] | None:
        """The class that such a request belongs to; None: it comes under no rule."""
        member = self._held.get(tenant)
        if member is None:
            rule = self._rules.match(tenant, operation)
            if rule is None:
                return None
            key = (rule.name, tenant)
            member = self._classes.get(key)
            if member is None:
                member = self._classes[key] = Class(rule.rate, rule.rank, 0, now)
                self._of_rule[rule.name].add(tenant)
        if not member.size:
            self._measure(member, cost, now)
        return member

    def _place(self, request: Request[ItemT], now: int) -> None:
        member = self._find(request.tenant, request.operation, request.cost, now)
        if member is None:
            self._fallback.add(request)
            return
        request.home = member
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
        due_at = member.due_at(member.queue[0].cost)
        heappush(self._heap, (due_at, member.rank, self._pushed, member.version, member))
        if len(self._heap) > 2 * self._waiting + _HEAP_SLACK:
            self._rebuild([])

    def _rebuild(self, entries: list[tuple[int, int, int, int, Class[ItemT]]]) -> None:
        """The heap, with these, and without those of the past."""
        entries += [entry for entry in self._heap if entry[3] == entry[4].version and entry[4].queue]
        heapify(entries)
        self._heap = entries

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
        member.show(max(self.size_min, self._depth * cost), now)

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
