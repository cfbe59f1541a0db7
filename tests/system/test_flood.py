"""A daemon with few open files, and more connections than that which mean it no good."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import bursar
from bursar.policy.values import Tls

from .processes import WITH_TOYS, Process

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
FLOOD = 1_300
FILES = 1_024

POLICY = """
[daemon]
name = "node-a"
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
state = "{folder}/state"
tls = {{ cert = "{folder}/node-a.crt", key = "{folder}/node-a.key", ca = "{folder}/ca.crt" }}
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = {{ limit = 1_000_000_000 }}
"""


@pytest.fixture(scope="module", autouse=True)
def files() -> None:
    """This process holds the other ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    script = re.search(r"```sh\n(# make the certificates.*?)```", SECURITY.read_text(), re.DOTALL)
    assert script is not None
    subprocess.run(["bash", "-eu", "-c", script[1]], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "policy.toml").write_text(POLICY.format(folder=tmp_path))
    return tmp_path


def serve(folder: Path) -> Process:
    """A daemon that may open so many files and no more."""
    limited = f'ulimit -n {FILES}; exec "$0" "$@"'
    command = [sys.executable, "-c", WITH_TOYS, "serve", str(folder / "policy.toml"), "--log", "json"]
    return Process(["bash", "-c", limited, *command])


def begin_handshake() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


@contextlib.asynccontextmanager
async def flood(port: int, said: bytes) -> AsyncIterator[None]:
    """Connections that come at once, say so much, and stay."""
    held = []

    async def dial() -> None:
        sock = socket.socket()
        sock.setblocking(False)
        held.append(sock)
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            sock.send(said)

    coming = asyncio.gather(*(dial() for _ in range(FLOOD)))
    try:
        yield
        await coming
    finally:
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming
        for sock in held:
            sock.close()


async def call_often(client: bursar.Bursar, duration_s: float) -> list[float]:
    """How long each call took; every one of them is granted."""
    took = []
    until_s = time.perf_counter() + duration_s
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        await (await client.resource("llm").acquire("acme", wait=5.0)).release()
        took.append(time.perf_counter() - began_s)
        await asyncio.sleep(0.001)
    return sorted(took)


async def connect(folder: Path, port: int) -> bursar.Bursar:
    files = Tls(cert=str(folder / "web.crt"), key=str(folder / "web.key"), ca=str(folder / "ca.crt"))
    return await bursar.connect(f"bursar://127.0.0.1:{port}", name="web", tls=files, timeout=20)


async def attack(folder: Path, port: int, said: bytes, duration_s: float) -> None:
    async with await connect(folder, port) as client:
        before = await call_often(client, duration_s)
        async with flood(port, said):
            during = asyncio.create_task(call_often(client, duration_s))
            async with await connect(folder, port) as late:
                await call_often(late, 0.1)
            took = await during
    for name, found in (("before", before), ("during", took)):
        p50, p99 = (found[len(found) * part // 100] * 1000 for part in (50, 99))
        print(f"{name}: {len(found)} calls, p50 {p50:.2f} ms, p99 {p99:.2f} ms, most {found[-1]:.3f} s")


def read_metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    pattern = r'^bursar_network_events_total\{event="(\w+)"\} (\S+)$'
    return {name: float(count) for name, count in re.findall(pattern, text, re.MULTILINE)}


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("kind", ["idle", "half_open"])
def test_connections_beyond_its_open_files_stop_nobody(folder: Path, kind: str) -> None:
    with serve(folder) as daemon:
        lowered = daemon.wait_for("connections.lowered")
        ready = daemon.wait_for("daemon.ready")
        assert (lowered["open_files"], lowered["wanted"]) == (FILES, 4_000)
        said = begin_handshake() if kind == "half_open" else b""
        asyncio.run(attack(folder, port_of(ready["address"]), said, 3.0))
        counts = read_metrics(port_of(ready["http"]))
        cut = ("cut_crowded", "cut_stalled", "handshake_failed")
        assert sum(counts.get(name, 0) for name in cut) > FLOOD / 4
        assert counts.get("accept_failed", 0) == 0
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        lines = [json.loads(line)["event"] for line in daemon.lines if line.startswith("{")]
        assert any(event in ("cut.crowded", "cut.stalled", "handshake.failed") for event in lines)
        assert len(lines) < 60, "each is counted, and only some are logged"
