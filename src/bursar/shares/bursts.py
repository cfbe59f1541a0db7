"""Bursts that tenants announce (the hints of section IV-E): what is kept for each, lent until it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from bursar.errors import UsageError
from bursar.shares.borrowing import TOKENS_MAX
from bursar.shares.handout import Demands, Lines

GRACE_INTERVALS = 3
"""A burst that has begun has tokens handed out for it for so many intervals in which nobody asks."""

BURSTS_MAX = 10_000


class Burst(msgspec.Struct, array_like=True):
    """`tokens` that begin in `starts_ns` and are waited for until `ends_ns`, both from now on; `kept` are
    those that its tenant lent for it while it was idle, `left` those that were not handed out since it
    began."""

    tokens: int
    starts_ns: int
    ends_ns: int
    left: int
    kept: int = 0
    quiet: int = 0

    def begins_within(self, interval_ns: int) -> bool:
        return self.starts_ns < interval_ns

    def is_due(self, interval_ns: int) -> bool:
        """Whether tokens are handed out for it, asked for or not."""
        return self.begins_within(interval_ns) and self.left > 0 and self.quiet < GRACE_INTERVALS


class Expected(NamedTuple):
    """What tenants are taken to want. The last rows are those of `idle` tenants, which are here for a burst
    alone, and lend up to the records in `caps` at most."""

    demands: Demands
    idle: list[str]
    caps: list[int]


class Bursts:
    """One for a tenant at most: what is announced later takes the place of what was announced before.

    Until its burst begins an idle tenant counts as one that lends: its part goes to others, and its
    record rises by it, up to what it announced. Then it counts as one that wants all of it, from the first
    interval on; so it has its own part at once, and is paid back from what others owe. What it lent for a
    burst that does not come is forgiven to those who owe: announcing is no way to credit. For a
    tenant that owes nothing is done while it is idle, so announcing is no way out of debt either."""

    def __init__(self) -> None:
        self._bursts: dict[str, Burst] = {}

    def __len__(self) -> int:
        return len(self._bursts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._bursts)

    def get(self, tenant: str) -> Burst | None:
        return self._bursts.get(tenant)

    def announce(self, tenant: str, tokens: int, starts_ns: int, ends_ns: int) -> None:
        if not 1 <= tokens <= TOKENS_MAX:
            raise UsageError(f"a burst has 1 to 2^52 tokens, not {tokens!r}")
        if tenant not in self._bursts and len(self._bursts) >= BURSTS_MAX:
            raise UsageError(f"{BURSTS_MAX} tenants have announced a burst; wait until one is over")
        if not 0 <= starts_ns < ends_ns:
            raise UsageError("a burst begins now or later, and lasts for some time")
        self._bursts[tenant] = Burst(tokens, starts_ns, ends_ns, tokens)

    def withdraw(self, tenant: str) -> int:
        """What was kept for it, and is to be forgiven."""
        burst = self._bursts.pop(tenant, None)
        return 0 if burst is None else burst.kept

    def pass_time(self, elapsed_ns: int) -> list[str]:
        """Whose bursts are over."""
        for burst in self._bursts.values():
            burst.starts_ns -= elapsed_ns
            burst.ends_ns -= elapsed_ns
        return [tenant for tenant, burst in self._bursts.items() if burst.ends_ns <= 0]

    def expect(
        self, demands: Demands, interval_ns: int, whole: int, record: Callable[[str], int]
    ) -> Expected:
        """With what is expected of bursts: `whole` is all that an interval has."""
        wanted = dict(zip(demands.names, demands.tokens.tolist(), strict=True))
        idle: dict[str, int] = {}
        for tenant, burst in self._bursts.items():
            seen = tenant in wanted
            burst.quiet = 0 if seen or burst.starts_ns > -interval_ns else burst.quiet + 1
            if not seen and record(tenant) < 0:
                continue
            if burst.is_due(interval_ns):
                wants = min(burst.left, whole)
            elif burst.begins_within(interval_ns) or burst.kept >= burst.tokens:
                continue
            else:
                wants = 1  # it takes part, and lends the rest
            if seen:
                wanted[tenant] = max(wanted[tenant], wants)
            else:
                idle[tenant] = wants
        caps = [self._cap(tenant, record(tenant)) for tenant in idle]
        wanted |= idle
        return Expected(Demands(list(wanted), np.array(list(wanted.values()), np.int64)), list(idle), caps)

    def _cap(self, tenant: str, record: int) -> int:
        """Up to which record it may lend for its burst."""
        burst = self._bursts[tenant]
        return record + max(0, burst.tokens - burst.kept)

    def close(self, lines: Lines, idle: list[str], interval_ns: int) -> None:
        """Take in what was handed out."""
        for tenant in idle:
            line = lines[tenant]
            self._bursts[tenant].kept += max(0, line.initial - line.final)
        for tenant, burst in self._bursts.items():
            if burst.begins_within(interval_ns) and tenant in lines:
                line = lines[tenant]
                burst.left = max(0, burst.left - line.final)
                burst.kept = max(0, burst.kept - max(0, line.final - line.initial))

    def put_back(self, tenants: Mapping[str, int]) -> None:
        """So much of what each lent was of no use to anybody, and is no longer on its record."""
        for tenant, tokens in tenants.items():
            burst = self._bursts.get(tenant)
            if burst is not None:
                burst.kept = max(0, burst.kept - tokens)

    # What a restart remembers

    def snapshot(self) -> dict[str, Burst]:
        return self._bursts

    def replay(self, bursts: dict[str, Burst]) -> None:
        self._bursts = dict(bursts)
