"""One node of the lease as a process: `lease_node.py owner|holder STATE ADDRESS [SPENDS]`.

The holder charges a token to its lease and then uses it: it appends a byte to SPENDS. The file is
the ground truth of what was used, whatever the books say.
"""

from __future__ import annotations

import asyncio
import os
import sys

from bursar.runtime import logs
from bursar.runtime.world import open_world
from bursar.world import MILLISECOND_NS
from bursar_lab.leases.book import HolderBook, OwnerBook
from bursar_lab.leases.courier import HolderNode, OwnerNode

SECRET = bytes(32)
TOTAL, TOKENS, DURATION_NS, DRIFT_PPM = 2_000, 25, 60 * MILLISECOND_NS, 1_000


async def run_owner(state: str, address: str) -> None:
    world = await open_world("owner", state=state, listen=address, secret=SECRET)
    owner = OwnerNode(world, OwnerBook(TOTAL, TOKENS, "holder", DURATION_NS, DRIFT_PPM))
    owner.start()
    logs.info("owner.ready", unspent=owner.book.unspent)
    while not world.failure.done():
        await asyncio.sleep(0.05)
        logs.info("owner.has", unspent=owner.book.unspent, number=owner.book.number)
    raise world.failure.result()


async def run_holder(state: str, address: str, spends: str) -> None:
    world = await open_world("holder", state=state, peers={"owner": address}, secret=SECRET)
    holder = HolderNode(world, HolderBook(world.incarnation, "owner", DURATION_NS))
    holder.start()
    logs.info("holder.ready", life=world.incarnation)
    file = os.open(spends, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while not world.failure.done():
        if holder.spend():
            os.write(file, b".")
        await asyncio.sleep(0.002)
    raise world.failure.result()


def main() -> None:
    logs.configure("json", "info")
    role, *arguments = sys.argv[1:]
    asyncio.run(run_owner(*arguments) if role == "owner" else run_holder(*arguments))


if __name__ == "__main__":
    main()
