"""One client process of a live run: `python -m ...client CONFIG.json` connects to every server's daemon,
says "ready", begins at the boot time that it reads from standard input, and prints what it was told."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import msgspec

import bursar
from bursar.runtime.loops import new_event_loop
from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_live.load import FileRequests, Load, MemcachedRequests, Requests
from bursar_lab.experiments.rates_live.plan import RESOURCE, Config
from bursar_lab.experiments.rates_live.tally import Tally, boot_ns

CONNECT_S = 30.0


async def run(config: Config) -> dict[str, Any]:
    tally = Tally(config.plan)
    loads = {server: _make_load(config, server, tally) for server in config.urls}
    doors = {server: await bursar.connect(url, timeout=CONNECT_S) for server, url in config.urls.items()}
    requests = {server: await _prepare(config, server) for server in config.urls}
    tally.began_at = await _await_begin()
    await asyncio.sleep(max(0.0, (tally.began_at - boot_ns()) / SECOND_NS))
    for server, load in loads.items():
        load.start(tally.began_at, doors[server].resource(RESOURCE), requests[server])
    await asyncio.sleep((tally.began_at - boot_ns()) / SECOND_NS + config.plan.duration_s)
    described = tally.describe()
    tasks = [task for load in loads.values() for task in load.tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for server in config.urls:
        await doors[server].close()
        await requests[server].close()
    return described


def _make_load(config: Config, server: str, tally: Tally) -> Load:
    flows = config.plan.flows_to(server)
    return Load({tenant: flows[tenant] for tenant in config.tenants if tenant in flows}, config.plan, tally)


async def _prepare(config: Config, server: str) -> Requests:
    plan, target = config.plan, config.targets[server]
    chance = random.Random(f"{plan.seed}.{config.name}.{server}")
    requests: Requests = (
        MemcachedRequests(plan, target, chance)
        if plan.backend == "memcached"
        else FileRequests(target, chance)
    )
    await requests.prepare()
    return requests


async def _await_begin() -> int:
    print("ready", flush=True)
    return int(await asyncio.to_thread(sys.stdin.readline))


def main(path: str) -> None:
    config = msgspec.json.decode(Path(path).read_bytes(), type=Config)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(run(config))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
