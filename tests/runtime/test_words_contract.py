"""One suite over every kind of shared words: what `bursar.world.Words` promises."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.errors import UsageError
from bursar.runtime.words import SharedWords
from bursar.sim.clock import DriftingClock
from bursar.sim.loop import Life, VirtualLoop
from bursar.sim.words import Memory, SimWords
from bursar.world import MILLISECOND_NS, WORD_MAX

PROCESSES = 4
ADDITIONS = 1_000_000

WORKER = """
import sys
from pathlib import Path
from numba import njit
from bursar.runtime import kernels
from bursar.runtime.words import SharedWords
words = SharedWords(Path(sys.argv[1]))
address = words.address("taken")
@njit
def many(address, count):
    for _ in range(count):
        kernels.fetch_add(address, 1)
many(address, 0)
words.fetch_add("ready", 1)
while words.read("ready") < 4:
    pass
many(address, int(sys.argv[2]))
for _ in range(500):
    before = words.read("swapped")
    while (found := words.compare_and_swap("swapped", before, before + 1)) != before:
        before = found
"""


@pytest.fixture(params=["memory", "shared"])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        loop = VirtualLoop()  # type: ignore[abstract]
        life = Life("node", 1)
        yield SimWords(loop, life, DriftingClock(loop, life, 0, 0), Memory())
        loop.close()
    else:
        shared = SharedWords(tmp_path / "words")
        yield shared
        shared.close()


def test_a_word_that_was_never_written_is_zero_and_arithmetic_wraps(words: Any) -> None:
    assert words.read("a") == 0
    assert words.fetch_add("a", WORD_MAX) == 0
    assert words.read("a") == WORD_MAX
    assert words.fetch_add("a", 2) == WORD_MAX
    assert words.read("a") == 1
    words.write("a", 2**32 - 1)
    assert words.fetch_add("a", 2**63 + 1) == 2**32 - 1
    assert words.read("a") == 2**63 + 2**32


def test_a_swap_happens_only_if_the_word_is_what_was_expected(words: Any) -> None:
    assert words.compare_and_swap("a", 0, 7) == 0
    assert words.compare_and_swap("a", 0, 9) == 7
    assert words.read("a") == 7
    assert words.compare_and_swap("a", 7, WORD_MAX) == 7
    assert words.compare_and_swap("a", WORD_MAX, 0) == WORD_MAX
    assert words.read("a") == 0


def test_words_are_apart_from_one_another(words: Any) -> None:
    for number in range(20):
        words.write(f"pool/x/report/{number}", number)
    assert [words.read(f"pool/x/report/{number}") for number in range(20)] == list(range(20))


def test_what_does_not_fit_a_word_is_refused(words: Any) -> None:
    for wrong in (-1, 2**64):
        with pytest.raises(UsageError):
            words.write("a", wrong)
    assert words.read("a") == 0


async def test_waiting_ends_with_a_change_or_with_the_time(tmp_path: Path) -> None:
    words, other = SharedWords(tmp_path / "words"), SharedWords(tmp_path / "words")
    assert await words.wait("a", 0, 5 * MILLISECOND_NS) == 0
    waiting = asyncio.ensure_future(words.wait("a", 0, 20_000 * MILLISECOND_NS))
    await asyncio.sleep(0.01)
    other.write("a", 3)
    assert await asyncio.wait_for(waiting, 10) == 3


def test_operations_of_four_processes_are_exact(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", WORKER, str(tmp_path / "words"), str(ADDITIONS)]
    running = [subprocess.Popen(arguments) for _ in range(PROCESSES)]
    assert [process.wait(timeout=120) for process in running] == [0] * PROCESSES
    words = SharedWords(tmp_path / "words")
    assert words.read("taken") == PROCESSES * ADDITIONS
    assert words.read("swapped") == PROCESSES * 500
