"""One client process of the experiment: `python -m ...client URL TENANT STREAMS SECONDS` prints what it
was told, by period, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import bursar
from bursar.errors import Refused, Unknown


async def run(url: str, tenant: str, streams: int, seconds: float) -> dict[str, Any]:
    """Ask all the time in so many streams; with none, once."""
    told: Counter[int] = Counter()
    lots = 0
    async with await bursar.connect(url) as b:
        resource = b.resource("api")
        until = time.monotonic() + seconds

        async def ask() -> None:
            nonlocal lots
            while time.monotonic() < until:
                try:
                    async with resource.acquire(tenant, wait=1) as grant:
                        told[grant.period] += 1
                        lots += grant._lot is not None
                except (Refused, Unknown):
                    await asyncio.sleep(0.01)

        if streams:
            await asyncio.gather(*(ask() for _ in range(streams)))
        else:
            async with resource.acquire(tenant, wait=1) as grant:
                told[grant.period] += 1
            await asyncio.sleep(seconds)
    return {"tenant": tenant, "told": told, "from_lots": lots}


if __name__ == "__main__":
    url, tenant, streams, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(run(url, tenant, int(streams), float(seconds)))))
