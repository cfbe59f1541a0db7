"""`bursar bench acquire`: what one acquisition costs, through the public door, beside rate limiters.

Here: a policy with a resource of each kind that has tokens (`rate`, `share`, `pool`, `quota` in mode
fast), opened by `bursar.connect`, limits so large that nothing is refused; refills of lots are part of
the time. Settings are the defaults but for one: the quota's `block` is ten million, because a loop that
does nothing else outruns the disk with the default of 1,000.

At a daemon: `bursar serve` in a process of its own, a limit of 100k/s, asked at four fifths of that in
steps of a millisecond; the time is what the calls took, refills included. The peers are used in their
quickest way, with limits that never refuse.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import bursar
from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar.runtime.loops import new_event_loop
from bursar_lab.processes import await_port, run_redis

ROUNDS = 40
PLENTY = 10**9
TRY_MAX = 1.2
ACQUIRE_MAX = 1.5
FAR_MAX = 2 * ACQUIRE_MAX
REDIS_TIMES = 40.0
FAR_RATE = 80
"""Acquisitions in each millisecond at the daemon."""

HERE = """
[resource.rate]
kind = "rate"
servers = {{ here = "500M/s" }}
[resource.rate.tenant]
acme = {{ limit = "400M/s" }}
[resource.share]
kind = "share"
capacity = "500M/s"
[resource.share.tenant]
acme = {{ weight = 1 }}
[resource.pool]
kind = "pool"
capacity = "500M/s"
[resource.pool.tenant]
acme = {{ reservation = "100M/s" }}
[resource.quota]
kind = "quota"
mode = "fast"
block = 10_000_000
[resource.quota.tenant]
acme = {{ limit = 1_000_000_000_000 }}
[resource.exact]
kind = "quota"
[resource.exact.tenant]
acme = {{ limit = 1_000_000 }}
[resource.claim]
kind = "claim"
[daemon]
http = "off"
state = "{state}"
"""

THERE = """
[resource.rate]
kind = "rate"
servers = {{ here = "200k/s" }}
[resource.rate.tenant]
acme = {{ limit = "100k/s" }}
[daemon]
listen = "127.0.0.1:{port}"
http = "off"
state = "{state}"
"""

KINDS = ("rate", "share", "pool", "quota")


def run(quick: bool) -> dict[str, Any]:
    count = 2_000 if quick else 5_000  # short turns: periods, ticks and refills need the loop in between
    with tempfile.TemporaryDirectory(prefix="bursar-acquire-") as folder, run_redis(folder) as redis_url:
        loop = new_event_loop()
        try:
            rows = loop.run_until_complete(_measure_here(Path(folder), redis_url, count))
            with _serve(Path(folder)) as url:
                far = loop.run_until_complete(_measure_far(url, 2_000 if quick else 5_000))
        finally:
            loop.close()
    rows.append(far)
    return _conclude(rows)


# -- in this process


async def _measure_here(folder: Path, redis_url: str, count: int) -> list[dict[str, Any]]:
    policy = folder / "here.toml"
    policy.write_text(HERE.format(state=folder / "state"))
    async with await bursar.connect(policy) as b:
        tries: dict[str, Callable[[], Any]] = {}
        waits: dict[str, Callable[[int], Awaitable[float]]] = {}
        for kind in KINDS:
            resource = b.resource(kind)
            await _warm_up(resource)
            tries[f"bursar {kind}"] = partial(resource.try_acquire, "acme")
            waits[f"bursar {kind}"] = _acquirer(resource)
        tries |= _peers_in_memory()
        waits |= {"aiolimiter": _aiolimiter()}
        best_try = await _best({name: _loop_of(take) for name, take in tries.items()}, count)
        best_wait = await _best(waits, count)
        calls = {name: await _count_calls(b, name) for name in (*KINDS, "exact", "claim")}
        redis = await _best({"limits over Redis": _loop_of(_limits_over_redis(redis_url))}, count // 20)
    rows = [{"where": "here", "call": "try_acquire", "limiter": n, "ns": ns} for n, ns in best_try.items()]
    rows += [{"where": "here", "call": "async with", "limiter": n, "ns": ns} for n, ns in best_wait.items()]
    rows += [{"where": "redis", "call": "hit", "limiter": n, "ns": ns} for n, ns in redis.items()]
    return rows + [
        {
            "where": "here",
            "call": "function calls",
            "limiter": f"bursar {kind}",
            "from a lot": few,
            "without": many,
        }
        for kind, (few, many) in calls.items()
    ]


async def _count_calls(b: bursar.Bursar, name: str) -> tuple[int | None, int]:
    """Python functions called for one acquisition: with a lot in hand, and without one; the fewest of
    several, because whatever else the loop does is counted too."""
    resource = b.resource(name)
    few: list[int] = []
    many: list[int] = []
    for _ in range(20):
        if name in KINDS:
            resource.hand.end("acme")
        many.append(await _count_once(resource))
        if name in KINDS and resource.hand.lots.get("acme"):
            few.append(await _count_once(resource))
    return min(few) if few else None, min(many)


async def _count_once(resource: bursar.Resource) -> int:
    calls = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        async with resource.acquire("acme", wait=1):
            pass
    finally:
        sys.setprofile(None)
    return calls


async def _warm_up(resource: bursar.Resource) -> None:
    """Until its tokens come: the first period, the first block."""
    until = time.monotonic() + 10
    while resource.try_acquire("acme") is None:
        if time.monotonic() > until:
            raise BursarError(f"{resource.name} grants nothing: nothing to measure")
        await asyncio.sleep(0.01)


def _acquirer(resource: bursar.Resource) -> Callable[[int], Awaitable[float]]:
    async def loop(count: int) -> float:
        begun = time.perf_counter_ns()
        for _ in range(count):
            async with resource.acquire("acme", wait=1):
                pass
        return (time.perf_counter_ns() - begun) / count

    return loop


def _loop_of(take: Callable[[], Any]) -> Callable[[int], Awaitable[float]]:
    async def loop(count: int) -> float:
        begun = time.perf_counter_ns()
        misses = 0
        for _ in range(count):
            if not take():
                misses += 1
        taken = (time.perf_counter_ns() - begun) / count
        return math.inf if misses else taken

    return loop


async def _best(loops: dict[str, Callable[[int], Awaitable[float]]], count: int) -> dict[str, float]:
    """Nanoseconds a call: the best of several rounds, in turn, so that a busy moment hits all alike.
    Between rounds everything that runs beside (ticks, periods) gets its time."""
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            best[name] = min(best.get(name, math.inf), await loop(count))
            await asyncio.sleep(0.005)
    none = [name for name, ns in best.items() if ns == math.inf]
    if none:
        raise BursarError(f"{', '.join(none)}: in every turn something was not granted; nothing to compare")
    return best


def _peers_in_memory() -> dict[str, Callable[[], Any]]:
    import limits
    import limits.storage
    import limits.strategies
    import token_bucket

    bucket = token_bucket.Limiter(PLENTY, PLENTY, token_bucket.MemoryStorage())
    window = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(PLENTY)
    return {"token-bucket": lambda: bucket.consume("a"), "limits": lambda: window.hit(item, "a")}


def _aiolimiter() -> Callable[[int], Awaitable[float]]:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(PLENTY, 1)

    async def loop(count: int) -> float:
        begun = time.perf_counter_ns()
        for _ in range(count):
            async with limiter:
                pass
        return (time.perf_counter_ns() - begun) / count

    return loop


def _limits_over_redis(url: str) -> Callable[[], Any]:
    import limits
    import limits.storage
    import limits.strategies

    window = limits.strategies.FixedWindowRateLimiter(limits.storage.RedisStorage(url))
    item = limits.RateLimitItemPerSecond(PLENTY)
    return lambda: window.hit(item, "a")


# -- at a daemon


@contextmanager
def _serve(folder: Path) -> Iterator[str]:
    port = find_free_port()
    policy = folder / "there.toml"
    policy.write_text(THERE.format(port=port, state=folder / "daemon"))
    child = subprocess.Popen(
        [sys.executable, "-m", "bursar", "serve", str(policy)], stderr=subprocess.DEVNULL
    )
    try:
        await_port(port, child)
        yield f"bursar://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(10)


async def _measure_far(url: str, steps: int) -> dict[str, Any]:
    async with await bursar.connect(url) as b:
        resource = b.resource("rate")
        for _ in range(100):
            async with resource.acquire("acme", wait=2):
                pass
        waits: list[int] = []
        next_at = time.perf_counter()
        for _ in range(steps):
            next_at += 0.001
            for _ in range(FAR_RATE):
                begun = time.perf_counter_ns()
                async with resource.acquire("acme", wait=1):
                    pass
                waits.append(time.perf_counter_ns() - begun)
            pause = next_at - time.perf_counter()
            await asyncio.sleep(max(0.0, pause))
    waits.sort()
    mean = sum(waits) / len(waits)
    clock = _clock_cost()
    return {
        "where": "daemon",
        "call": "async with",
        "limiter": "bursar rate",
        "ns": mean - clock,
        "p50 ns": waits[len(waits) // 2] - clock,
        "p99 ns": waits[len(waits) * 99 // 100] - clock,
        "p99.9 ns": waits[len(waits) * 999 // 1000] - clock,
    }


def _clock_cost() -> float:
    """What reading the clock twice adds to each."""
    count = 100_000
    begun = time.perf_counter_ns()
    for _ in range(count):
        time.perf_counter_ns()
    return (time.perf_counter_ns() - begun) / count


# -- what it comes to


def _conclude(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def ns(where: str, call: str, limiter: str) -> float:
        found = [row for row in rows if (row["where"], row["call"], row["limiter"]) == (where, call, limiter)]
        return float(found[0].get("ns", 0.0))

    fastest = min(ns("here", "try_acquire", name) for name in ("token-bucket", "limits"))
    aiolimiter = ns("here", "async with", "aiolimiter")
    far = ns("daemon", "async with", "bursar rate")
    bars = []
    for kind in KINDS:
        found = ns("here", "try_acquire", f"bursar {kind}") / fastest
        bars.append(
            _check(f"{kind}: try_acquire over the fastest in memory, at most {TRY_MAX}", found, TRY_MAX)
        )
    for kind in KINDS:
        found = ns("here", "async with", f"bursar {kind}") / aiolimiter
        bars.append(_check(f"{kind}: async with over aiolimiter, at most {ACQUIRE_MAX}", found, ACQUIRE_MAX))
    bars.append(
        _check(f"at a daemon: async with over aiolimiter, at most {FAR_MAX:g}", far / aiolimiter, FAR_MAX)
    )
    times = ns("redis", "hit", "limits over Redis") / far
    name = f"limits over Redis over bursar at a daemon, at least {REDIS_TIMES:g}"
    bars.append({"bar": name, "found": round(times, 1), "met": times >= REDIS_TIMES})
    return {"table": rows, "bars": bars, "semantics": __doc__, "ok": all(bar["met"] for bar in bars)}


def _check(bar: str, found: float, most: float) -> dict[str, Any]:
    return {"bar": bar, "found": round(found, 2), "met": found <= most}
