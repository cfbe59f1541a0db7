"""Long work on the thread that grants, a little at a time.

The work is a generator that yields wherever it may be put aside. A thread would be no better: while
it holds the interpreter's lock grants wait too, and for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

SLICE_S = 0.002
"""How long others wait for it at a time, and a step more. Shorter would make the whole take much
longer on a busy node, where everybody else's turn comes after each slice."""


async def run_in_slices(steps: Steps[T]) -> T:
    """What the steps come to; everybody else has a turn after each slice of them."""
    until = perf_counter() + SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        if perf_counter() >= until:
            await asyncio.sleep(0)
            until = perf_counter() + SLICE_S


def run_at_once(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
