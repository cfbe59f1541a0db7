"""memcached's text protocol as clients speak it: bytes in, requests out. No I/O, bounded memory.

A request keeps the bytes it came in; nothing is written anew. What cannot be understood is
answered as memcached would, and where the end of a bad request cannot be known the connection
ends: what follows might be data taken for commands.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable
from typing import NamedTuple

from bursar.integrations.memcached_proxy.replies import LINE, LINE_MAX_BYTES, META, NONE, QUIET, VALUES

KEY_MAX_BYTES = 250
VALUE_MAX_BYTES = 1024 * 1024
SWALLOW_MAX_BYTES = 64 * 1024 * 1024
"""A value that is too large, but not larger than this, is read and thrown away."""

BINARY = 0x80
"""The first byte of every request of the binary protocol."""

READ, WRITE, DELETE = range(3)
"""What a request wants, for the answer where it is refused: a value or its state, that something be stored or
counted, that something go."""

STORAGE = {b"set": 5, b"add": 5, b"replace": 5, b"append": 5, b"prepend": 5, b"cas": 6}
"""Commands with a block of data, and how many words they have."""

REFUSED = (b"stats", b"flush_all", b"verbosity", b"shutdown", b"watch", b"cache_memlimit", b"slabs", b"lru")


META_FLAGS = {
    b"mg": b"bcfhkOlqstvENRT",
    b"ms": b"bcCEFIkOqsTM",
    b"md": b"bCEIkOqTx",
    b"ma": b"bCENJDTMOqtcvk",
}
"""What memcached 1.6 knows. Anything else is answered here, so that no block of data is left behind."""

META_FLAGS_MAX = 16


class Request(NamedTuple):
    """raw: what is sent on. local: the answer, if the proxy answers by itself. last: then close.
    wants, missed: which kind of request it is, and what it is answered where a refusal is to look like a
    miss. inner: the keys as the tenant's name is found in them, where they are encoded."""

    keys: tuple[bytes, ...] = ()
    raw: bytes = b""
    shape: int = LINE
    local: bytes | None = None
    last: bool = False
    wants: int = READ
    missed: bytes = b""
    inner: tuple[bytes, ...] = ()


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
            **dict.fromkeys((b"mg", b"md", b"ma"), self._read_meta),
            b"me": self._read_debug,
            b"ms": self._read_meta_set,
            # Answers come in order, so by the time of this one all before it are there.
            b"mn": lambda words, end: self._take(end, answer("MN")),
            b"version": self._read_bare,
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
        return self._forward(tuple(words[1:]), end, VALUES, READ, b"END\r\n")

    def _read_gat(self, words: list[bytes], end: int) -> Request:
        if len(words) < 3 or not _is_time(words[1]):
            return self._take(end, answer("ERROR"))
        return self._forward(tuple(words[2:]), end, VALUES, READ, b"END\r\n")

    def _read_line(self, words: list[bytes], end: int) -> Request:
        """What memcached would answer with an error is answered so here: it answers errors even to
        requests that want no reply, and then answers would no longer match requests."""
        quiet = len(words) > 2 and words[-1] == b"noreply"
        arguments = words[2:-1] if quiet else words[2:]
        fits = arguments in ([], [b"0"]) if words[0] == b"delete" else len(arguments) == 1
        is_right = _is_time if words[0] == b"touch" else _is_number
        if len(words) < 2 or not fits or not all(map(is_right, arguments)):
            return self._take(end, answer("CLIENT_ERROR bad command line format"))
        wants = WANTS[words[0]]
        return self._forward(tuple(words[1:2]), end, NONE if quiet else LINE, wants, b"NOT_FOUND\r\n")

    def _read_bare(self, words: list[bytes], end: int) -> Request:
        return self._take(end, Request((), self._data[self._at : end], LINE))

    def _read_refused(self, words: list[bytes], end: int) -> Request:
        what = words[0].decode()
        if words[-1] == b"noreply":
            return self._take(end, Request(shape=NONE, local=b""))
        return self._take(end, answer(f"CLIENT_ERROR {what} concerns all tenants and is not passed on"))

    def _read_debug(self, words: list[bytes], end: int) -> Request:
        if len(words) < 2 or words[2:] not in ([], [b"b"]):
            return self._take(end, answer("CLIENT_ERROR bad command line format"))
        return self._meta(words, end, end, b"EN\r\n")

    def _read_meta(self, words: list[bytes], end: int) -> Request:
        wrong = check_meta(words, words[2:])
        if wrong is not None:
            return self._take(end, answer(wrong))
        if words[0] != b"mg":
            return self._meta(words, end, end, b"NF%b\r\n" % _echo(words))
        return self._meta(words, end, end, b"" if _is_quiet(words[2:]) else b"EN%b\r\n" % _echo(words))

    def _meta(self, words: list[bytes], end: int, total: int, missed: bytes) -> Request:
        """A request whose reply may say nothing, where it is quiet; whose key may be encoded."""
        key = words[1]
        if len(key) > KEY_MAX_BYTES:
            return self._take(total, answer("CLIENT_ERROR key too long"))
        inner: tuple[bytes, ...] = ()
        if b"b" in words[2:]:
            try:
                inner = (b64decode(key, validate=True),)
            except binascii.Error:
                return self._take(total, answer("CLIENT_ERROR error decoding key"))
        raw = self._data[self._at : total]
        shape = QUIET if _is_quiet(words[2:]) else META
        wants = META_WANTS[words[0]]
        return self._take(total, Request((key,), raw, shape, wants=wants, missed=missed, inner=inner))

    def _forward(self, keys: tuple[bytes, ...], end: int, shape: int, wants: int, missed: bytes) -> Request:
        if not keys:
            return self._take(end, answer("ERROR"))
        for key in keys:
            if len(key) > KEY_MAX_BYTES:
                return self._take(end, answer("CLIENT_ERROR key too long"))
        raw = self._data[self._at : end]
        return self._take(end, Request(keys, raw, shape, wants=wants, missed=missed))

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
        shape = NONE if quiet else LINE
        total = self._find_block(words[1], words[4], end, shape)
        if not isinstance(total, int):
            return total
        raw = self._data[self._at : total]
        request = Request((words[1],), raw, shape, wants=WRITE, missed=b"NOT_STORED\r\n")
        return self._take(total, request)

    def _read_meta_set(self, words: list[bytes], end: int) -> Request | None:
        if len(words) < 3:
            return self._give_up("CLIENT_ERROR bad command line format")
        wrong = check_meta(words, words[3:])
        if wrong is not None:
            return self._give_up(wrong)
        total = self._find_block(words[1], words[2], end, META)
        if not isinstance(total, int):
            return total
        return self._meta(words, end, total, b"NS%b\r\n" % _echo(words))

    def _find_block(self, key: bytes, length: bytes, end: int, shape: int) -> int | Request | None:
        """Where the data ends; else what to answer, or None until more is here."""
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
        return total

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
    return b"q" in flags


