"""What happens to a server while tenants keep it busy, and what bursar takes it for after each change."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from bursar.errors import Refused, Unknown
from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_auto.backend import Backend

SETTLE_NS = 3 * SECOND_NS
"""From a change to when the estimate is read."""

GAP_NS = 5 * SECOND_NS
STALL_NS = SECOND_NS
PAUSE_NS = SECOND_NS // 100

RESERVED = {"gold": 0.6, "silver": 0.3}
"""Parts of the server that are reserved: nine tenths in all."""

CALLERS = {"gold": 100, "silver": 60, "greedy": 150}
"""Requests that each tenant keeps waiting."""

POLICY = """
[resource.api]
kind = "rate"
servers = {{ a = "{capacity}" }}
[resource.api.tenant]
gold = {{ reservation = "{gold:.0f}/s" }}
silver = {{ reservation = "{silver:.0f}/s" }}
greedy = {{}}
"""


def write_policy(capacity: str, rate: float) -> str:
    return POLICY.format(capacity=capacity, **{tenant: part * rate for tenant, part in RESERVED.items()})


@dataclass(frozen=True, slots=True)
class Time:
    """A clock, in nanoseconds, and who runs tasks: a real one, or a simulator's."""

    now: Callable[[], int]
    sleep: Callable[[int], Awaitable[None]]
    spawn: Callable[[Coroutine[Any, Any, None], str], Any]


@dataclass(frozen=True, slots=True)
class Found:
    """After a change. `met` is the least part of a reservation that a tenant got in a period after
    the estimate was read, None where the server cannot do what is reserved; `used` the part of the
    server that was used."""

    change: str
    truth: float
    estimate: float
    met: float | None
    used: float

    @property
    def error(self) -> float:
        return self.estimate / self.truth - 1.0


class Tenants:
    """All that asks for the server, always."""

    def __init__(self, time: Time, resource: Any, backend: Backend) -> None:
        self._time, self._resource, self._backend = time, resource, backend
        self._may_ask = asyncio.Event()
        self.served: dict[int, Counter[str]] = defaultdict(Counter)
        self.began_at: dict[int, int] = {}

    def start(self) -> None:
        self.resume()
        for tenant, callers in CALLERS.items():
            for _ in range(callers):
                self._time.spawn(self._ask(tenant), "caller")

    def pause(self) -> None:
        self._may_ask.clear()

    def resume(self) -> None:
        self._may_ask.set()

    async def _ask(self, tenant: str) -> None:
        while True:
            await self._may_ask.wait()
            try:
                async with self._resource.acquire(tenant, wait=5) as grant:
                    self.began_at.setdefault(grant.period, self._time.now())
                    await self._backend.serve()
                    self.served[grant.period][tenant] += 1
            except (Refused, Unknown):
                await self._time.sleep(PAUSE_NS)

    def list_periods(self, since: int) -> list[Counter[str]]:
        """What was served in each period that began since then, and is over."""
        last = max(self.began_at, default=0)
        return [self.served[p] for p, at in self.began_at.items() if at >= since and p < last]


def _say_nothing(found: Found) -> None: ...


class Course:
    """The changes, one after the other. `read` is what bursar takes the server for."""

    def __init__(
        self,
        time: Time,
        resource: Any,
        backend: Backend,
        read: Callable[[], Awaitable[float]],
        watch_ns: int,
        tell: Callable[[Found], None] = _say_nothing,
    ) -> None:
        """`tell` hears of each change as soon as it was watched."""
        self._time, self._backend, self._read = time, backend, read
        self._watch_ns = watch_ns
        self._tell = tell
        self._rate = backend.rate
        self._tenants = Tenants(time, resource, backend)

    async def run(self) -> list[Found]:
        changes: Mapping[str, Callable[[], Awaitable[None]]] = {
            "start": self._start,
            "half as fast": self._slow_down,
            "twice as fast": self._recover,
            "gap of 5 s": self._leave_a_gap,
            "stall of 1 s": self._stall,
        }
        found = []
        for name, change in changes.items():
            await change()
            found.append(await self._watch(name))
            self._tell(found[-1])
        return found

    async def _start(self) -> None:
        self._tenants.start()

    async def _slow_down(self) -> None:
        self._backend.rate = self._rate / 2

    async def _recover(self) -> None:
        self._backend.rate = self._rate

    async def _leave_a_gap(self) -> None:
        self._tenants.pause()
        await self._time.sleep(GAP_NS)
        self._tenants.resume()

    async def _stall(self) -> None:
        self._backend.stall(STALL_NS)
        await self._time.sleep(STALL_NS)

    async def _watch(self, change: str) -> Found:
        await self._time.sleep(SETTLE_NS)
        since, truth, estimate = self._time.now(), self._backend.rate, await self._read()
        await self._time.sleep(self._watch_ns)
        periods = self._tenants.list_periods(since)
        used = sum(sum(served.values()) for served in periods) / max(1, len(periods)) / truth
        return Found(change, truth, estimate, self._find_met(periods, truth), used)

    def _find_met(self, periods: list[Counter[str]], truth: float) -> float | None:
        if truth < self._rate:
            return None
        reserved = {tenant: int(part * self._rate) for tenant, part in RESERVED.items()}
        parts = [served[tenant] / tokens for served in periods for tenant, tokens in reserved.items()]
        return min(parts, default=0.0)
