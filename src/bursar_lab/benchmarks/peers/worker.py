"""A process that asks for one token after another: python -m bursar_lab.benchmarks.peers.worker PICK URL
LIMIT PERIOD_S SECONDS WARM_S

Each pick is asked in its own way, with the limit for all processes together that it was given. Prints, as
JSON, how many tokens it was told that it has, how many calls failed with an error, and the longest call; what
comes in the first WARM_S seconds is not counted.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

WAIT_S = 0.2
PAUSE_S = 0.001

Take = Callable[[], Awaitable[bool]]


def _of(call: Callable[[], Any]) -> Take:
    async def take() -> bool:
        return bool(call())

    return take


def make_limits(url: str, limit: int, period_s: int) -> Take:
    import limits
    import limits.storage
    import limits.strategies

    storage: Any = limits.storage.RedisStorage(url) if url else limits.storage.MemoryStorage()
    window = limits.strategies.FixedWindowRateLimiter(storage)
    item = limits.RateLimitItemPerSecond(limit, period_s)
    return _of(lambda: window.hit(item, "acme"))


def make_throttled(url: str, limit: int, period_s: int) -> Take:
    import throttled

    store: Any = {"store": throttled.RedisStore(server=url)} if url else {}
    quota = throttled.rate_limiter.per_sec(limit) if period_s == 1 else throttled.rate_limiter.per_min(limit)
    gate = throttled.Throttled(key="acme", using="fixed_window", quota=quota, **store)
    return _of(lambda: not gate.limit().limited)


def make_token_bucket(url: str, limit: int, period_s: int) -> Take:
    import token_bucket

    bucket = token_bucket.Limiter(limit, max(1, limit // 10), token_bucket.MemoryStorage())
    return _of(lambda: bucket.consume("acme"))


def make_aiolimiter(url: str, limit: int, period_s: int) -> Take:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(max(1, limit // 10), period_s / 10)

    async def take() -> bool:
        if not limiter.has_capacity():
            return False
        await limiter.acquire()
        return True

    return take


def make_http(url: str, limit: int, period_s: int) -> Take:
    """A request to an Envoy: granted if it answers 200."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=5)

    def ask() -> bool:
        connection.request("GET", "/", headers={"x-tenant": "acme"})
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200

    return _of(ask)


MAKES: dict[str, Callable[[str, int, int], Take]] = {
    "limits": make_limits,
    "throttled-py": make_throttled,
    "token-bucket": make_token_bucket,
    "aiolimiter": make_aiolimiter,
    "envoy": make_http,
}


async def ask_bursar(url: str, seconds: float, warm_s: float) -> dict[str, Any]:
    import bursar

    async with await bursar.connect(url) as b:
        resource = b.resource("calls")

        async def take() -> bool:
            try:
                async with resource.acquire("acme", wait=WAIT_S):
                    return True
            except bursar.Refused:
                return False

        return await ask(take, seconds, warm_s)


async def ask(take: Take, seconds: float, warm_s: float) -> dict[str, Any]:
    print("ready", flush=True)
    sys.stdin.readline()
    since = time.monotonic() + warm_s
    until = since + seconds
    told, failed, longest = 0, 0, 0.0
    while (began := time.monotonic()) < until:
        granted = False
        try:
            granted = await take()
        except Exception:  # noqa: BLE001  each library has its own; what matters is that there was no answer
            failed += began >= since
        if began >= since:
            longest = max(longest, time.monotonic() - began)
            told += granted
        await asyncio.sleep(0 if granted else PAUSE_S)
    return {"told": told, "failed": failed, "longest_s": round(longest, 2)}


def main() -> None:
    pick, url, limit, period_s, seconds, warm_s = sys.argv[1:]
    if pick == "bursar":
        found = asyncio.run(ask_bursar(url, float(seconds), float(warm_s)))
    else:
        take = MAKES[pick](url, int(limit), int(period_s))
        found = asyncio.run(ask(take, float(seconds), float(warm_s)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
