"""One client process: `python -m ...client URL TENANT STREAMS SECONDS` prints, as JSON, what it was told
by period, when it first heard of each period, what it was told in each twentieth of a second, and how its
calls failed."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import bursar
from bursar.errors import Refused, Unknown
from bursar_lab.experiments.fleet.processes import BIN_S

WAIT_S = 1.0


async def run(url: str, tenant: str, streams: int, seconds: float) -> dict[str, Any]:
    told: Counter[int] = Counter()
    seen: dict[int, float] = {}
    served: Counter[int] = Counter()
    failed: Counter[str] = Counter()
    async with await bursar.connect(url, timeout=20) as b:
        resource = b.resource("api")
        until = time.monotonic() + seconds

        async def ask() -> None:
            while time.monotonic() < until:
                try:
                    async with resource.acquire(tenant, wait=WAIT_S) as grant:
                        if grant.fallback is None:
                            told[grant.period] += 1
                            seen.setdefault(grant.period, time.time())
                            served[int(time.time() / BIN_S)] += 1
                        else:
                            failed[grant.fallback] += 1
                            await asyncio.sleep(0.005)
                except Refused:
                    failed["refused"] += 1
                    await asyncio.sleep(0.005)
                except Unknown:
                    failed["unknown"] += 1
                    await asyncio.sleep(0.005)

        await asyncio.gather(*(ask() for _ in range(streams)))
    return {"tenant": tenant, "told": told, "seen": seen, "served": served, "failed": failed}


if __name__ == "__main__":
    url, tenant, streams, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(run(url, tenant, int(streams), float(seconds)))))
