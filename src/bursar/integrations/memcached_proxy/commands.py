"""memcached's text protocol as clients speak it: bytes in, requests out. No I/O, bounded memory.

A request keeps the bytes it came in; nothing is written anew. What cannot be understood is
answered as memcached would, and where the end of a bad request cannot be known the connection
ends: what follows might be data taken for commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from bursar.errors import FormatError

LINE_MAX_BYTES = 32 * 1024
"""A get of a hundred of the longest keys, and some."""

KEY_MAX_BYTES = 250
VALUE_MAX_BYTES = 1024 * 1024
SWALLOW_MAX_BYTES = 64 * 1024 * 1024
"""A value that is too large, but not larger than this, is read and thrown away."""

BINARY = 0x80
"""The first byte of every request of the binary protocol."""

NONE, LINE, VALUES, META = range(4)
"""The shapes of replies: none, one line, values up to END, one meta reply."""

STORAGE = {b"set": 5, b"add": 5, b"replace": 5, b"append": 5, b"prepend": 5, b"cas": 6}
"""Commands with a block of data, and how many words they have."""

REFUSED = (b"stats", b"flush_all", b"verbosity", b"shutdown", b"watch", b"cache_memlimit", b"slabs", b"lru")


class Request(NamedTuple):
    """raw: what is sent on. local: the answer, if the proxy answers by itself. last: then close."""

    keys: tuple[bytes, ...] = ()
    raw: bytes = b""
    shape: int = LINE
    local: bytes | None = None
    last: bool = False


def answer(text: str, *, last: bool = False) -> Request:
    return Request(local=text.encode() + b"\r\n", last=last)


class CommandReader:
    """Feed it bytes, ask it for requests until it has none."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._swallow = 0
        self._swallowed_answer: Request | None = None
        self._wanted = 0
        self._handlers: dict[bytes, Callable[[list[bytes], int], Request | None]] = {
            **dict.fromkeys((b"get", b"gets"), self._read_get),
            **dict.fromkeys((b"gat", b"gats"), self._read_gat),
            **dict.fromkeys(STORAGE, self._read_storage),
            **dict.fromkeys((b"delete", b"incr", b"decr", b"touch"), self._read_line),
            **dict.fromkeys((b"mg", b"md", b"ma", b"me"), self._read_meta),
            b"ms": lambda words, end: self._give_up("CLIENT_ERROR meta set is not passed on; use set"),
            **dict.fromkeys((b"mn", b"version"), self._read_bare),
            b"quit": lambda words, end: self._take(end, answer_nothing),
            **dict.fromkeys(REFUSED, self._read_refused),
        }

    def feed(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    @property
    def incomplete(self) -> bool:
        """Whether anything is here that was not read, or that is to be read before the next request."""
        return self._at < len(self._data) or self._swallow > 0 or self._swallowed_answer is not None

    def read(self) -> Request | None:
        """The next request, or None until more bytes are fed."""
        if self._swallow and not self._swallow_some():
            return None
        if self._swallowed_answer is not None:
            request, self._swallowed_answer = self._swallowed_answer, None
            return request
        if len(self._data) - self._at < self._wanted:
            return None
        end = self._data.find(b"\n", self._at)
        if end < 0 or self._data[self._at] == BINARY:
            return self._check_line()
        if end - self._at > LINE_MAX_BYTES:
            return self._give_up("CLIENT_ERROR line too long")
        line = self._data[self._at : end]
        line = line[:-1] if line.endswith(b"\r") else line
        if _CONTROL.search(line):
            return self._give_up("CLIENT_ERROR control characters in a command")
        # memcached separates words by spaces alone; so must we, or it reads another command.
        words = [word for word in line.split(b" ") if word]
        handler = self._handlers.get(words[0]) if words else None
        if handler is None:
            return self._take(end + 1, answer("ERROR"))
        return handler(words, end + 1)

    def _check_line(self) -> Request | None:
        if self._data[self._at : self._at + 1] == bytes((BINARY,)):
            return self._give_up("CLIENT_ERROR this proxy speaks the text protocol only")
        if len(self._data) - self._at > LINE_MAX_BYTES:
            return self._give_up("CLIENT_ERROR line too long")
        return None

    def _take(self, end: int, request: Request) -> Request:
        self._at = end
        self._wanted = 0
        return request

    def _give_up(self, text: str) -> Request:
        self._data, self._at, self._wanted = b"", 0, 0
        return answer(text, last=True)

    # -- commands of one line ---------------------------------------------------------------

    def _read_get(self, words: list[bytes], end: int) -> Request:
        return self._forward(tuple(words[1:]), end, VALUES)

    def _read_gat(self, words: list[bytes], end: int) -> Request:
        if len(words) < 3 or not _is_time(words[1]):
            return self._take(end, answer("ERROR"))
        return self._forward(tuple(words[2:]), end, VALUES)

    def _read_line(self, words: list[bytes], end: int) -> Request:
        """What memcached would answer with an error is answered so here: it answers errors even to
        requests that want no reply, and then answers would no longer match requests."""
        quiet = len(words) > 2 and words[-1] == b"noreply"
        arguments = words[2:-1] if quiet else words[2:]
        fits = arguments in ([], [b"0"]) if words[0] == b"delete" else len(arguments) == 1
        is_right = _is_time if words[0] == b"touch" else _is_number
        if len(words) < 2 or not fits or not all(map(is_right, arguments)):
            return self._take(end, answer("CLIENT_ERROR bad command line format"))
        return self._forward(tuple(words[1:2]), end, NONE if quiet else LINE)

    def _read_bare(self, words: list[bytes], end: int) -> Request:
        return self._take(end, Request((), self._data[self._at : end], LINE))

    def _read_refused(self, words: list[bytes], end: int) -> Request:
        what = words[0].decode()
        return self._take(end, answer(f"CLIENT_ERROR {what} concerns all tenants and is not passed on"))

    def _read_meta(self, words: list[bytes], end: int) -> Request:
        if _is_quiet(words[2:]):
            return self._take(end, answer("CLIENT_ERROR quiet meta commands are not supported"))
        return self._forward(tuple(words[1:2]), end, META)

    def _forward(self, keys: tuple[bytes, ...], end: int, shape: int) -> Request:
        if not keys:
            return self._take(end, answer("ERROR"))
        for key in keys:
            if len(key) > KEY_MAX_BYTES:
                return self._take(end, answer("CLIENT_ERROR key too long"))
        return self._take(end, Request(keys, self._data[self._at : end], shape))

    # -- commands with data -----------------------------------------------------------------

    def _read_storage(self, words: list[bytes], end: int) -> Request | None:
        count = STORAGE[words[0]]
        quiet = len(words) == count + 1 and words[-1] == b"noreply"
        # A line that memcached would not accept ends it: memcached takes the data for commands then.
        if len(words) != count + quiet:
            return self._give_up("ERROR")
        flags_fit = _is_number(words[2], 2**32 - 1)
        if not (flags_fit and _is_time(words[3]) and all(map(_is_number, words[5:count]))):
            return self._give_up("CLIENT_ERROR bad command line format")
        return self._read_block(words[1], words[4], end, NONE if quiet else LINE)

    def _read_block(self, key: bytes, length: bytes, end: int, shape: int) -> Request | None:
        size = int(length) if length.isdigit() and len(length) <= 10 else -1
        if size < 0 or size > SWALLOW_MAX_BYTES:
            return self._give_up("CLIENT_ERROR bad data chunk")
        if size > VALUE_MAX_BYTES:
            return self._begin_swallowing(end, size + 2, shape, "SERVER_ERROR object too large for cache")
        if len(key) > KEY_MAX_BYTES:
            return self._begin_swallowing(end, size + 2, shape, "CLIENT_ERROR key too long")
        total = end + size + 2
        if len(self._data) < total:
            self._wanted = total - self._at
            return None
        if self._data[total - 2 : total] != b"\r\n":
            return self._give_up("CLIENT_ERROR bad data chunk")
        return self._take(total, Request((key,), self._data[self._at : total], shape))

    def _begin_swallowing(self, end: int, size: int, shape: int, text: str) -> Request | None:
        self._at, self._wanted, self._swallow = end, 0, size
        self._swallowed_answer = answer(text) if shape != NONE else Request(local=b"")
        return self.read()

    def _swallow_some(self) -> bool:
        here = min(self._swallow, len(self._data) - self._at)
        self._at += here
        self._swallow -= here
        return self._swallow == 0


answer_nothing = Request(local=b"", last=True)


_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def _is_number(word: bytes, most: int = 2**64 - 1) -> bool:
    return word.isdigit() and len(word) <= 20 and int(word) <= most


def _is_time(word: bytes) -> bool:
    return _is_number(word.removeprefix(b"-"), 2**31 - 1)


def _is_quiet(flags: list[bytes]) -> bool:
    return any(flag[:1] == b"q" for flag in flags)


class ReplyReader:
    """Finds where replies end in what the server sends. Data passes through; only an unfinished
    line is kept."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = 0

    def scan(self, data: bytes) -> Scan:
        return Scan(self, self._rest + data if self._rest else data)


class Scan:
    """One piece of what the server sent: `finish` replies in it, then `taken` is passed on."""

    __slots__ = ("_data", "_reader", "at")

    def __init__(self, reader: ReplyReader, data: bytes) -> None:
        self._reader = reader
        self._data = data
        self.at = 0

    def finish(self, shape: int) -> bool:
        """Go to the end of the reply that is under way. False if it is not all here."""
        reader = self._reader
        while True:
            if reader._skip:
                here = min(reader._skip, len(self._data) - self.at)
                self.at += here
                reader._skip -= here
                if reader._skip:
                    return False
                if shape == META:
                    return True
            end = self._data.find(b"\n", self.at)
            if end < 0:
                if len(self._data) - self.at > LINE_MAX_BYTES:
                    raise FormatError("the memcached server sent a line without end")
                return False
            start, self.at = self.at, end + 1
            if shape == VALUES and self._data.startswith(b"VALUE ", start):
                reader._skip = self._read_size(start, end, 3)
            elif shape == META and self._data.startswith(b"VA ", start):
                reader._skip = self._read_size(start, end, 1)
            else:
                return True

    def _read_size(self, start: int, end: int, position: int) -> int:
        words = self._data[start:end].split()
        if len(words) <= position or not words[position].isdigit() or len(words[position]) > 10:
            raise FormatError("the memcached server sent a value without its size")
        return int(words[position]) + 2

    def cut(self, start: int) -> bytes:
        """What was gone over since `start`."""
        return self._data[start : self.at]

    def keep(self) -> None:
        """Keep what was not gone over for the next piece."""
        self._reader._rest = self._data[self.at :]

    @property
    def left_bytes(self) -> int:
        return len(self._data) - self.at
