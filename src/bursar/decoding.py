"""Bytes of a store, a file or a peer into values; and what comes of bytes that are none.

msgspec raises three things: errors of its own and text that is not UTF-8, which are ValueErrors, and
RecursionError for what is nested too deep, also in a field that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bursar.errors import BursarError, FormatError

DECODE_ERRORS = (ValueError, RecursionError)


DIGITS_MAX = 20
"""Of any number of ours: 2^64 has so many. Of very many digits Python itself makes no number."""


def is_number(text: str | bytes) -> bool:
    """Whether `int` takes it, and it is a number of ours: there are other digits than 0 to 9."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def make_reader(
    form: Any, what: str, *, json: bool = False, error: type[BursarError] = FormatError
) -> Callable[[bytes], Any]:
    """Reads one value of that form; raises `error`, which says that it is no `what`."""
    decode = (msgspec.json if json else msgspec.msgpack).Decoder(form).decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except DECODE_ERRORS as wrong:
            raise error(f"this is no {what} that this version reads: {wrong}") from wrong

    return read
