"""Which servers a request goes to, and in what words."""

from __future__ import annotations

from bursar.integrations.memcached_proxy.commands import Request
from bursar.integrations.memcached_proxy.ketama import Ring
from bursar.integrations.memcached_proxy.replies import BARRIER, DRAINED, NONE, PART, QUIET, VALUES

Routed = tuple[Request, dict[int, bytes]]
"""A request, and what is sent for it, by the server's place."""

END = b"END\r\n"


def route(request: Request, ring: Ring | None) -> dict[int, bytes]:
    """What is sent where. Requests that may be answered or not have a barrier behind them, so that it is
    known when the next one's answer begins."""
    if request.local is not None:
        return {}
    raw = request.raw + BARRIER if request.shape in (NONE, QUIET) else request.raw
    if ring is None or not request.keys:
        return {0: raw}
    if len(request.keys) == 1:
        return {ring.find((request.inner or request.keys)[0]): raw}
    return _split(request, ring)


def _split(request: Request, ring: Ring) -> dict[int, bytes]:
    keys: dict[int, list[bytes]] = {}
    for key in request.keys:
        keys.setdefault(ring.find(key), []).append(key)
    if len(keys) == 1:
        return {next(iter(keys)): request.raw}
    words = [word for word in request.raw.split() if word]
    head = words[: len(words) - len(request.keys)]  # "get", or "gat" and its time
    return {place: b" ".join([*head, *found]) + b"\r\n" for place, found in keys.items()}


def find_shape(request: Request, parts: int) -> tuple[int, bytes]:
    """(the shape of each server's reply, what the proxy says behind them)."""
    if request.shape == NONE:
        return DRAINED, b""
    if request.shape == VALUES and parts > 1:
        return PART, END
    return request.shape, b""
