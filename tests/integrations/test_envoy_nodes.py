"""Envoys at two nodes, and a client at one of them: one limit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
from test_envoy_server import make_report, open_stream

from bursar.integrations.envoy.cells import FILL_S
from bursar.policy import parse
from bursar.runtime.daemon import Daemon

LIMIT = 200
POLICY = """
store = "sqlite://{folder}/store.db"
[resource.api]
kind = "rate"
servers = {{ a = "1k/s", b = "1k/s" }}
without_bursar = "refuse"
[resource.api.tenant]
acme = {{ limit = "{limit}/s" }}
[daemon]
name = "{name}"
listen = "127.0.0.1:0"
http = "off"
envoy = "127.0.0.1:0"
state = "{folder}/{name}"
"""
REPORT_S = 1.1
"""Sooner than an Envoy reports: the node goes by its own clock."""


class Envoy:
    """Says that it was asked for the whole limit, and is told a part of it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.told = 0.0
        self._call = open_stream(channel)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._report())]

    async def _listen(self) -> None:
        while (answer := await self._call.read()) is not grpc.aio.EOF:
            strategy = answer.bucket_action[-1].quota_assignment_action.rate_limit_strategy
            self.told = strategy.token_bucket.tokens_per_fill.value / FILL_S

    async def _report(self) -> None:
        asked = 1
        while True:
            await self._call.write(make_report("api", {"acme": (0 if asked == 1 else 1, 0, asked)}))
            asked = int(LIMIT * REPORT_S)
            await asyncio.sleep(REPORT_S)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.cancel()


async def open_node(folder: Path, name: str) -> Daemon:
    return await Daemon.open(parse(POLICY.format(folder=folder, name=name, limit=LIMIT)))


async def read_charged(nodes: list[Daemon]) -> int:
    found: list[Any] = [await node.host.resources["api"].statistics() for node in nodes]
    return sum(each.tenants["acme"].granted for each in found)


async def test_envoys_at_two_nodes_are_told_one_limit_and_it_is_charged(tmp_path: Path) -> None:
    nodes = [await open_node(tmp_path, name) for name in "ab"]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{node.envoy_port}") for node in nodes]
    envoys = [Envoy(channel) for channel in channels]
    try:
        async with asyncio.timeout(30):
            while not (
                0.85 * LIMIT <= sum(envoy.told for envoy in envoys) <= 1.1 * LIMIT
                and min(envoy.told for envoy in envoys) > LIMIT / 5
            ):
                await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        began, before, most = loop.time(), await read_charged(nodes), 0.0
        while loop.time() - began < 3.0:
            await asyncio.sleep(0.1)
            most = max(most, sum(envoy.told for envoy in envoys))
        charged = (await read_charged(nodes) - before) / (loop.time() - began)
        # A part that moves between nodes may be told at both for the moment in which it is being charged.
        assert most <= 1.3 * LIMIT
        # Four periods may have begun within these three seconds.
        assert 0.5 * LIMIT <= charged <= LIMIT * 4 / 3
    finally:
        for envoy in envoys:
            await envoy.close()
        for channel in channels:
            await channel.close()
        for node in nodes:
            await node.close()
