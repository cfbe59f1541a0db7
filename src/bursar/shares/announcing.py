"""What else can be asked of a share: to keep tokens for a burst that is known to come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bursar import units
from bursar.errors import UsageError
from bursar.resource import check_name
from bursar.resource.decider import Verb
from bursar.shares.book import TargetBook
from bursar.world import SECOND_NS

AHEAD_MAX_NS = 86_400 * SECOND_NS
LASTING = "1min"


class Announcing:
    """Plain values in and out, so that it can be asked for over the wire too."""

    def __init__(self, book: TargetBook) -> None:
        self._book = book

    def by_name(self) -> dict[str, Verb]:
        return {"announce": self.announce}

    async def announce(
        self, tenant: str, tokens: int | str, after: float | str = 0, lasting: float | str = LASTING
    ) -> Mapping[str, Any]:
        """The tenant will want so many tokens ("10GiB"), a time from now on ("30s", or seconds), and they
        are waited for as long as `lasting` says. 0 tokens take back what was announced."""
        check_name("tenant", tenant)
        count = _read_tokens(tokens)
        starts_ns = _read_time("after", after)
        ends_ns = starts_ns + max(1, _read_time("lasting", lasting))
        self._book.announce(tenant, count, starts_ns, ends_ns)
        return {"tokens": count, "starts_in": starts_ns / SECOND_NS, "ends_in": ends_ns / SECOND_NS}


def _read_tokens(tokens: object) -> int:
    if isinstance(tokens, str):
        return int(tokens) if tokens.isdecimal() else units.read_size_bytes(tokens)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise UsageError(f'a burst is a whole number of tokens, or of bytes as "10GiB", not {tokens!r}')
    return tokens


def _read_time(what: str, time: object) -> int:
    time_ns = -1
    if isinstance(time, str):
        time_ns = units.read_duration_ns(time)
    elif isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time <= AHEAD_MAX_NS:
        time_ns = int(time * SECOND_NS)
    if not 0 <= time_ns <= AHEAD_MAX_NS:
        raise UsageError(f'{what} is a time up to a day, in seconds or as "30s", not {time!r}')
    return time_ns
