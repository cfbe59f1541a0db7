"""The history of a run, line by line: what two runs of a seed must share."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from bursar.sim.loop import Life, VirtualLoop

Line = tuple[int, str, str, Mapping[str, Any]]


class History:
    """Lines are kept as values and written out only when somebody reads them."""

    def __init__(self, loop: VirtualLoop, keep_lines: int | None) -> None:
        self._loop = loop
        self._lines: deque[Line] = deque(maxlen=keep_lines)
        self._sealed = False

    def add(self, who: str, event: str, **fields: Any) -> None:
        if not self._sealed:
            self._lines.append((self._loop.now_ns, who, event, fields))

    def seal(self) -> None:
        """The run is over: whatever is torn down now is no part of its history."""
        self._sealed = True

    def text(self, last: int | None = None) -> tuple[str, ...]:
        lines = list(self._lines)
        return tuple(_format(line) for line in (lines if last is None else lines[-last:]))


def _format(line: Line) -> str:
    at_ns, who, event, fields = line
    seconds, nanoseconds = divmod(at_ns, 1_000_000_000)
    told = "".join(f" {name}={value}" for name, value in fields.items())
    return f"{seconds:>5}.{nanoseconds:09d} {who:<10} {event}{told}"


class NodeTrace:
    """World's `trace` of one life."""

    def __init__(self, life: Life, history: History) -> None:
        self._life = life
        self._history = history
        self._who = f"{life.name}/{life.incarnation}"

    def __call__(self, event: str, /, **fields: int | str | bool | None) -> None:
        self._life.check()
        self._history.add(self._who, event, **fields)
