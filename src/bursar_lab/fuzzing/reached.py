"""Which lines of a parser its inputs reach: those inside its functions, as the interpreter counts them.

What runs at the import (classes, constants, the `def` itself) is left out: every input reaches it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

from bursar_lab.fuzzing.target import Target

Line = tuple[str, int]
"""File and number."""


class Reached:
    """Lines of a target's parts: what inputs that are watched reach of them, all together and the last."""

    def __init__(self, parts: Iterable[str]) -> None:
        codes = [code for part in parts for code in _find_codes(part)]
        self._codes = set(map(_name, codes))
        self.lines: set[Line] = {line for code in codes for line in _lines_of(code)}
        self.reached: set[Line] = set()
        self.seen: set[Line] = set()

    def watch(self, target: Target, data: bytes) -> Exception | None:
        """Try an input; the fault that it brings to light."""
        self.seen = set()
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return target.try_one(data)
        finally:
            sys.settrace(before)
            self.seen &= self.lines
            self.reached |= self.seen

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._step if _name(frame.f_code) in self._codes else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._step

    @property
    def percent(self) -> float:
        return 100.0 * len(self.reached) / len(self.lines) if self.lines else 100.0

    def missed(self) -> list[Line]:
        return sorted(self.lines - self.reached)


def measure(target: Target, inputs: Iterable[bytes]) -> Reached:
    reached = Reached(target.parts)
    for data in inputs:
        reached.watch(target, data)
    return reached


def pick_fewest(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Inputs without faults that together reach every line that all do; the first ones are preferred."""
    reached, found = Reached(target.parts), []
    for data in inputs:
        if reached.watch(target, data) is None:
            found.append((data, reached.seen))
    picked: list[bytes] = []
    left = set().union(*(lines for _, lines in found))
    while left:
        data, lines = max(found, key=lambda each: len(each[1] & left))
        picked.append(data)
        left -= lines
    return picked


def _name(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name


def _find_codes(part: str) -> Iterator[CodeType]:
    """The functions of a part, and those inside them."""
    name, _, wanted = part.partition(":")
    module = import_module(name)
    assert module.__file__ is not None
    with open(module.__file__, "rb") as file:
        top = compile(file.read(), module.__file__, "exec", dont_inherit=True)
    left_out = {each.removeprefix("-") for each in wanted.split(",") if each.startswith("-")}
    only = {each for each in wanted.split(",") if each and not each.startswith("-")}
    for path, code in _walk(top, ""):
        steps = path.split(".")
        names = {*steps, *(".".join(steps[:end]) for end in range(1, len(steps) + 1))}
        if not names & left_out and (not only or names & only):
            yield code


def _walk(code: CodeType, path: str) -> Iterator[tuple[str, CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            below = f"{path}.{inner.co_name}" if path else inner.co_name
            if inner.co_flags & 0x0001:  # CO_OPTIMIZED: a function, no body of a class
                yield below, inner
            yield from _walk(inner, below)


def _lines_of(code: CodeType) -> set[Line]:
    # The first line is the `def`, or for a lambda or a comprehension all that there may be.
    own = {number for _, _, number in code.co_lines() if number}
    if not code.co_name.startswith("<"):
        own.discard(code.co_firstlineno)
    return {(code.co_filename, number) for number in own}