def check_meta(words: list[bytes], flags: list[bytes]) -> str | None:
    """What is wrong with a meta command, as memcached would say it. A flag that it did not know or that came
    twice would make it answer what is not expected, and perhaps take data for commands."""
    if len(words) < 2:
        return "CLIENT_ERROR bad command line format"
    letters = [flag[:1] for flag in flags]
    if len(flags) > META_FLAGS_MAX or len(set(letters)) < len(letters):
        return "CLIENT_ERROR duplicate flag"
    for letter, flag in zip(letters, flags, strict=True):
        fits = letter in META_FLAGS[words[0]] and _FLAG_FITS.get(letter, _is_bare)(flag[1:])
        if not fits:
            return "CLIENT_ERROR invalid flag"
    return None


def _is_bare(word: bytes) -> bool:
    return not word


def _is_mode(word: bytes) -> bool:
    return len(word) == 1


def _is_opaque(word: bytes) -> bool:
    return len(word) <= 32


def _echo(words: list[bytes]) -> bytes:
    """The flags that a meta reply repeats, also where nothing was found."""
    told = []
    for flag in words[2:]:
        if flag[:1] == b"O" or flag == b"b":
            told.append(b" " + flag)
        elif flag == b"k":
            told.append(b" k" + words[1])
    return b"".join(told)


_FLAG_FITS: dict[bytes, Callable[[bytes], bool]] = {
    **dict.fromkeys((b"C", b"E", b"F", b"N", b"J", b"D"), _is_number),
    **dict.fromkeys((b"T", b"R"), _is_time),
    b"M": _is_mode,
    b"O": _is_opaque,
}
WANTS = {b"delete": DELETE, b"incr": WRITE, b"decr": WRITE, b"touch": WRITE}
META_WANTS = {b"mg": READ, b"me": READ, b"ms": WRITE, b"ma": WRITE, b"md": DELETE}
