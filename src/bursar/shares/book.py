"""The book of one target: who is owed what, and what each tenant was last given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from bursar.decoding import DECODE_ERRORS
from bursar.errors import FormatError, UsageError
from bursar.policy.values import ANYONE, find_template, is_template
from bursar.shares.borrowing import (
    NO_CAP,
    TOKENS_MAX,
    Allocation,
    Terms,
    Tokens,
    allocate,
    decay,
    payback_bound,
    portion,
    settle,
)
from bursar.shares.bursts import Burst, Bursts, Expected
from bursar.shares.handout import Demands, Handout, Lines, TenantTerms, per_second
from bursar.shares.served import ServedDemand
from bursar.units import Rate
from bursar.world import SECOND_NS

_DECAY_STEPS = 16
FORGET_EVERY = 64
"""Intervals after which it is looked for tenants that need no entry any more."""

IDLE_NS = 600 * SECOND_NS
"""A tenant of a template that asked for nothing for so long leaves, whatever it owes or is owed."""

_LEAVERS_MAX = 5_000
"""Of those at once: many must not hold up an interval."""

_COLUMNS = ("_weight", "_borrow", "_lend", "_record", "_previous", "_remainder", "_asked_at")


Records = dict[str, Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]]
Kept = Records | tuple[Records, dict[str, Burst]]
"""A line of the journal: the records, and the bursts where any were announced."""


class TargetBook:
    """All the state of one target.

    Invariants, after every method: the records of all tenants sum to zero; the final tokens of a
    handout sum to its tokens, and those of all handouts so far to the capacity times the time
    they were for (rounded down to whole tokens); a tenant that left has no record.

    A tenant has an entry from its first demand on, and as long as it asks or its record is open; so
    those that the policy lists and nobody uses cost nothing here.
    """

    def __init__(
        self,
        tenants: Mapping[str, Any],
        capacity: Rate,
        interval_ns: int,
        *,
        half_life_ns: int | None = None,
        needed_first: bool = True,
    ) -> None:
        if interval_ns < 1:
            raise UsageError(f"an interval is at least 1 ns, not {interval_ns!r}")
        self.interval_ns = interval_ns
        self.capacity = capacity
        self.number = 0
        self.handout = Handout(0, 0)
        self._terms: Mapping[str, Any] = {}
        self._templates: dict[str, Any] = {}
        self._sizes: Mapping[str, int] = {}
        self._listed_weight = 0
        self._needed_first = needed_first
        self._half_life: int | None = None
        self.set_half_life(half_life_ns)
        self._given_for_ns = 0
        self._given = 0
        self._wants = ServedDemand()
        self.bursts = Bursts()
        self._slots: dict[str, int] = {}
        self._names: list[str] = []
        self._weight = np.zeros(0)
        self._borrow = np.zeros(0, np.int64)
        self._lend = np.zeros(0, np.int64)
        self._record = np.zeros(0, np.int64)
        self._previous = np.zeros(0, np.int64)
        self._remainder = np.zeros(0)
        self._asked_at = np.zeros(0, np.int64)
        self.set_tenants(tenants)

    # Tenants

    @property
    def tenants(self) -> tuple[str, ...]:
        """Those with an entry."""
        return tuple(self._names)

    @property
    def listed(self) -> list[str]:
        """Those that the policy names, and the others with an entry."""
        names = dict.fromkeys(name for name in self._terms if name not in self._templates)
        return list(names | dict.fromkeys(self._names))

    def __contains__(self, tenant: str) -> bool:
        """Whether it has an entry."""
        return tenant in self._slots

    def record(self, tenant: str) -> int:
        """What it has lent (positive) or borrowed (negative) in all."""
        return int(self._record[self._slots[tenant]]) if tenant in self._slots else 0

    def records(self) -> dict[str, int]:
        return dict(zip(self._names, self._record[: len(self._names)].tolist(), strict=True))

    def terms(self, tenant: str) -> Any:
        """Its terms, or None for a tenant that the policy does not know."""
        found = self._terms.get(tenant)
        if found is not None and tenant not in self._templates:
            return found
        template = find_template(self._templates, tenant)
        return None if template is None else self._templates[template]

    def set_tenants(self, tenants: Mapping[str, Any]) -> None:
        """The tenants of a policy and its templates, or of the next one: who is no longer covered
        leaves."""
        for name, terms in tenants.items():
            if terms.weight < 1:
                raise UsageError(f"tenant {name!r}: a weight is at least 1, not {terms.weight!r}")
        self._terms = tenants
        self._templates = {name: terms for name, terms in tenants.items() if is_template(name)}
        self._listed_weight = sum(terms.weight for terms in tenants.values())
        self._listed_weight -= sum(terms.weight for terms in self._templates.values())
        for name in [name for name in self.bursts if self.terms(name) is None]:
            self.bursts.withdraw(name)
        self.leave(*[name for name in self._names if self.terms(name) is None])
        for name in self._names:
            self._write_terms(name)

    def set_sizes(self, sizes: Mapping[str, int]) -> None:
        """How many times the weight of its terms each tenant has, from the next interval on; once where it
        is not said."""
        if sizes != self._sizes:
            self._sizes = dict(sizes)
            for name in self._names:
                self._write_terms(name)

    def _enter(self, name: str) -> int:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = len(self._names)
            self._names.append(name)
            if slot >= len(self._weight):
                self._grow(max(8, 2 * slot))
            self._write_terms(name)
        return slot

    def _grow(self, size: int) -> None:
        for column in _COLUMNS:
            old = getattr(self, column)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, column, new)

    def _write_terms(self, name: str) -> None:
        terms, slot = self.terms(name), self._slots[name]
        self._weight[slot] = terms.weight * self._sizes.get(name, 1)
        self._borrow[slot] = NO_CAP if terms.borrow is None else terms.borrow
        self._lend[slot] = NO_CAP if terms.lend is None else terms.lend

    def leave(self, *tenants: str) -> None:
        """Settle what they owe and are owed against the others, and forget them. One that is not here
        has nothing to settle."""
        here = {self._slots[tenant] for tenant in tenants if tenant in self._slots}
        leaving = self._drop(sorted(here)) if here else 0
        if leaving:
            count = len(self._names)
            self._record[:count] = settle(self._record[:count], leaving)

    def _drop(self, slots: list[int]) -> int:
        """What they owed and were owed in all, which is nobody's now."""
        count = len(self._names)
        gone = np.zeros(count, np.bool_)
        gone[slots] = True
        left = int(self._record[:count][gone].sum())
        # The last ones move to where somebody left.
        kept = count - len(slots)
        holes = [slot for slot in slots if slot < kept]
        movers = kept + np.flatnonzero(~gone[kept:])
        for column in _COLUMNS:
            values = getattr(self, column)
            values[holes] = values[movers]
            values[kept:count] = 0
        for slot in slots:
            del self._slots[self._names[slot]]
        for hole, mover in zip(holes, movers.tolist(), strict=True):
            self._names[hole] = self._names[mover]
            self._slots[self._names[hole]] = hole
        del self._names[kept:]
        return left

    # Bursts

    def announce(self, tenant: str, tokens: int, starts_ns: int, ends_ns: int) -> None:
        """The tenant will want so many tokens, from `starts_ns` from now on and until `ends_ns`. It takes
        the place of what it announced before; 0 tokens withdraw that."""
        if self.terms(tenant) is None:
            raise UsageError(f'tenant {tenant!r} is not in the policy; list it there, or "{ANYONE}"')
        if tokens:
            before = self.bursts.get(tenant)
            self.bursts.announce(tenant, tokens, starts_ns, ends_ns)
            self._forgive(tenant, 0 if before is None else before.kept)
        else:
            self._forgive(tenant, self.bursts.withdraw(tenant))

    def _forgive(self, tenant: str, tokens: int) -> None:
        """What was lent for a burst that does not come is nobody's debt."""
        tokens = min(tokens, max(0, self.record(tenant)))
        if tokens:
            record = self._record[: len(self._names)]
            record += portion(np.maximum(0, -record), tokens)
            record[self._slots[tenant]] -= tokens

    def payback_intervals(self, tenant: str) -> int | None:
        """Within how many intervals `tenant` is paid back, if it and all who owe stay backlogged
        and nobody lends anew; None where that cannot be said (a debtor with less than two tokens
        an interval keeps them all)."""
        if self.record(tenant) <= 0:
            return 0
        count = len(self._names)
        weight, record = self._weight[:count], self._record[:count]
        # As if everyone were active, and each a token short by rounding: the slowest case.
        tokens, whole = self.capacity.per(self.interval_ns), self._whole_weight()
        initial = np.floor(tokens * weight / whole).astype(np.int64) - 1
        owing = record < 0
        if (initial[owing] < 2).any():
            return None
        priority = float((weight / whole)[record > 0].min())
        return payback_bound(priority, -record[owing], initial[owing])

    def _whole_weight(self) -> float:
        """Of all that are listed, whether they ask or not, and of the others that are here."""
        here = float(self._weight[: len(self._names)].sum())
        counted = sum(self._terms[name].weight for name in self._names if name in self._terms)
        return float(self._listed_weight - counted + here)

    # Intervals

    def close_served(self, served: Mapping[str, int], elapsed_ns: int, *, saturated: bool = False) -> Handout:
        """Close an interval of which only the served I/O is known.

        What a tenant wants is estimated (`served.ServedDemand`), and tokens beyond its own part that it
        left unused are put back on the records: nobody owes for what it never had of use. Who wants
        less than its own part is held to that part, not to what it wants: its tokens are lent, but
        had it to stay within what it used before, nobody would see that it wants more. When it does,
        the target is given more than its capacity for the intervals that it takes to see it."""
        whole = max(1, self.capacity.per(self.interval_ns))
        sound = {name: n for name, n in served.items() if _is_count(n)}
        demand: dict[str, Any] = dict(served)
        demand |= self._wants.add(
            sound, self.handout.lines, self.interval_ns, elapsed_ns, whole, saturated=saturated
        )
        self._put_back(self._wants.unused(self.handout, saturated=saturated))
        handout = self.close(demand, elapsed_ns)
        self.handout = replace(handout, lines=self._widen(handout.lines))
        return self.handout

    def is_backlogged(self) -> bool:
        """Whether a tenant used all it was let have, of those of which only served I/O is known."""
        return any(map(self._wants.is_full, self.handout.lines))

    def _widen(self, lines: Lines) -> Lines:
        """Who lends and is not full is held to its own part."""
        _, initial, _, final, *_ = lines.columns
        full = np.fromiter(map(self._wants.is_full, lines.names), np.bool_, len(lines))
        held = full | (initial <= final)
        return lines.with_rate(np.where(held, lines.rate, per_second(initial, self.interval_ns)))

    def _put_back(self, unused: Mapping[str, int]) -> None:
        """Undo what the last interval moved between the records, as far as it was of no use."""
        slots = self._slots
        gave = {
            name: line.initial - line.final
            for name, line in self.handout.lines.items()
            if line.final < line.initial and name in slots
        }
        unused = {name: tokens for name, tokens in unused.items() if name in slots}
        total = sum(unused.values())
        if not total or total > sum(gave.values()):
            return  # or one of them has left, and was settled with all that it had
        for name, tokens in unused.items():
            self._record[slots[name]] += tokens
        index = np.array([slots[name] for name in gave], np.intp)
        parts = portion(np.array(list(gave.values()), np.int64), total)
        self._record[index] -= parts
        self.bursts.put_back(dict(zip(gave, parts.tolist(), strict=True)))

    def close(self, demand: Mapping[str, int], elapsed_ns: int | None = None) -> Handout:
        """Close an interval, in which each tenant wanted so many tokens, and hand out the next
        one's. Entries that make no sense are left out and named; the rest is not held up. It lasted
        `elapsed_ns`, or as long as intervals last."""
        if self.number % FORGET_EVERY == 0:
            self._forget_idle(demand)
        problems: list[str] = []
        wanted = demand if isinstance(demand, Demands) else _read_demand(demand, problems)
        idle: list[str] = []
        caps: list[int] = []
        if self.bursts:
            elapsed_ns = self.interval_ns if elapsed_ns is None else elapsed_ns
            wanted, idle, caps = self._expect(wanted, elapsed_ns)
        names, index, wanted_tokens = self._active(wanted, problems)
        self.number += 1
        if not names:
            self._previous[:] = 0
            self.handout = Handout(self.number, 0, problems=tuple(problems))
            return self.handout
        tokens = self._next_tokens()
        lend = self._lend[index]
        if caps:
            lend[-len(caps) :] = np.minimum(lend[-len(caps) :], caps)
        allocation = allocate(
            tokens,
            self._weight[index],
            wanted_tokens,
            self._record[index],
            self._previous[index],
            self._remainder[index],
            Terms(self._needed_first, self._borrow[index], lend),
        )
        self._record[index] = allocation.record
        self._remainder[index] = allocation.remainder
        self._previous[:] = 0
        self._previous[index] = allocation.final
        self._forget_old_records()
        lines = self._lines(names, index, wanted_tokens, allocation)
        self._asked_at[index] = self.number
        if self.bursts:
            self.bursts.close(lines, idle, self.interval_ns)
        self.handout = Handout(self.number, tokens, lines, tuple(problems))
        return self.handout

    def _expect(self, wanted: Demands, elapsed_ns: int) -> Expected:
        """With what is known of bursts to come; those that are over are settled."""
        for tenant in self.bursts.pass_time(elapsed_ns):
            self._forgive(tenant, self.bursts.withdraw(tenant))
        whole = max(1, self.capacity.per(self.interval_ns))
        return self.bursts.expect(wanted, self.interval_ns, whole, self.record)

    def _active(
        self, demand: Demands, problems: list[str]
    ) -> tuple[Sequence[str], npt.NDArray[np.intp], Tokens]:
        """Who is handed tokens: names, slots and what they want."""
        find, names = self._slots.get, demand.names
        slots = [find(tenant, -1) for tenant in names]
        if -1 in slots:
            slots = [self._admit(tenant, problems) for tenant in names]
        index = np.array(slots, np.intp)
        if -1 not in slots:
            return names, index, demand.tokens
        known = index >= 0
        return (
            [name for name, slot in zip(names, slots, strict=True) if slot >= 0],
            index[known],
            demand.tokens[known],
        )

    def _admit(self, tenant: str, problems: list[str]) -> int:
        if tenant in self._slots or self.terms(tenant) is not None:
            return self._enter(tenant)
        problems.append(
            f"tenant {tenant!r} is not in the policy; it has no rule until it is listed there "
            f'(or "{ANYONE}" is)'
        )
        return -1

    def _next_tokens(self) -> int:
        """This interval's whole tokens: fractions are carried, so that over time every token of
        the capacity is handed out."""
        self._given_for_ns += self.interval_ns
        tokens = self.capacity.per(self._given_for_ns) - self._given
        self._given += tokens
        return tokens

    def set_capacity(self, capacity: Rate) -> None:
        """From the next interval on."""
        if capacity != self.capacity:
            self.capacity = capacity
            self._given_for_ns = self._given = 0

    def set_interval(self, interval_ns: int) -> None:
        """From the next interval on."""
        if interval_ns < 1:
            raise UsageError(f"an interval is at least 1 ns, not {interval_ns!r}")
        if interval_ns != self.interval_ns:
            self.interval_ns = interval_ns
            self._given_for_ns = self._given = 0

    def set_half_life(self, half_life_ns: int | None) -> None:
        """Counted in intervals: set the interval first."""
        self._half_life = None if half_life_ns is None else max(1, half_life_ns // self.interval_ns)

    def _forget_old_records(self) -> None:
        if self._half_life is None:
            return
        step = max(1, self._half_life // _DECAY_STEPS)
        if self.number % step:
            return
        count = len(self._names)
        owed = int(np.maximum(0, self._record[:count]).sum())
        # Rounding up, so that the last token is forgotten too.
        amount = -int(-owed * (1 - 2 ** (-step / self._half_life)) // 1)
        self._record[:count] = decay(self._record[:count], min(owed, amount))

    def _forget_idle(self, demand: Mapping[str, int]) -> None:
        """Whoever is quiet and owes nothing needs no entry; and whoever no line of the policy names is
        not waited for for ever."""
        count = len(self._names)
        settled = (self._asked_at[:count] < self.number) & (self._record[:count] == 0)
        gone = self._asked_at[:count] < self.number - IDLE_NS // self.interval_ns
        idle = [(self._names[slot], settled[slot]) for slot in np.flatnonzero(settled | gone).tolist()]
        leaving = [name for name, owes_nothing in idle if owes_nothing or name not in self._terms]
        self.leave(*[name for name in leaving[:_LEAVERS_MAX] if name not in demand])

    def _lines(
        self, names: Sequence[str], index: npt.NDArray[np.intp], wanted: Tokens, allocation: Allocation
    ) -> Lines:
        columns = [
            wanted,
            allocation.initial,
            allocation.redistributed,
            allocation.final,
            self._record[index],
            per_second(allocation.final, self.interval_ns),
            self._weight[index].astype(np.int64),
        ]
        return Lines(names, columns)

    # What a restart remembers

    def snapshot(self) -> bytes:
        """The records, for the journal, and the bursts where any are announced."""
        open_ = np.flatnonzero(self._record[: len(self._names)])
        records = zip(open_.tolist(), self._record[open_].tolist(), strict=True)
        by_name = {self._names[slot]: record for slot, record in records}
        return msgspec.msgpack.encode((by_name, self.bursts.snapshot()) if self.bursts else by_name)

    def replay(self, records: Iterable[bytes]) -> None:
        """Take in the last snapshot an earlier life wrote. Who has left the policy since then is
        settled against the rest."""
        kept = deque(records, maxlen=1)
        if not kept:
            return
        try:
            found = msgspec.msgpack.decode(kept[0], type=Kept)
        except DECODE_ERRORS as error:
            raise FormatError(f"the journal of this target holds no records: {error}") from error
        remembered, bursts = found if isinstance(found, tuple) else (found, {})
        if sum(remembered.values()) != 0:
            raise FormatError(
                "the records in this target's journal do not sum to zero; delete it to begin anew"
            )
        for name, tokens in remembered.items():
            slot = self._enter_unknown(name)  # first: the columns may grow
            self._record[slot] = tokens
        self.bursts.replay({name: burst for name, burst in bursts.items() if self.terms(name) is not None})
        self.leave(*[name for name in remembered if self.terms(name) is None])

    def _enter_unknown(self, name: str) -> int:
        if self.terms(name) is not None:
            return self._enter(name)
        terms, self._terms = self._terms, {name: TenantTerms()}
        slot = self._enter(name)
        self._terms = terms
        return slot


def _read_demand(demand: Mapping[str, Any], problems: list[str]) -> Demands:
    """Of what others say: entries that make no sense are named and left out."""
    for tenant, tokens in demand.items():
        if not _is_count(tokens):
            problems.append(f"tenant {tenant!r}: {tokens!r} is no demand; it is left out of this interval")
    asking = {
        tenant: min(tokens, TOKENS_MAX) for tenant, tokens in demand.items() if _is_count(tokens) and tokens
    }
    return Demands(list(asking), np.array(list(asking.values()), np.int64))


def _is_count(tokens: Any) -> bool:
    return isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0
