"""One suite over every kind of shared words: what `bursar.world.Words` promises."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.errors import BursarError, FormatError, NoAnswerError, UsageError
from bursar.runtime.redis_words import RedisWords
from bursar.runtime.words import SharedWords
from bursar.sim.clock import DriftingClock
from bursar.sim.loop import Life, VirtualLoop
from bursar.sim.words import Memory, SimWords
from bursar.world import MILLISECOND_NS, WORD_MAX
from bursar_lab.processes import run_redis

PROCESSES = 4
ADDITIONS = {"shared": 1_000_000, "redis": 2_000}
"""Exact at 4 processes x 1e6 in shared memory; Redis takes 25 microseconds for one."""

WORKER = """
import sys
from pathlib import Path
kind, place, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "shared":
    from numba import njit
    from bursar.runtime import kernels
    from bursar.runtime.words import SharedWords
    words = SharedWords(Path(place))
    address = words.address("taken")
    @njit
    def many(address, count):
        for _ in range(count):
            kernels.fetch_add(address, 1)
    many(address, 0)
    add = lambda: many(address, count)
else:
    from bursar.runtime.redis_words import RedisWords
    words = RedisWords.at(place)
    def add():
        for _ in range(count):
            words.fetch_add("taken", 1)
words.fetch_add("ready", 1)
while words.read("ready") < 4:
    pass
add()
for _ in range(500):
    before = words.read("swapped")
    while (found := words.compare_and_swap("swapped", before, before + 1)) != before:
        before = found
"""


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.fail("needs redis-server, which is not installed here (see `make servers`)")
    with run_redis(str(tmp_path)) as url:
        yield url


@pytest.fixture(params=["memory", "shared", pytest.param("redis", marks=pytest.mark.needs("redis"))])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        loop = VirtualLoop()  # type: ignore[abstract]
        life = Life("node", 1)
        yield SimWords(loop, life, DriftingClock(loop, life, 0, 0), Memory())
        loop.close()
    elif request.param == "shared":
        shared = SharedWords(tmp_path / "words")
        yield shared
        shared.close()
    else:
        over_tcp = RedisWords.at(request.getfixturevalue("redis_url"))
        yield over_tcp
        over_tcp.close()


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


@pytest.mark.parametrize("kind", ["shared", pytest.param("redis", marks=pytest.mark.needs("redis"))])
async def test_waiting_ends_with_a_change_or_with_the_time(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "shared":
        words, other = SharedWords(tmp_path / "words"), SharedWords(tmp_path / "words")
    else:
        url = request.getfixturevalue("redis_url")
        words, other = RedisWords.at(url), RedisWords.at(url)
    assert await words.wait("a", 0, 5 * MILLISECOND_NS) == 0
    waiting = asyncio.ensure_future(words.wait("a", 0, 20_000 * MILLISECOND_NS))
    await asyncio.sleep(0.01)
    other.write("a", 3)
    assert await asyncio.wait_for(waiting, 10) == 3


@pytest.mark.parametrize("kind", ["shared", pytest.param("redis", marks=pytest.mark.needs("redis"))])
def test_operations_of_four_processes_are_exact(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "words") if kind == "shared" else request.getfixturevalue("redis_url")
    count = ADDITIONS[kind]
    arguments = [sys.executable, "-c", WORKER, kind, place, str(count)]
    running = [subprocess.Popen(arguments) for _ in range(PROCESSES)]
    assert [process.wait(timeout=120) for process in running] == [0] * PROCESSES
    words = SharedWords(Path(place)) if kind == "shared" else RedisWords.at(place)
    assert words.read("taken") == PROCESSES * count
    assert words.read("swapped") == PROCESSES * 500


@pytest.mark.needs("redis")
def test_garbage_in_redis_and_a_server_that_is_gone_are_told_apart(redis_url: str) -> None:
    import redis

    words = RedisWords.at(redis_url)
    raw = redis.Redis.from_url(redis_url)
    raw.set("bursar:a", "not a word")
    for act in (lambda: words.read("a"), lambda: words.fetch_add("a", 1)):
        with pytest.raises(FormatError, match="delete the keys"):
            act()
    with pytest.raises(NoAnswerError, match="is the server running"):
        RedisWords("127.0.0.1", 1).read("a")
    for wrong in ("redis://", "http://host", "redis://host:port"):
        with pytest.raises(BursarError, match="write redis"):
            RedisWords.at(wrong)
