"""One request and its response, under a grant.

The grant is left when the response is through: when its last byte is out, when the client went
away, or when the application failed. An exception, or an answer of 500 and above, is work that
failed, and costs nothing where the kind gives such work back; an answer below 500 is work done,
whatever it says. A client that leaves early has not failed: what it used is charged.
"""

from __future__ import annotations

from bursar.api.ratelimit import Fields
from bursar.errors import BursarError
from bursar.integrations.asgi.costs import FindUsed, Sent
from bursar.integrations.asgi.listening import PARTINGS
from bursar.integrations.asgi.scopes import App, Message, Receive, Scope, Send
from bursar.resource.grants import Grant
from bursar.runtime import logs

FAILED_MIN = 500
ACCEPTED = 101
"""The status of a WebSocket that was accepted."""

BEGINNINGS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


class _FailedAnswer(Exception):
    """The application answered that it failed. Never raised: it tells the grant so."""


class Bill:
    """What is settled for one request, when its response is through. `sent` is what is known of that."""

    def __init__(self, grant: Grant, used: FindUsed | None) -> None:
        self._grant = grant
        self._used = used
        self.sent = Sent()

    async def leave(self, error: Exception | None) -> None:
        """Once: later calls find the grant closed. The response is out, or somebody else's error is on
        its way, so what is wrong with the settling goes to the logs."""
        grant = self._grant
        if grant.closed:
            return
        if self.sent.status >= FAILED_MIN:
            error = _FailedAnswer(f"it answered {self.sent.status}")
        try:
            if self._used is not None and grant.used is None and not self._has_failed(error):
                self._settle(self._used(self.sent))
        except BursarError as mistake:
            self._complain(mistake)
        try:
            await grant.__aexit__(None if error is None else type(error), error, None)
        except BursarError as mistake:
            self._complain(mistake)

    def _has_failed(self, error: Exception | None) -> bool:
        """A response that broke off has used what was sent of it; one that never came, nothing."""
        return isinstance(error, _FailedAnswer) or (error is not None and not self.sent.status)

    def _settle(self, used: int | None) -> None:
        if used is not None:
            self._grant.settle(used)

    def _complain(self, mistake: BursarError) -> None:
        grant = self._grant
        logs.warning("asgi.not_settled", resource=grant.resource, tenant=grant.tenant, why=str(mistake))


class Exchange:
    """Stands between the application and the server for one request."""

    def __init__(
        self, grant: Grant, fields: Fields, used: FindUsed | None, receive: Receive, send: Send
    ) -> None:
        self._bill = Bill(grant, used)
        self._fields = fields
        self._receive = receive
        self._send = send
        self._left = False

    async def run(self, app: App, scope: Scope) -> None:
        leave = self._bill.leave
        try:
            await app(scope, self._hear, self._say)
        except Exception as error:
            await leave(None if self._left else error)
            raise
        except BaseException:
            # Cancelled: nobody knows how far it came, so it is spent.
            await leave(None)
            raise
        await leave(None)

    async def _hear(self) -> Message:
        message = await self._receive()
        if message["type"] in PARTINGS:
            self._left = True
        return message

    async def _say(self, message: Message) -> None:
        kind = message["type"]
        if kind in BEGINNINGS:
            message = self._begin(message)
        elif kind == "http.response.body":
            self._bill.sent.body_bytes += len(message.get("body", b""))
        try:
            await self._send(message)
        except OSError:
            self._left = True
            raise
        if kind == "http.response.body" and not message.get("more_body", False):
            # Not when the application returns: what it does behind the response is not the request.
            await self._bill.leave(None)

    def _begin(self, message: Message) -> Message:
        headers = list(message.get("headers", ()))
        sent = self._bill.sent
        sent.status, sent.headers = message.get("status", ACCEPTED), headers
        return {**message, "headers": headers + self._fields}
