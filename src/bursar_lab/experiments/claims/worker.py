"""One instance as a process:

python -m bursar_lab.experiments.claims.worker NAME URL DIRECTORY SECONDS MAX
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bursar.claims.courier import Instance
from bursar.runtime.world import open_world
from bursar.world import SECOND_NS
from bursar_lab.experiments.claims.live import RESOURCE, SESSION_NS, OutsideTracker


async def main() -> None:
    name, url, directory, seconds, running_max = sys.argv[1:]
    world = await open_world(name, store=url, session_timeout_ns=SESSION_NS)
    tracker = OutsideTracker(Path(directory), int(float(seconds) * SECOND_NS))
    instance = Instance(world, RESOURCE, dead_holder="requeue", tracker=tracker, running_max=int(running_max))
    await instance.start()
    await world.failure


if __name__ == "__main__":
    asyncio.run(main())
