"""Structured logs: an event's name and its fields, as JSON or as text, on standard error.

    {"at": "2026-11-16T04:00:00.123Z", "level": "info", "event": "peer.connected", "peer": "b"}
    04:00:00.123 info  peer.connected peer=b

They go through `logging` under the name "bursar", so a program that embeds bursar decides itself
where they end up; only the daemon and the demo call `configure`.
"""

from __future__ import annotations

import datetime
import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

import msgspec

from bursar.errors import UsageError
from bursar.world import SECOND_NS

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS = ("text", "json")

_logger = logging.getLogger("bursar")
_logger.addHandler(logging.NullHandler())


def configure(form: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Write logs from `level` up to `stream`, in place of what an earlier call set."""
    if form not in FORMATS or level not in LEVELS:
        raise UsageError(
            f"logs are {' or '.join(FORMATS)} at one of {', '.join(LEVELS)}, not {form!r} at {level!r}"
        )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    _logger.handlers[:] = [handler]
    _logger.setLevel(LEVELS[level])
    _logger.propagate = False


def debug(event: str, /, **fields: Any) -> None:
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug(event, extra={"fields": fields})


def info(event: str, /, **fields: Any) -> None:
    _logger.info(event, extra={"fields": fields})


def warning(event: str, /, **fields: Any) -> None:
    _logger.warning(event, extra={"fields": fields})


class Sparse:
    """Warnings of which there may be very many, because others cause them: of each sort one in so many
    seconds, which says how many were left out before it."""

    EVERY_NS = 5 * SECOND_NS
    SORTS_MAX = 1_000

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._sorts: dict[tuple[str, str], tuple[int, int]] = {}

    def warning(self, event: str, sort: str, /, **fields: Any) -> None:
        now = self._now()
        due, left_out = self._sorts.get((event, sort), (now, 0))
        if now < due:
            self._sorts[event, sort] = (due, left_out + 1)
            return
        if len(self._sorts) >= self.SORTS_MAX:
            self._sorts.clear()
        self._sorts[event, sort] = (now + self.EVERY_NS, 0)
        warning(event, **fields, **({"left_out": left_out} if left_out else {}))


def failure(event: str, error: BaseException, /, **fields: Any) -> None:
    """An error with its traceback."""
    _logger.error(event, extra={"fields": {**fields, "error": repr(error)}}, exc_info=error)


def _instant(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; the traceback, if any, is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        at = _instant(record).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "event": record.getMessage()}
        fields = getattr(record, "fields", {})
        line.update({key: value for key, value in fields.items() if key not in line})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """For people: time, level, event, fields; the traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        at = _instant(record).strftime("%H:%M:%S.%f")[:-3]
        fields = getattr(record, "fields", {})
        shown = "".join(f" {key}={_show(value)}" for key, value in fields.items())
        line = f"{at} {record.levelname.lower():<7} {record.getMessage()}{shown}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _show(value: Any) -> str:
    text = str(value)
    # A peer's words are shown, never obeyed: no escape sequences, no line breaks, no forged fields.
    return text if text and text.isprintable() and " " not in text else repr(text)
