"""`bursar bench tokens`: nanoseconds to take a token, beside rate limiters for Python.

Each peer is used in its quickest way, with a limit that never refuses: what is measured is the cost
of asking. The semantics differ: the peers count against a rate in one process (or in Redis, with a
round trip for every token); a pool's token is a permission out of a reservation that was handed to
this process ahead of time, bounded across all processes by the monitor.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bursar.errors import BursarError
from bursar.pools.capacity import FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import AMOUNT_MAX
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.rounds import Rounds
from bursar.runtime.clock import BootClock
from bursar.runtime.redis_words import RedisWords
from bursar.runtime.words import SharedWords
from bursar.world import SECOND_NS, Words
from bursar_lab.processes import run_redis

Take = Callable[[], Any]
PLENTY = 10**9
THREADS = 16
ROUNDS = 5
TOKEN_MAX_NS = 150.0
TIMES_IN_MEMORY = 4.0
TIMES_OVER_REDIS = 50.0


def run(quick: bool) -> dict[str, Any]:
    """Every limiter in turn, several rounds, the best of each; then the ratios."""
    count = 20_000 if quick else 300_000
    with tempfile.TemporaryDirectory(prefix="bursar-tokens-") as folder, run_redis(folder) as url:
        memory = {"bursar": _make_bursar(SharedWords(Path(folder) / "words")), **_make_peers()}
        redis = {"bursar": asyncio.run(_make_far_bursar(url)), **_make_redis_peers(url)}
        rows = _measure(memory, "memory", count, (1, THREADS))
        rows += _measure(redis, "redis", count // 50, (1,), own=count)
        rows += [
            {"words": "memory", "limiter": "aiolimiter", "threads": 1, "ns": _measure_aiolimiter(count // 4)}
        ]
    return _conclude(rows)


def _measure(
    takes: dict[str, Take], words: str, count: int, threads: tuple[int, ...], own: int | None = None
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in threads:
        best: dict[str, float] = {}
        for _ in range(ROUNDS):  # in turn, so that a busy moment hits all alike
            for name, take in takes.items():
                many = own if own is not None and name == "bursar" else count
                best[name] = min(best.get(name, 1e18), _time(take, many // number, number))
        rows += [{"words": words, "limiter": name, "threads": number, "ns": ns} for name, ns in best.items()]
    return rows


def _time(take: Take, count: int, threads: int) -> float:
    """Nanoseconds a token, over all threads."""
    if threads == 1:
        return _loop(take, count) / count
    running = [threading.Thread(target=_loop, args=(take, count)) for _ in range(threads)]
    begun = time.perf_counter_ns()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return (time.perf_counter_ns() - begun) / (count * threads)


def _loop(take: Take, count: int) -> int:
    begun = time.perf_counter_ns()
    for _ in range(count):
        take()
    return time.perf_counter_ns() - begun


def _make_bursar(words: Words) -> Take:
    clock = BootClock()
    period_ns = 600 * SECOND_NS
    book = MonitorBook("bench", FixedCapacity(AMOUNT_MAX), period_ns=period_ns)
    book.join("a", AMOUNT_MAX // 2)
    Monitor(clock, words, book).check()
    engine = Engine(clock, words, EngineBook("bench", "a", period_ns=period_ns))
    engine.tick()
    if not engine.take():
        raise BursarError("the engine has no tokens: nothing to measure")
    return engine.take


async def _make_far_bursar(url: str) -> Take:
    """Rounds bring tokens; taking one never waits for them."""
    clock, words = BootClock(), RedisWords(url)
    period_ns = 600 * SECOND_NS
    book = MonitorBook("bench", FixedCapacity(AMOUNT_MAX), period_ns=period_ns)
    book.join("a", AMOUNT_MAX // 2)
    engine = Engine(clock, None, EngineBook("bench", "a", period_ns=period_ns, looks_first=True))
    rounds = Rounds(clock, words, book, lambda: [engine], lambda: None)
    for _ in range(2):
        await rounds.round()
    await words.close()
    if not engine.take():
        raise BursarError("the engine has no tokens: nothing to measure")
    return engine.take


def _make_peers() -> dict[str, Take]:
    import limits
    import limits.storage
    import limits.strategies
    import throttled
    import token_bucket
    from pyrate_limiter import Duration, InMemoryBucket, Limiter, Rate

    bucket = token_bucket.Limiter(PLENTY, PLENTY, token_bucket.MemoryStorage())
    window = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(PLENTY)
    gate = throttled.Throttled(key="a", using="fixed_window", quota=throttled.rate_limiter.per_sec(PLENTY))
    # It remembers every token it granted, so its limit is kept where the list stays short.
    pyrate = Limiter(InMemoryBucket([Rate(PLENTY, Duration.SECOND)]))
    return {
        "token-bucket": lambda: bucket.consume("a"),
        "limits": lambda: window.hit(item, "a"),
        "throttled-py": gate.limit,
        "pyrate-limiter": lambda: pyrate.try_acquire("a", blocking=False),
    }


def _make_redis_peers(url: str) -> dict[str, Take]:
    import limits
    import limits.storage
    import limits.strategies
    import redis
    import throttled
    from pyrate_limiter import Duration, Limiter, Rate, RedisBucket

    window = limits.strategies.FixedWindowRateLimiter(limits.storage.RedisStorage(url))
    item = limits.RateLimitItemPerSecond(PLENTY)
    gate = throttled.Throttled(
        key="a",
        using="fixed_window",
        quota=throttled.rate_limiter.per_sec(PLENTY),
        store=throttled.RedisStore(server=url),
    )
    bucket = RedisBucket.init([Rate(PLENTY, Duration.SECOND)], redis.Redis.from_url(url), "pyrate")
    pyrate = Limiter(bucket)
    return {
        "limits": lambda: window.hit(item, "a"),
        "throttled-py": gate.limit,
        "pyrate-limiter": lambda: pyrate.try_acquire("a", blocking=False),
    }


def _measure_aiolimiter(count: int) -> float:
    from aiolimiter import AsyncLimiter

    async def loop() -> float:
        limiter = AsyncLimiter(PLENTY, 1)
        best = 1e18
        for _ in range(ROUNDS):
            begun = time.perf_counter_ns()
            for _ in range(count):
                await limiter.acquire()
            best = min(best, (time.perf_counter_ns() - begun) / count)
        return best

    return asyncio.run(loop())


def _conclude(rows: list[dict[str, Any]]) -> dict[str, Any]:
    bars = []
    cases = (
        ("memory", 1, TIMES_IN_MEMORY),
        ("memory", THREADS, TIMES_IN_MEMORY),
        ("redis", 1, TIMES_OVER_REDIS),
    )
    for words, threads, times in cases:
        mine = [row for row in rows if row["words"] == words and row["threads"] == threads]
        own = next(row["ns"] for row in mine if row["limiter"] == "bursar")
        peers = [row for row in mine if row["limiter"] != "bursar"]
        fastest = min(peers, key=lambda row: float(row["ns"]))
        for row in mine:
            row["times bursar"] = row["ns"] / own
        name = (
            f"{words}, {threads} threads: {fastest['limiter']}, the fastest, over bursar, at least {times:g}"
        )
        bars.append(_check(name, fastest["ns"] / own, fastest["ns"] >= times * own))
    one = next(row["ns"] for row in rows if row["limiter"] == "bursar")
    bars.append(_check(f"nanoseconds a token, at most {TOKEN_MAX_NS:g}", one, one <= TOKEN_MAX_NS))
    return {"table": rows, "bars": bars, "semantics": __doc__, "ok": all(bar["met"] for bar in bars)}


def _check(bar: str, found: float, met: bool) -> dict[str, Any]:
    return {"bar": bar, "found": round(found, 1), "met": met}
