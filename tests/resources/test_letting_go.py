"""A claim held at a client of a daemon, let go of while the daemon is restarted, or away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import bursar
from bursar.policy import parse
from bursar.resource import wire
from bursar.resource.line import Line
from bursar.runtime.daemon import Daemon

POLICY = """
store = "sqlite://{folder}/store.db"
[resource.vms]
kind = "claim"
[resource.vms.tenant]
ops = {{}}
[daemon]
listen = "127.0.0.1:{port}"
http = "off"
state = "{folder}/state"
"""


async def serve(folder: Path, port: int = 0) -> tuple[Daemon, int]:
    daemon = await Daemon.open(parse(POLICY.format(folder=folder, port=port), "vms.toml"))
    return daemon, daemon.host.world.listening.port


async def test_a_name_is_free_although_its_daemon_was_restarted_meanwhile(tmp_path: Path) -> None:
    daemon, port = await serve(tmp_path)
    async with await bursar.connect(f"bursar://127.0.0.1:{port}") as b:
        async with b.claim("vm-1:E", tenant="ops", wait=5) as grant:
            await daemon.close()
            daemon, _ = await serve(tmp_path, port)
            with pytest.raises(bursar.Refused):
                await b.claim("vm-1:E", tenant="ops")
        async with b.claim("vm-1:E", tenant="ops") as again:
            assert again.fence["vm-1"] > grant.fence["vm-1"]
    await daemon.close()


async def test_a_release_that_the_daemon_did_not_hear_is_told_until_it_does(tmp_path: Path) -> None:
    daemon, port = await serve(tmp_path)
    async with await bursar.connect(f"bursar://127.0.0.1:{port}") as b:
        grant = await b.claim("vm-1:E", tenant="ops", wait=5)
        await daemon.close()
        with pytest.raises(bursar.Unknown, match="released later"):
            await grant.release()
        daemon, _ = await serve(tmp_path, port)
        async with b.claim("vm-1:E", tenant="ops", wait=10):
            pass
    await daemon.close()


async def test_a_release_that_is_cancelled_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, port = await serve(tmp_path)
    async with await bursar.connect(f"bursar://127.0.0.1:{port}") as b:
        grant = await b.claim("vm-1:E", tenant="ops", wait=5)
        ask, asked = Line.ask, asyncio.Event()

        async def never(self: Line, message: object, *rest: int) -> object:
            asked.set()
            return await asyncio.Event().wait()

        monkeypatch.setattr(Line, "ask", never)
        releasing = asyncio.ensure_future(grant.release())
        await asked.wait()
        monkeypatch.setattr(Line, "ask", ask)
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
        async with b.claim("vm-1:E", tenant="ops", wait=10):
            pass
    await daemon.close()


async def test_who_was_given_a_claim_since_with_its_key_keeps_it(tmp_path: Path) -> None:
    daemon, port = await serve(tmp_path)
    url = f"bursar://127.0.0.1:{port}"
    async with await bursar.connect(url) as b, await bursar.connect(url) as other:
        first = await b.claim("vm-1:E", tenant="ops", key="k", wait=5)
        await daemon.close()
        daemon, _ = await serve(tmp_path, port)
        second = await other.claim("vm-1:E", tenant="ops", key="k", wait=5)
        assert second.replayed
        await first.release()
        with pytest.raises(bursar.Refused):
            await b.claim("vm-1:E", tenant="ops")
        await second.release()
        async with b.claim("vm-1:E", tenant="ops"):
            pass
    await daemon.close()


async def test_only_a_claim_is_released_by_its_id(tmp_path: Path) -> None:
    """Not a task, which somebody does."""
    daemon, port = await serve(tmp_path)
    async with await bursar.connect(f"bursar://127.0.0.1:{port}") as b:
        vms = b.resource("vms")
        id = await vms.verb("submit", tenant="ops", names="vm-1:E", payload=b"")
        line: Line = vms.decider._line  # type: ignore[attr-defined]
        for attempt in (0, 1):
            await line.ask(wire.Release("vms", id, attempt))
        assert (await vms.verb("read", id=id))["state"] == "pending"
        with pytest.raises(bursar.UsageError, match="no task's id"):
            await line.ask(wire.Release("vms", "a/b", 1))
    await daemon.close()
