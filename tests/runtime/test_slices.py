"""Long work in slices: it is all done, and others have their turn meanwhile."""

from __future__ import annotations

import asyncio
from time import perf_counter

from bursar.runtime.slices import SLICE_S, Steps, run_at_once, run_in_slices

STEPS = 50


def work() -> Steps[int]:
    """Fifty steps, each as long as half a slice."""
    for _ in range(STEPS):
        until = perf_counter() + SLICE_S / 2
        while perf_counter() < until:
            pass
        yield
    return 7


async def test_others_have_their_turn_after_each_slice() -> None:
    working = asyncio.ensure_future(run_in_slices(work()))
    turns = 0
    while not working.done():
        turns += 1
        await asyncio.sleep(0)
    assert working.result() == 7
    assert turns >= STEPS // 2 - 5


def test_at_once_it_comes_to_the_same() -> None:
    assert run_at_once(work()) == 7
