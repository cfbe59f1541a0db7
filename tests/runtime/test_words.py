"""Shared words: exact under several processes, refused when the file is something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bursar.errors import FormatError, UsageError
from bursar.runtime.words import SharedWords
from bursar.world import MILLISECOND_NS, WORD_MAX

ADDER = """
import sys
from pathlib import Path
from bursar.runtime import kernels
from bursar.runtime.words import SharedWords
from numba import njit
words = SharedWords(Path(sys.argv[1]))
@njit
def many(address, count):
    for _ in range(count):
        kernels.fetch_add(address, 1)
address, count = words.address("taken"), int(sys.argv[2])
words.fetch_add("ready", 1)
while words.read("ready") < int(sys.argv[3]):
    pass
many(address, count - 10_000)
for _ in range(10_000):
    words.fetch_add("taken", 1)
for _ in range(2_000):
    before = words.read("swapped")
    while (found := words.compare_and_swap("swapped", before, before + 1)) != before:
        before = found
"""


@pytest.mark.parametrize("processes", [2, 4])
def test_additions_of_several_processes_are_exact(tmp_path: Path, processes: int) -> None:
    path, count = tmp_path / "words", 1_000_000
    arguments = [sys.executable, "-c", ADDER, str(path), str(count), str(processes)]
    running = [subprocess.Popen(arguments) for _ in range(processes)]
    assert [process.wait(timeout=120) for process in running] == [0] * processes
    words = SharedWords(path)
    assert words.read("taken") == processes * count
    assert words.read("swapped") == processes * 2_000
    words.close()


def test_words_start_at_zero_wrap_and_are_swapped_only_if_expected(tmp_path: Path) -> None:
    words = SharedWords(tmp_path / "words")
    assert words.read("a") == 0
    assert words.fetch_add("a", -1) == 0
    assert words.read("a") == WORD_MAX
    assert words.fetch_add("a", 2) == WORD_MAX
    assert words.read("a") == 1
    assert words.compare_and_swap("a", 5, 9) == 1
    assert words.read("a") == 1
    assert words.compare_and_swap("a", 1, 2**63 + 5) == 1
    assert words.read("a") == 2**63 + 5
    words.write("b", 7)
    assert SharedWords(tmp_path / "words").read("b") == 7
    for wrong in (-1, 2**64):
        with pytest.raises(UsageError):
            words.write("a", wrong)


def test_a_full_file_and_a_strange_file_are_refused_with_a_remedy(tmp_path: Path) -> None:
    words = SharedWords(tmp_path / "small", capacity=2)
    words.write("a", 1)
    words.write("b", 2)
    with pytest.raises(UsageError, match="room for 2 words"):
        words.read("c")
    with pytest.raises(UsageError):
        words.read("")
    (tmp_path / "strange").write_bytes(b"something else")
    with pytest.raises(FormatError, match="delete it"):
        SharedWords(tmp_path / "strange").read("a")
    (tmp_path / "newer").write_bytes(b"bursar words 2\n" + bytes(5000))
    with pytest.raises(FormatError, match=r"another version of bursar.*delete it"):
        SharedWords(tmp_path / "newer").read("a")
    assert (tmp_path / "newer").read_bytes()[:14] == b"bursar words 2", "it was left alone"
    (tmp_path / "cut").write_bytes((tmp_path / "small").read_bytes()[:100])
    with pytest.raises(FormatError, match="delete it"):
        SharedWords(tmp_path / "cut").read("a")


async def test_waiting_ends_with_a_change_or_with_the_time(tmp_path: Path) -> None:
    import asyncio

    words, other = SharedWords(tmp_path / "words"), SharedWords(tmp_path / "words")
    assert await words.wait("a", 0, 5 * MILLISECOND_NS) == 0
    waiting = asyncio.ensure_future(words.wait("a", 0, 5_000 * MILLISECOND_NS))
    await asyncio.sleep(0.01)
    other.write("a", 3)
    assert await asyncio.wait_for(waiting, 1) == 3
