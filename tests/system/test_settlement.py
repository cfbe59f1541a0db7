"""What was reserved at a real daemon is settled for what was used: through a clean stop, a kill, a long gap
in the network, and from another process. And without the daemon nobody gets what is not theirs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import bursar
from bursar.demo.ports import find_free_port
from bursar.errors import NetworkError, Refused, Unknown, UsageError

POLICY = """
[resource.llm]
kind = "quota"
mode = "{mode}"
[resource.llm.tenant]
acme = {{ limit = 1_000 }}
[resource.api]
kind = "rate"
servers = {{ here = "10k/s" }}
[resource.api.tenant]
acme = {{ limit = "1k/s" }}
[daemon]
listen = "127.0.0.1:{port}"
http = "off"
state = "{state}"
"""


class Served:
    """A daemon that can be stopped, killed and started again where it was."""

    def __init__(self, folder: Path, mode: str = "exact") -> None:
        self.port = find_free_port()
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY.format(port=self.port, state=folder / "state", mode=mode))
        self.child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"bursar://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "bursar", "serve", str(self.policy)]
        self.child = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.child is not None:
            self.child.send_signal(number)
            self.child.wait(20)
            self.child = None


@pytest.fixture(params=["exact", "fast"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    daemon = Served(tmp_path, request.param)
    daemon.start()
    yield daemon
    daemon.end(signal.SIGKILL)


async def connect(served: Served) -> bursar.Bursar:
    async with asyncio.timeout(60):
        while True:
            try:
                return await bursar.connect(served.url)
            except NetworkError:
                await asyncio.sleep(0.05)


async def use_all(b: bursar.Bursar) -> int:
    """How much is left: all of it is taken, and told."""
    got = 0
    async with asyncio.timeout(60):
        while True:
            try:
                async with b.resource("llm").acquire("acme", 10, wait=1):
                    got += 10
            except Refused:
                return got
            except Unknown:
                await asyncio.sleep(0.05)


async def until_nothing_is_held(b: bursar.Bursar) -> None:
    """Settlements that found no daemon are told again until one answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                part = msgspec.to_builtins((await b.statistics("llm")).part)
                if part["tenants"]["acme"]["held"] == 0 and part["holds"] == 0:
                    return
            except NetworkError:
                await asyncio.sleep(0.05)  # it is not up yet
            await asyncio.sleep(0.05)


async def until_settled(b: bursar.Bursar, id: str, used: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await b.resource("llm").settle(id, used)
                return
            except Unknown:
                await asyncio.sleep(0.05)


async def test_a_settlement_survives_a_clean_restart_of_the_daemon(served: Served) -> None:
    async with await connect(served) as b:
        grants = [await b.resource("llm").acquire("acme", 40, wait=2) for _ in range(10)]
        await asyncio.to_thread(served.end)
        served.start()
        for grant in grants:
            grant.settle(10)
            await grant.release()
        await until_nothing_is_held(b)
        assert await use_all(b) == 1_000 - 100


async def test_a_settlement_survives_a_gap_longer_than_the_session(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.start()
    try:
        async with await connect(served) as b:
            grants = [await b.resource("llm").acquire("acme", 40, wait=2) for _ in range(10)]
            assert served.child is not None
            os.kill(served.child.pid, signal.SIGSTOP)  # nothing is heard for longer than a session lasts
            for grant in grants:
                grant.settle(10)
                await grant.release()
            await asyncio.sleep(11)
            os.kill(served.child.pid, signal.SIGCONT)
            await until_nothing_is_held(b)
            assert await use_all(b) == 1_000 - 100
    finally:
        served.end(signal.SIGKILL)


async def test_another_process_settles_by_the_id(served: Served) -> None:
    async with await connect(served) as first:
        grant = await first.resource("llm").acquire("acme", 40, wait=2, key="request-7")
        async with await connect(served) as second:
            await until_settled(second, grant.id, 15)
            await until_settled(second, grant.id, 15)
            with pytest.raises(UsageError):
                await second.resource("llm").settle(grant.id, 16)
            assert await use_all(second) == 980, "tens of the 985 that are left"


async def test_a_spent_quota_stays_spent_while_the_daemon_is_away(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.start()
    try:
        async with await connect(served) as b:
            assert await use_all(b) == 1_000
            await asyncio.to_thread(served.end, signal.SIGKILL)
            for _ in range(20):
                with pytest.raises((Unknown, Refused)):
                    await b.resource("llm").acquire("acme", 10)
    finally:
        served.end(signal.SIGKILL)


async def test_a_rate_keeps_what_it_had_and_no_more_while_the_daemon_is_away(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.start()
    try:
        async with await connect(served) as b:
            api, periods = b.resource("api"), set()
            async with asyncio.timeout(60):
                while len(periods) < 3:  # two periods seen to end, with 100 tokens or so in each
                    try:
                        async with api.acquire("acme", wait=2) as grant:
                            periods.add(grant.period)
                    except Unknown:
                        await asyncio.sleep(0.05)
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(served.end, signal.SIGKILL)
            granted, unknown, until = 0, 0, time.monotonic() + 4
            while time.monotonic() < until:
                try:
                    async with api.acquire("acme", 10):
                        granted += 10
                except (Unknown, Refused):
                    unknown += 1
                    await asyncio.sleep(0.01)
            assert unknown > 0, "everything was let through"
            assert granted <= 6 * 150, "in each second at most about what the last period had"
    finally:
        served.end(signal.SIGKILL)
