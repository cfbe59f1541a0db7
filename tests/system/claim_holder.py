"""A process that holds a claim and writes through a guard when told to, a line at a time:
`python claim_holder.py URL DATABASE NAME` answers "granted FENCE", then for each line on its input
"written" or "refused"."""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from bursar.claims.fences import StaleFence
from bursar.claims.resource import open_resource
from bursar.integrations.guards import SqlGuard
from bursar.policy import ClaimPolicy
from bursar.runtime.world import open_world
from bursar.world import SECOND_NS


def write(database: str, fence: int, who: str) -> str:
    guard = SqlGuard()
    connection = sqlite3.connect(database, isolation_level=None, timeout=10)
    connection.execute("BEGIN IMMEDIATE")
    try:
        guard.check(connection, "vm-7", fence)
        connection.execute("INSERT INTO writes VALUES (?, ?)", (who, fence))
        connection.execute("COMMIT")
        return "written"
    except StaleFence:
        connection.execute("ROLLBACK")
        return "refused"
    finally:
        connection.close()


async def main() -> None:
    url, database, name = sys.argv[1:]
    world = await open_world(name, store=url, session_timeout_ns=SECOND_NS)
    resource = open_resource(world, "things", ClaimPolicy(name="things", dead_holder="fail"))
    await resource.start()
    grant = await resource.claim(["vm-7:E"], name, wait=30)
    print("granted", grant.fence["vm-7"], flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(write(database, grant.fence["vm-7"], name), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
