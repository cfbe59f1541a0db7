"""Shared words in an MPI window: one-sided operations on the memory of a process that takes no part.

What an RDMA network card does for a pool, done by MPI: `Fetch_and_op` and `Compare_and_swap` on a window
in passive mode, so that the rank that owns the memory may sleep. Needs mpi4py and an MPI
(`pip install mpi4py mpich`), and ranks that MPI has started.

A card needs no more than these: an atomic addition that says what was there before (for `taken`), a
compare-and-swap (for the ceiling and for claims), an 8-byte read and an 8-byte write, all of them on
words that are aligned to 8 bytes. An adapter for verbs would register one region, hand out its address
and key once, and post IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP, RDMA_READ and RDMA_WRITE.
Two things are to be seen to there: atomics of a card are atomic for other cards' only if the device says
IBV_ATOMIC_GLOB, so the monitor at the node has to go through its own card as well; and a lost connection
leaves it open whether an operation was done, which is a `NetworkError` here: what it was for counts as
taken by nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from bursar.errors import UsageError
from bursar.world import MILLISECOND_NS, SECOND_NS

POLL_NS = MILLISECOND_NS


class MpiWords:
    """`bursar.world.Words` of all ranks, in the memory of one. All ranks make it together, with the same
    names in the same order: a name is a place in the window."""

    def __init__(self, comm: Any, names: Sequence[str], owner: int = 0) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._owner = owner
        mine = 8 * len(names) if comm.Get_rank() == owner else 0
        self._window = MPI.Win.Allocate(mine, 8, comm=comm)
        if mine:
            # A new window holds whatever was in that memory.
            self._window.Lock(owner)
            memory: Any = self._window.tomemory()
            np.frombuffer(memory, np.uint64)[:] = 0
            self._window.Unlock(owner)
        comm.Barrier()
        self._window.Lock_all()
        self._given, self._expected, self._found = (np.zeros(1, np.uint64) for _ in range(3))

    def close(self) -> None:
        """All ranks together."""
        self._window.Unlock_all()
        self._window.Free()

    def read(self, name: str) -> int:
        return self._fetch(name, 0, MPI.NO_OP)

    def write(self, name: str, value: int) -> None:
        self._fetch(name, value, MPI.REPLACE)

    def fetch_add(self, name: str, amount: int) -> int:
        return self._fetch(name, amount % 2**64, MPI.SUM)

    def compare_and_swap(self, name: str, expected: int, value: int) -> int:
        self._given[0], self._expected[0] = value, expected
        place = self._place(name)
        self._window.Compare_and_swap(self._given, self._expected, self._found, self._owner, place)
        self._window.Flush(self._owner)
        return int(self._found[0])

    async def wait(self, name: str, value: int, timeout_ns: int) -> int:
        """Nobody is told when a word changes: it is looked at, again and again."""
        deadline = time.monotonic_ns() + timeout_ns
        while (found := self.read(name)) == value and time.monotonic_ns() < deadline:
            await asyncio.sleep(POLL_NS / SECOND_NS)
        return found

    def _fetch(self, name: str, value: int, operation: Any) -> int:
        self._given[0] = value
        self._window.Fetch_and_op(self._given, self._found, self._owner, self._place(name), operation)
        self._window.Flush(self._owner)
        return int(self._found[0])

    def _place(self, name: str) -> int:
        place = self._places.get(name)
        if place is None:
            raise UsageError(f"the window has no word {name!r}; name all words when it is made")
        return place
