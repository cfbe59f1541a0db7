"""Alerts at a webhook: posted, tried again, given up; a receiver that is away costs nothing else."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bursar.policy.values import AlertPolicy
from bursar.resource.alerts import Alert
from bursar.runtime import webhook as module
from bursar.runtime.webhook import Webhook

ALERT = Alert(
    name="budget", severity="error", resource="llm", tenant="acme", what="it is used", remedy="wait"
)


class Receiver:
    """Answers with `statuses` in turn, then with 200. `heard` has (request line and headers, body)."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.heard: list[tuple[str, Any]] = []
        self.more = asyncio.Event()
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(int(line[15:]) for line in head.splitlines() if line.startswith("Content-Length:"))
        self.heard.append((head, json.loads(await reader.readexactly(size))))
        status = self.statuses.pop(0) if self.statuses else 200
        where = f"Location: http://127.0.0.1:{self.port}/elsewhere\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{where}Content-Length: 0\r\n\r\n".encode())
        writer.close()
        self.more.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                self.more.clear()
                await self.more.wait()


@asynccontextmanager
async def receive(*statuses: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    server = await asyncio.start_server(receiver.answer, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    yield receiver
    server.close()


@asynccontextmanager
async def post_to(url: str, token: str | None = None) -> AsyncIterator[Webhook]:
    webhook = Webhook(AlertPolicy(url=url), "node-a", token)
    running = asyncio.ensure_future(webhook.run())
    yield webhook
    assert not running.done(), running.exception()
    running.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.0, 0.0))


async def test_an_alert_is_posted_as_json_with_the_token() -> None:
    async with receive() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/hook?team=a"
        async with post_to(url, "the token") as webhook:
            webhook.put(ALERT)
            await receiver.wait_for(1)
            await until(lambda: webhook.counts == {"delivered": 1})
    ((head, body),) = receiver.heard
    assert head.startswith("POST /hook?team=a HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{receiver.port}\r\n" in head
    assert "\r\nAuthorization: Bearer the token\r\n" in head
    assert (body["node"], body["name"], body["tenant"], body["severity"]) == (
        "node-a",
        "budget",
        "acme",
        "error",
    )
    assert body["what"] == "it is used" and body["count"] == 1


async def test_it_is_tried_again_while_the_receiver_fails() -> None:
    async with receive(500, 429, 503) as receiver, post_to(f"http://127.0.0.1:{receiver.port}/") as webhook:
        webhook.put(ALERT)
        await until(lambda: bool(webhook.counts))
        assert webhook.counts == {"delivered": 1}
        assert len(receiver.heard) == 4


@pytest.mark.parametrize("statuses", [(404,), (302,), (500, 500, 500, 500)])
async def test_it_gives_up_and_goes_on_with_the_next(statuses: tuple[int, ...]) -> None:
    """A redirect is not followed: the token is for whoever the policy names."""
    async with receive(*statuses) as receiver, post_to(f"http://127.0.0.1:{receiver.port}/") as webhook:
        webhook.put(ALERT)
        webhook.put(ALERT)
        await until(lambda: webhook.counts.total() == 2)
        assert webhook.counts == {"failed": 1, "delivered": 1}
        assert len(receiver.heard) == len(statuses) + 1


async def test_a_receiver_that_is_away_costs_alerts_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POST_TIMEOUT_S", 0.05)
    silent: list[Any] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for where in (f"127.0.0.1:{port}", "127.0.0.1:1", "nowhere.invalid"):
        async with post_to(f"http://{where}/") as webhook:
            webhook.put(ALERT)
            await until(lambda webhook=webhook: webhook.counts == {"failed": 1})  # type: ignore[misc]
    assert len(silent) == 4
    server.close()


async def test_what_does_not_fit_in_the_queue_is_counted() -> None:
    webhook = Webhook(AlertPolicy(url="http://127.0.0.1:1/"), "node-a")
    for _ in range(module.QUEUED_MAX + 5):
        webhook.put(ALERT)
    assert webhook.counts == {"dropped": 5}


async def test_garbage_in_place_of_http_is_a_failure() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff" * 100_000 if babbled else b"220 smtp\r\n")
        babbled.append(1)
        writer.close()

    babbled: list[int] = []
    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with post_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as webhook:
        webhook.put(ALERT)
        await until(lambda: webhook.counts == {"failed": 1})
    server.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "hook.crt", folder / "hook.key"
    command = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=hook"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.mark.needs("openssl")
async def test_https_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    async with receive(tls=tls) as receiver:
        url = f"https://127.0.0.1:{receiver.port}/"
        async with post_to(url) as webhook:
            webhook.put(ALERT)
            await until(lambda: webhook.counts == {"failed": 1})
        assert not receiver.heard
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        async with post_to(url) as webhook:
            webhook.put(ALERT)
            await until(lambda: webhook.counts == {"delivered": 1})
