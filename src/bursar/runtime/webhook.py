"""Alerts, posted as JSON to an address that the policy names (`[alert] url`).

It happens beside everything else: a receiver that is slow or away costs alerts, which are dropped and
counted, and never a grant. Redirects are not followed: the token is for the receiver that was named.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from urllib.parse import urlsplit

import msgspec

from bursar.errors import NetworkError
from bursar.policy.values import AlertPolicy
from bursar.resource.alerts import Alert
from bursar.runtime import logs
from bursar.runtime.routes import Address

QUEUED_MAX = 100
POST_TIMEOUT_S = 5.0
PAUSES_S = (1.0, 2.0, 4.0)
"""Before the second attempt, the third and the last."""

PORTS = {"http": 80, "https": 443}
TRY_AGAIN = (408, 425, 429)
"""Answers below 500 after which the same may be taken later."""


class Webhook:
    """Posts alerts, oldest first. `node` is who says so."""

    def __init__(self, policy: AlertPolicy, node: str, token: str | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.policy = policy
        self._url = urlsplit(policy.url)
        self._node = node
        self._token = token
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None
        self._queue: asyncio.Queue[Alert] = asyncio.Queue(QUEUED_MAX)

    def put(self, alert: Alert) -> None:
        try:
            self._queue.put_nowait(alert)
        except asyncio.QueueFull:
            self.counts["dropped"] += 1

    async def run(self) -> None:
        while True:
            alert = await self._queue.get()
            delivered = await self._deliver(alert)
            self.counts["delivered" if delivered else "failed"] += 1

    async def _deliver(self, alert: Alert) -> bool:
        """Whether the receiver took it, if need be after some attempts."""
        request = self._write(alert)
        for pause_s in (*PAUSES_S, None):
            try:
                async with asyncio.timeout(POST_TIMEOUT_S):
                    status = await self._post(request)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, NetworkError) as error:
                status, why = 0, str(error) or type(error).__name__
            else:
                why = f"it answered {status}"
            if 200 <= status < 300:
                return True
            if pause_s is None or (300 <= status < 500 and status not in TRY_AGAIN):
                logs.warning("alert.not_delivered", alert=alert.name, to=self._url.netloc, why=why)
                return False
            await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt has no pause after it")

    def _write(self, alert: Alert) -> bytes:
        body = msgspec.json.encode({"node": self._node, **msgspec.to_builtins(alert)})
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        token = f"Authorization: Bearer {self._token}\r\n" if self._token else ""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._url.netloc}\r\nUser-Agent: bursar\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{token}"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body

    async def _post(self, request: bytes) -> int:
        """The status that was answered."""
        host = self._url.hostname or ""
        port = self._url.port or PORTS[self._url.scheme]
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            writer.write(request)
            await writer.drain()
            line = (await reader.readuntil(b"\r\n")).split()
        finally:
            writer.transport.abort()
        if len(line) < 2 or not line[0].startswith(b"HTTP/") or not line[1].isdigit():
            raise NetworkError(f"{Address(host, port)} does not speak HTTP")
        return int(line[1])
