"""A program that uses every kind of a daemon, run by whichever build of bursar: it uses nothing else of it.

Prints, as JSON, how many tokens of the quota it was granted, in tens until it has `most` or is not granted
any, the fence of its claim, and for each kind "granted" or why not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import bursar

AMOUNT = 10
WAIT_S = 2.0
PATIENCE_S = 15.0


async def use(at: str, most: int) -> dict[str, Any]:
    found: dict[str, Any] = {"told": 0, "fence": 0, "kinds": {}}
    kinds = found["kinds"]
    async with asyncio.timeout(PATIENCE_S), await bursar.connect(at) as b:
        for name in ("rate", "share", "pool"):
            try:
                async with b.resource(name).acquire("acme", wait=WAIT_S):
                    kinds[name] = "granted"
            except (bursar.Refused, bursar.Unknown) as error:
                kinds[name] = f"{type(error).__name__}: {error}"
        async with b.claim("vm-7:E", tenant="acme", wait=WAIT_S) as grant:
            kinds["claim"], found["fence"] = "granted", grant.fence["vm-7"]
        try:
            while found["told"] < most:
                async with b.resource("quota").acquire("acme", AMOUNT, wait=WAIT_S):
                    found["told"] += AMOUNT
                    kinds["quota"] = "granted"
        except (bursar.Refused, bursar.Unknown) as error:
            found["end"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(asyncio.run(use(sys.argv[1], int(sys.argv[2])))))
    except (bursar.BursarError, TimeoutError) as error:
        print(json.dumps({"told": 0, "fence": 0, "kinds": {}, "end": f"{type(error).__name__}: {error}"}))
