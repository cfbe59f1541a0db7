"""A daemon goes away between reserve and settle: what was settled is what is charged."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import bursar

from .processes import Process

LIMIT = 1_000
GRANTS, AMOUNT = 20, 30
BLOCK = 50


def write_policy(folder: Path, mode: str) -> Path:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    policy = folder / "policy.toml"
    policy.write_text(
        f'[daemon]\nlisten = "127.0.0.1:{port}"\nhttp = "off"\nstate = "{folder}/state"\n'
        f'[resource.llm]\nkind = "quota"\nmode = "{mode}"\nblock = {BLOCK}\n'
        f"[resource.llm.tenant]\nacme = {{ limit = {LIMIT} }}\n"
    )
    return policy


def serve(policy: Path) -> Process:
    return Process([sys.executable, "-m", "bursar", "serve", str(policy), "--log", "json"])


async def until_charged(b: Any, least: int, most: int) -> None:
    found: Any = None
    try:
        async with asyncio.timeout(15):
            while found not in [(spent, 0) for spent in range(least, most + 1)]:
                try:
                    (whole,) = (await b.resource("llm").verb("survey"))["rows"]
                    found = whole["spent"], whole["held"]
                except (bursar.NetworkError, ValueError) as error:
                    found = error  # not connected again, or the account is not open there yet
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"(spent, held) is {found}, not ({least} to {most}, 0)")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("mode", ["exact", "fast"])
async def test_a_settlement_outlasts_the_daemon_that_made_the_grant(
    tmp_path: Path, mode: str, end: signal.Signals
) -> None:
    policy = write_policy(tmp_path, mode)
    with serve(policy) as daemon:
        at = f"bursar://{daemon.wait_for('daemon.ready')['address']}"
        async with await bursar.connect(at) as b:
            llm = b.resource("llm")
            grants = [await llm.acquire("acme", AMOUNT, wait=5, key=f"k{n}") for n in range(GRANTS)]
            daemon.signal(end)
            daemon.wait()
            for grant in grants[: GRANTS // 2]:
                grant.settle(1)
                await grant.release()  # while nobody is there
            with serve(policy) as again:
                again.wait_for("daemon.ready")
                for grant in grants[GRANTS // 2 :]:
                    grant.settle(1)
                    await grant.release()
                lost = BLOCK if (mode, end) == ("fast", signal.SIGKILL) else 0
                await until_charged(b, GRANTS, GRANTS + lost)
                with pytest.raises(bursar.UsageError, match="1 of the 30 that were acquired were charged"):
                    async with asyncio.timeout(15):
                        while True:  # a daemon that is slow to answer is told later, and nothing is raised
                            await llm.settle(grants[0].id, 2)
                retry = await llm.acquire("acme", AMOUNT, wait=5, key="k0")
                assert retry.replayed and retry.used == 1
