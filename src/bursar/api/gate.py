"""Who is let in, and what of a request is read: before any operation.

On loopback there may be no token, so that a page in somebody's browser must not be able to ask: a
request must name this machine as its Host (a name of a stranger's that leads here would let its page
in), must not come from another site's page, and must call its body JSON, which a page can only do
after asking first, and nobody here answers that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request

from bursar.api.errors import BodyError, GoneError, UnidentifiedError
from bursar.errors import DeniedError, Unknown, UsageError
from bursar.fleet.rights import Caller, Rights
from bursar.world import SECOND_NS

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
JSON = "application/json"
DROPPED_BYTES = 1024 * 1024


@dataclass(slots=True)
class Gate:
    """`host`: where it listens; `local`: on loopback. `rights` are there once the store is open."""

    host: str
    local: bool
    rights: Rights | None = None

    def check_origin(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "")
        if self.local and not self._is_here(host):
            raise BodyError(f"this is not {host[:100] or 'a request with a Host'}: ask for localhost", 421)
        origin = headers.get("origin")
        if origin is not None and urlsplit_host(origin) != host.lower():
            raise DeniedError(f"pages of {origin[:100]} may not ask here")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise DeniedError("pages of other sites may not ask here")

    def _is_here(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        name = name if colon and port.isdigit() else host
        here = f"[{self.host}]" if ":" in self.host else self.host
        return name.lower() in LOCAL or name.lower() == here

    async def identify(self, request: Request) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else None
        certificate: tuple[str, ...] = request.scope.get("state", {}).get("certificate", ())
        rights = self.rights
        if rights is None:
            raise Unknown("this daemon is being started: ask again")
        if rights.is_open and not self.local and not certificate:
            raise UnidentifiedError("show a certificate that this daemon's authority signed")
        try:
            return rights.identify(given or None, certificate)
        except DeniedError as error:
            source = request.client.host if request.client else "nowhere"
            await asyncio.sleep(rights.note_refused(f"http {source}", str(error)) / SECOND_NS)
            raise UnidentifiedError(f"{error} (Authorization: Bearer TOKEN)") from error


def urlsplit_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


async def read_body(request: Request, form: Any, most: int) -> Any:
    """What was sent, checked. Raises BodyError, GoneError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise BodyError(f"send Content-Type: {JSON}, not {kind[:60] or 'none'}", 415)
    data = await _read(request, most)
    try:
        return msgspec.json.decode(data, type=form)
    except msgspec.ValidationError as error:
        raise BodyError(f"the body is not what this takes: {error}", 422) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BodyError(f"the body is not JSON: {error}", 400) from error


async def _read(request: Request, most: int) -> bytes:
    """A little more than is allowed is read and dropped: a client that is still sending when the connection
    is closed may never see why."""
    said = int(request.headers.get("content-length", "0"))
    data, size = bytearray(), 0
    try:
        async for piece in request.stream() if said <= most + DROPPED_BYTES else _nothing():
            size += len(piece)
            if size > most + DROPPED_BYTES:
                break
            if size <= most:
                data += piece
    except ClientDisconnect as error:
        raise GoneError("the client left") from error
    if max(size, said) > most:
        raise BodyError(f"the body is larger than {most} bytes", 413)
    return bytes(data)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def refuse_body(request: Request) -> None:
    """An operation that takes none: what is sent along by mistake is not passed over."""
    if request.method in ("GET", "HEAD"):
        return
    if await _read(request, 1024):
        raise BodyError("this takes no body", 400)


def read_query(request: Request, form: Any) -> Any:
    given = dict(request.query_params)
    if form is None:
        if given:
            raise BodyError(f"{', '.join(sorted(given))[:100]}: this takes no parameters", 422)
        return None
    if len(given) != len(request.query_params.multi_items()):
        raise BodyError("a parameter is given twice", 422)
    try:
        return msgspec.convert(given, form, strict=False)
    except msgspec.ValidationError as error:
        raise BodyError(f"the parameters are not what this takes: {error}", 422) from error


async def wait_until_gone(request: Request) -> None:
    """Return when the client has left. The body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


def check_text(name: str, text: str) -> str:
    """A part of the path."""
    if not text.isprintable():
        raise UsageError(f"{name} has characters that cannot be printed")
    return text
