"""The quick way through: requests of one tenant that are plainly written, as many as came at once.

A pattern that is compiled once finds the tenant and the end of up to 64 gets; what it does not match is read
with care (`commands`), so it may be as narrow as it likes, but must not take what memcached would not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bursar.integrations.memcached_proxy.replies import LINE, VALUES

RUN_MAX = 64
"""Requests of one tenant that are charged at once."""

NAMES_MAX = 10_000
_KEY = rb"[!-~\x80-\xff]"


Run = tuple[str, int, Sequence[tuple[int, int]], int]
"""Requests of one tenant: (its name, how many keys they name, the shape and number of what answers them, in
turn, where they end)."""

ONE_GET = ((VALUES, 1),)


class RunReader:
    """Reads runs. `separator`: what ends the tenant's name in a key, or None if every key is `tenant`'s."""

    def __init__(self, separator: bytes | None, tenant: str | None = None) -> None:
        self._tenant = tenant
        self._names: dict[bytes, str] = {}
        first, same = rb"()" + _KEY + rb"{1,250}", _KEY + rb"{1,250}"
        if separator is not None:
            mark = re.escape(separator)
            # Together at most 250 bytes, as memcached has it.
            rest = mark + _KEY + rb"{0,%d}" % (150 - len(separator))
            name = rb"((?:(?!%b)%b){1,100})" % (mark, _KEY)
            first, same = name + rest, rb"\1" + rest
        self._gets = re.compile(rb"get %b\r\n(?:get %b\r\n){0,%d}" % (first, same, RUN_MAX - 1)).match
        # Times and flags of nine digits fit whatever memcached has for them.
        self._set = re.compile(rb"set %b \d{1,9} \d{1,9} (\d{1,6})\r\n" % first).match

    def read(self, data: bytes, at: int) -> Run | None:
        found = self._gets(data, at)
        if found is not None and found.end() == len(data) and data.find(b"\n", at) == len(data) - 1:
            return self._find(found[1]), 1, ONE_GET, len(data)
        return self._read_many(data, at)

    def _read_many(self, data: bytes, at: int) -> Run | None:
        shapes: list[tuple[int, int]] = []
        name, keys = None, 0
        while keys < RUN_MAX:
            found = self._gets(data, at)
            if found is not None:
                end, shape = found.end(), VALUES
                count = data.count(b"\n", at, end)
            else:
                found = self._set(data, at)
                if found is None:
                    break
                end, shape, count = found.end() + int(found[2]) + 2, LINE, 1
                if data[end - 2 : end] != b"\r\n":
                    break  # not all here, or not as it should be
            if name is None:
                name = found[1]
            elif name != found[1] or keys + count > RUN_MAX:
                break
            shapes.append((shape, count))
            keys += count
            at = end
        return None if name is None else (self._find(name), keys, shapes, at)

    def _find(self, name: bytes) -> str:
        if self._tenant is not None:
            return self._tenant
        found = self._names.get(name)
        if found is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            found = self._names[name] = name.decode(errors="replace")
        return found
