"""A daemon in this process, asked over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.resources.over_http import HttpCaller

from bursar.policy import parse
from bursar.runtime.daemon import Daemon

POLICY = """
[daemon]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
state = "{state}"

[resource.cache]
kind = "rate"
servers = {{ bursar = "1k/s" }}
tenant = {{ acme = {{ limit = "20/s" }} }}

[resource.llm]
kind = "quota"
tenant = {{ acme = {{ limit = 1000 }}, globex = {{ limit = 10 }} }}

[resource.dc]
kind = "claim"
dead_holder = "fail"
"""


def write_policy(folder: Path) -> str:
    return POLICY.format(state=folder / "state")


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = await Daemon.open(parse(write_policy(tmp_path), "policy.toml"))
    yield daemon
    await daemon.close()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{daemon.http_at}", timeout=60) as client:
        yield client


@pytest.fixture
async def caller(client: httpx.AsyncClient, daemon: Daemon) -> HttpCaller:
    return HttpCaller("http-async", client, daemon)
