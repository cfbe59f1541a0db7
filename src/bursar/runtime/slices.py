"""Long work on the thread that grants, a little at a time.

The work is a generator that yields wherever it may be put aside. A thread would be no better: what
holds the interpreter's lock there keeps grants waiting too, and for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter

SLICE_S = 0.001
"""How long others may have to wait for it at a time, unless one step alone takes longer."""


async def run_in_slices(steps: Iterator[None]) -> None:
    """All steps, with everybody else's turn after each slice of them."""
    until = perf_counter() + SLICE_S
    for _ in steps:
        if perf_counter() >= until:
            await asyncio.sleep(0)
            until = perf_counter() + SLICE_S
