"""Random reads from a real file."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from bursar.errors import UsageError
from bursar.integrations.file_backend import BLOCK_BYTES, FileBackend, make_file

BLOCKS = 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    make_file(path, BLOCKS * BLOCK_BYTES)
    return path


@pytest.mark.parametrize("direct", [False, True])
async def test_each_block_is_what_the_file_holds(path: Path, direct: bool) -> None:
    content = await asyncio.to_thread(path.read_bytes)
    backend = FileBackend(path, threads=3, direct=direct)
    try:
        assert backend.blocks == BLOCKS
        read = await asyncio.gather(*(backend.read(block) for block in range(BLOCKS)))
        assert b"".join(read) == content
    finally:
        backend.close()
        backend.close()


async def test_at_most_so_many_reads_are_under_way_as_there_are_threads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FileBackend(path, threads=2)
    lock, running, most = threading.Lock(), 0, 0
    all_in = threading.Barrier(2)
    read = backend._read

    def watched(block: int) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if block < 2:
            all_in.wait(5)
        data = read(block)
        with lock:
            running -= 1
        return data

    monkeypatch.setattr(backend, "_read", watched)
    await asyncio.gather(*(backend.read(block) for block in range(20)))
    backend.close()
    assert most == 2


def test_a_file_that_is_there_is_not_written_again(path: Path) -> None:
    before = path.stat().st_mtime_ns, path.read_bytes()
    make_file(path, BLOCKS * BLOCK_BYTES)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    make_file(path, 2 * BLOCK_BYTES)
    assert path.stat().st_size == 2 * BLOCK_BYTES


async def test_what_cannot_be_read_is_said_before_it_is_tried(path: Path, tmp_path: Path) -> None:
    backend = FileBackend(path)
    for block in (-1, BLOCKS):
        with pytest.raises(UsageError, match=f"block {block} of {BLOCKS}"):
            await backend.read(block)
    backend.close()
    with pytest.raises(UsageError, match="cannot be opened"):
        FileBackend(tmp_path / "absent")
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(UsageError, match="less than one block"):
        FileBackend(tmp_path / "short")
    with pytest.raises(UsageError, match="threads is 0"):
        FileBackend(path, threads=0)
    with pytest.raises(UsageError, match="multiple of 4096"):
        make_file(tmp_path / "odd", 5_000)
