"""Every kind on a fleet's store, of the engine that BURSAR_TEST_STORE names (`engine`): two daemons, of which
one is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import bursar
from bursar import Refused, Unknown

from .test_fleet import Fleet

PATIENCE_S = 60
LIMIT = 200
POLICY = f"""
[resource.api]
kind = "rate"
period = "1s"
servers = {{ "*" = "10k/s" }}
[resource.api.tenant]
acme = {{ limit = "200/s" }}
[resource.disk]
kind = "share"
capacity = "10k/s"
[resource.disk.tenant]
acme = {{ weight = 1 }}
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = {{ limit = {LIMIT} }}
[resource.vms]
kind = "claim"
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


async def use_all(url: str) -> None:
    """One of each, within what a takeover takes."""
    async with await bursar.connect(url, timeout=PATIENCE_S) as b:
        for name in ("api", "disk", "llm"):
            await granted(b, name)
        fences = []
        for _ in range(2):
            async with b.claim("vms", "vm-1:E", "vm-2:S", tenant="acme", wait=PATIENCE_S) as grant:
                fences.append(grant.fence["vm-1"])
        assert fences[0] < fences[1]


async def granted(b: bursar.Bursar, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with b.resource(name).acquire("acme", wait=5):
                    return
            except (Refused, Unknown):
                await asyncio.sleep(0.1)


async def spend_all(url: str) -> int:
    """Of the quota, until it is refused."""
    told = 0
    async with await bursar.connect(url, timeout=PATIENCE_S) as b:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await b.resource("llm").acquire("acme", 10, wait=2)
                    told += 10
                except Unknown:
                    await asyncio.sleep(0.1)
                except Refused:
                    return told


@pytest.mark.skipif("BURSAR_TEST_STORE" not in os.environ, reason="its own command: BURSAR_TEST_STORE=etcd")
def test_every_kind_grants_before_and_after_a_node_was_killed(fleet: Fleet) -> None:
    fleet.apply(POLICY)
    fleet.be_up("a", "b")
    asyncio.run(use_all(fleet.url("a")))
    asyncio.run(use_all(fleet.url("b")))
    fleet.nodes["a"].signal(signal.SIGKILL)
    fleet.nodes["a"].wait()
    asyncio.run(use_all(fleet.url("b")))
    fleet.be_up("a")
    asyncio.run(use_all(fleet.url("a")))
    assert LIMIT - 20 <= asyncio.run(spend_all(fleet.url("a", "b"))) <= LIMIT - 4
