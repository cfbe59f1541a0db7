"""A daemon whose disk fails: it stops as a whole, leaves the fleet, and its last word says what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.errors import BursarError
from bursar.policy import parse
from bursar.runtime import journal
from bursar.runtime.daemon import Daemon

POLICY = """
store = "sqlite://{folder}/store.db"
[daemon]
listen = "127.0.0.1:0"
http = "off"
state = "{folder}/state"
[resource.llm]
kind = "quota"
tenant = {{ acme = {{ limit = 100 }} }}
[resource.vms]
kind = "claim"
"""


async def test_a_full_disk_ends_the_daemon_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = await Daemon.open(parse(POLICY.format(folder=tmp_path), "p.toml"))
    running = asyncio.ensure_future(daemon.run())
    async with await bursar.connect(f"bursar://{daemon.host.world.listening}") as b:
        async with b.resource("llm").acquire("acme", wait=5):
            pass

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(journal, "_write_all", full)
        with pytest.raises(BursarError):
            async with b.resource("llm").acquire("acme", wait=1):
                pass
        async with asyncio.timeout(10):
            assert await running == 1
    last = caplog.records[-1]
    assert last.getMessage() == "daemon.failed"
    assert "No space left on device; free or repair the disk, then restart" in last.fields["why"]  # type: ignore[attr-defined]
