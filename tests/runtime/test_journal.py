"""The journal: what was synced survives, a torn tail is cut, damage is refused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.errors import CrashedError, JournalError, UsageError
from bursar.runtime import journal as module
from bursar.runtime.journal import HEADER, FileJournal


async def write(path: Path, *batches: list[bytes]) -> None:
    journal = FileJournal(path)
    list(journal.replay())
    for batch in batches:
        for record in batch:
            journal.append(record)
        await journal.sync()
    await journal.close()


def read(path: Path) -> list[bytes]:
    return list(FileJournal(path).replay())


async def test_synced_records_are_replayed_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal"
    await write(path, [b"a", b"", b"c" * 100_000], [b"d"])
    await write(path, [b"e"])
    assert read(path) == [b"a", b"", b"c" * 100_000, b"d", b"e"]


async def test_appends_without_sync_promise_nothing(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    journal.append(b"lost")
    await journal.close()
    assert read(tmp_path / "journal") == []


async def test_syncs_at_the_same_time_share_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    fdatasync = module.os.fdatasync

    def count(file: int) -> None:
        nonlocal syncs
        syncs += 1
        fdatasync(file)

    monkeypatch.setattr(module.os, "fdatasync", count)
    journal = FileJournal(tmp_path / "journal")

    async def add(number: int) -> None:
        journal.append(b"%d" % number)
        await journal.sync()

    await asyncio.gather(*(add(number) for number in range(500)))
    await journal.close()
    assert len(read(tmp_path / "journal")) == 500
    assert syncs <= 3


async def test_every_prefix_of_a_file_replays_to_a_prefix_of_its_records(tmp_path: Path) -> None:
    records = [b"one", b"two" * 10, b"", b"four"]
    await write(tmp_path / "whole", records)
    data = (tmp_path / "whole").read_bytes()
    for size in range(len(data) + 1):
        path = tmp_path / "torn"
        path.write_bytes(data[:size])
        got = read(path)
        assert got == records[: len(got)]
        assert read(path) == got
    assert got == records


async def test_a_torn_batch_with_a_gap_in_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await write(path, [b"kept"], [b"torn" * 100, b"after the gap"])
    data = bytearray(path.read_bytes())
    at = data.index(b"torn")
    data[at : at + 50] = bytes(50)
    path.write_bytes(data)
    assert read(path) == [b"kept"]
    await write(path, [b"next"])
    assert read(path) == [b"kept", b"next"]


async def test_a_record_that_lies_elsewhere_than_it_was_written_is_none(tmp_path: Path) -> None:
    """What was in the file before, or a block that the disk put into the wrong place."""
    path = tmp_path / "journal"
    await write(path, [b"first"])
    data = path.read_bytes()
    path.write_bytes(data + data[len(HEADER) :])
    assert read(path) == [b"first"]


async def test_damage_to_durable_records_is_refused_with_file_offset_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await write(path, [b"first"], [b"second"], [b"third"])
    whole = path.read_bytes()
    ends = [len(HEADER) + 25, len(HEADER) + 25 + 26]
    seed = 3
    chance = random.Random(seed)
    for _ in range(200):
        data = bytearray(whole)
        at = chance.randrange(len(HEADER), ends[1])
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        with pytest.raises(JournalError, match=r"damaged at offset \d+.*Restore") as caught:
            read(path)
        offset = len(HEADER) if at < ends[0] else ends[0]
        assert str(path) in str(caught.value), f"seed {seed}"
        assert f"offset {offset}:" in str(caught.value), f"seed {seed}"
        assert path.read_bytes() == data, "a refused journal is left as it is"


async def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for data in (b"x", b"PK\x03\x04" + bytes(100), b"bursar journal 9\n"):
        path.write_bytes(data)
        with pytest.raises(JournalError, match="not a journal"):
            FileJournal(path)
        assert path.read_bytes() == data


async def test_rewrite_replaces_what_was_and_keeps_what_comes_after(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(path)
    for number in range(50):
        journal.append(b"old%d" % number)
        if number == 25:
            await journal.sync()
    syncing = asyncio.ensure_future(journal.sync())
    await asyncio.sleep(0)
    rewriting = asyncio.ensure_future(journal.rewrite([b"new"]))
    await asyncio.sleep(0)
    journal.append(b"later")
    await asyncio.gather(syncing, rewriting, journal.sync())
    journal.append(b"last")
    await journal.sync()
    await journal.close()
    assert read(path) == [b"new", b"later", b"last"]
    assert os.listdir(tmp_path) == ["journal"]


async def test_a_caller_that_gives_up_does_not_lose_the_write_of_others(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    journal.append(b"a")
    first = asyncio.ensure_future(journal.sync())
    second = asyncio.ensure_future(journal.sync())
    await asyncio.sleep(0)
    first.cancel()
    await second
    await journal.close()
    assert read(tmp_path / "journal") == [b"a"]


async def test_after_a_failed_sync_nothing_more_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(tmp_path / "journal")
    journal.append(b"a")

    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdatasync", fail)
        with pytest.raises(JournalError, match=r"Input/output error.*restart"):
            await journal.sync()
    with pytest.raises(JournalError):
        journal.append(b"b")
    with pytest.raises(JournalError):
        await journal.sync()
    await journal.close()


async def test_a_rewrite_that_failed_leaves_no_file_open_and_nothing_more_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(tmp_path / "journal")
    journal.append(b"a")
    await journal.sync()

    def fail(*paths: object) -> None:
        raise OSError(5, "Input/output error")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "rename", fail)
        with pytest.raises(JournalError, match="Input/output error"):
            await journal.rewrite([b"b"])
    assert len(os.listdir("/proc/self/fd")) == len(before)
    await journal.close()
    assert read(tmp_path / "journal") == [b"a"]


async def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    await journal.close()
    with pytest.raises(CrashedError):
        journal.append(b"x")


async def test_a_crashed_journal_takes_nothing_and_a_large_record_is_refused(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    with pytest.raises(UsageError):
        journal.append(bytes(module.RECORD_MAX_BYTES + 1))
    journal.crash()
    with pytest.raises(CrashedError):
        journal.append(b"x")
    with pytest.raises(CrashedError):
        await journal.sync()


WRITER = """
import asyncio, sys
from pathlib import Path
from bursar.runtime.journal import FileJournal
async def main():
    journal = FileJournal(Path(sys.argv[1]))
    count = len(list(journal.replay()))
    while True:
        for _ in range(3):
            journal.append(b"%d" % count)
            count += 1
        if count % 50 < 3:
            await journal.rewrite([b"%d" % number for number in range(count)])
        else:
            await journal.sync()
        print(count, flush=True)
asyncio.run(main())
"""


def test_kill_9_loses_nothing_that_was_synced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    seed = 11
    chance = random.Random(seed)
    synced = 0
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 200)):
                synced = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split()
            synced = int(rest[-1]) if rest else synced
        got = read(path)
        assert got == [b"%d" % number for number in range(len(got))], f"seed {seed}"
        assert len(got) >= synced, f"seed {seed}"
