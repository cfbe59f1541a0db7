"""What clients are told in place of the server's answer.

A refusal is an error, or what a client takes for a miss. It is never a SERVER_ERROR: libmemcached (pylibmc,
PHP) calls a server dead after one, for every tenant of the program; after a CLIENT_ERROR it goes on.
pymemcache, aiomcache and meta-memcache end their connection after any error, and make another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bursar.errors import BursarError, Refused, Unknown, UsageError
from bursar.integrations.memcached_proxy.commands import DELETE, READ, Request
from bursar.integrations.memcached_proxy.replies import NONE

STRANGER = b"CLIENT_ERROR no tenant for this key\r\n"
UNKNOWN = b"CLIENT_ERROR the quota cannot be learnt now\r\n"


@dataclass(frozen=True, slots=True)
class Refusals:
    """reads: a refused get is an "error", or a "miss". writes: a refused set is an "error", or
    "not-stored" (NOT_STORED, and NOT_FOUND for what counts or touches). deletes: a refused delete is an
    "error", or "not-found": then who took it for done is served what should be gone."""

    reads: Literal["error", "miss"] = "error"
    writes: Literal["error", "not-stored"] = "error"
    deletes: Literal["error", "not-found"] = "error"

    def __post_init__(self) -> None:
        for name, word in {"reads": "miss", "writes": "not-stored", "deletes": "not-found"}.items():
            if getattr(self, name) not in ("error", word):
                raise UsageError(
                    f'refused {name} are answered "error" or "{word}", not {getattr(self, name)!r}'
                )

    def answer(self, request: Request, error: BursarError) -> tuple[str, bytes]:
        """(what is counted, the answer). Raises what is not an answer."""
        if request.shape == NONE:
            return _name(error), b""
        if isinstance(error, UsageError) or (isinstance(error, Refused) and error.reason == "tenant"):
            return "strangers", STRANGER
        if self._is_hidden(request):
            return _name(error), request.missed
        if isinstance(error, Refused):
            after = "" if error.retry_after is None else f"; retry in {error.retry_after:.3f} s"
            return "refused", f"CLIENT_ERROR refused: {error.why}{after}\r\n".encode()
        return "unknown", UNKNOWN

    def _is_hidden(self, request: Request) -> bool:
        if request.wants == READ:
            return self.reads == "miss"
        return (self.deletes if request.wants == DELETE else self.writes) != "error"


def _name(error: BursarError) -> str:
    """What it is counted as. Raises what is not an answer."""
    if isinstance(error, UsageError) or (isinstance(error, Refused) and error.reason == "tenant"):
        return "strangers"
    if isinstance(error, Refused):
        return "refused"
    if isinstance(error, Unknown):
        return "unknown"
    raise error


def unreachable(servers: int) -> bytes:
    """With one server all are concerned, with several only the keys of one."""
    word = "SERVER_ERROR" if servers == 1 else "CLIENT_ERROR"
    return f"{word} the memcached server cannot be reached\r\n".encode()


def gone(servers: int) -> bytes:
    word = "SERVER_ERROR" if servers == 1 else "CLIENT_ERROR"
    return f"{word} the memcached server is gone\r\n".encode()
