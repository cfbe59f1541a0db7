"""Many seeds of one scenario, on every core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import make_scenario, run_seed

CHUNK_SEEDS = 5
KEEP_LINES = 400
"""Lines of history that a run of a campaign keeps; a replay keeps them all."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What some seeds in a row found. `seeds` counts those that ran: none after a failure."""

    seeds: int
    events: int
    failure: RunFailedError | None


def run_campaign(name: str, first_seed: int, seeds: int, workers: int | None = None) -> Iterator[Chunk]:
    """Run that many seeds and yield what was found, in the order of seeds, up to the first
    failure: the lowest failing seed, however many processes ran."""
    make_scenario(name)  # a wrong name is told here, not by a worker
    ends = range(first_seed, first_seed + seeds, CHUNK_SEEDS)
    chunks = [(name, begin, min(begin + CHUNK_SEEDS, first_seed + seeds)) for begin in ends]
    workers = min(workers or os.cpu_count() or 1, len(chunks))
    if workers <= 1:
        yield from _stop_at_failure(map(_run_chunk, chunks))
        return
    # Started afresh: a fork would carry along whatever threads the caller has.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from _stop_at_failure(pool.map(_run_chunk, chunks))
        finally:
            pool.shutdown(cancel_futures=True)


def _stop_at_failure(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        yield chunk
        if chunk.failure is not None:
            return


def _run_chunk(chunk: tuple[str, int, int]) -> Chunk:
    name, begin, end = chunk
    events = 0
    for seed in range(begin, end):
        try:
            events += run_seed(name, seed, keep=KEEP_LINES).events
        except RunFailedError as failure:
            return Chunk(seed - begin + 1, events, failure)
    return Chunk(end - begin, events, None)
