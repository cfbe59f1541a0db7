"""Records one-sided and two-sided: whole or not at all, refused when they are something else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bursar.errors import BursarError, FormatError, NetworkError, Refused, UsageError
from bursar.integrations.records.client import RecordClient
from bursar.integrations.records.remote import RecordServer, RemoteStore
from bursar.integrations.records.store import RECORD_BYTES, RecordStore
from bursar.pools.capacity import FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.runtime.clock import BootClock
from bursar.runtime.words import SharedWords
from bursar.world import SECOND_NS

WRITER = """
import sys
from pathlib import Path
from bursar.integrations.records.store import RecordStore
store = RecordStore.open(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    store.write(0, bytes([number % 256]) * store.size)
"""


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore.create(tmp_path / "records", 16)


def test_what_was_written_is_read_by_another_process_that_opens_it(store: RecordStore) -> None:
    store.write(3, b"abc")
    other = RecordStore.open(store.path)
    assert other.read(3) == b"abc".ljust(RECORD_BYTES, b"\0")
    assert [row.tobytes()[:3] for row in other.read_many([3, 0, 3])] == [b"abc", b"\0\0\0", b"abc"]


def test_a_reader_never_sees_a_torn_record(store: RecordStore) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.path), "20000"], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    seen = set()
    while writer.poll() is None:
        data = store.read(0)
        assert data == data[:1] * RECORD_BYTES
        seen.add(data[0])
    assert writer.wait(60) == 0
    assert len(seen) > 1, "the writer was at work while it was read"


def test_a_record_whose_writer_died_is_told_of_and_repaired(store: RecordStore) -> None:
    store.write(2, b"x")
    store._memory[2 * store._stride // 8] += np.uint64(1)
    with pytest.raises(BursarError, match="its writer died"):
        store.read(2)
    assert store.repair() == [2]
    assert store.read(2)[:1] == b"x"


def test_other_files_and_senseless_numbers_are_refused(store: RecordStore, tmp_path: Path) -> None:
    (tmp_path / "strange").write_bytes(b"bursar records 9" + bytes(5000))
    with pytest.raises(FormatError, match="of this version"):
        RecordStore.open(tmp_path / "strange")
    (tmp_path / "cut").write_bytes(store.path.read_bytes()[:9000])
    with pytest.raises(FormatError, match="delete it"):
        RecordStore.open(tmp_path / "cut")
    with pytest.raises(UsageError, match="create the store first"):
        RecordStore.open(tmp_path / "none")
    for act in (
        lambda: store.read(16),
        lambda: store.read(-1),
        lambda: store.read_many([0, 16]),
        lambda: store.write(0, bytes(RECORD_BYTES + 1)),
        lambda: RecordStore.create(tmp_path / "odd", 1, 7),
    ):
        with pytest.raises(UsageError):
            act()


def test_only_the_owner_may_open_a_store_and_its_socket(store: RecordStore, tmp_path: Path) -> None:
    """II-F: separate segments and file modes."""
    assert store.path.stat().st_mode & 0o777 == 0o600
    server = RecordServer(store, tmp_path / "socket")
    assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o600
    server.close()


@pytest.fixture
def remote(store: RecordStore, tmp_path: Path) -> Iterator[RemoteStore]:
    server = RecordServer(store, tmp_path / "socket")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    client = RemoteStore(tmp_path / "socket", store.size)
    yield client
    client.close()
    server.close()
    thread.join(5)


def test_two_sided_reads_and_writes_are_the_same_records(store: RecordStore, remote: RemoteStore) -> None:
    remote.write(5, b"over there")
    assert store.read(5)[:10] == b"over there"
    assert remote.read(5) == store.read(5)
    assert (remote.read_many([5, 1]) == store.read_many([5, 1])).all()


def test_a_server_hangs_up_on_what_is_no_request(remote: RemoteStore) -> None:
    remote._socket.sendall(b"\xff" * 8)
    with pytest.raises(NetworkError, match="did not answer"):
        remote.read(1)
    with pytest.raises(UsageError):
        remote.read_many([])


def test_no_token_no_io(store: RecordStore, tmp_path: Path) -> None:
    words, clock = SharedWords(tmp_path / "words"), BootClock()
    book = MonitorBook("records", FixedCapacity(100), period_ns=60 * SECOND_NS)
    book.join("a", 100)
    Monitor(clock, words, book).check()
    engine = Engine(clock, words, EngineBook("records", "a", period_ns=60 * SECOND_NS))
    client = RecordClient(store, engine)
    client.read_many(range(0, 16, 2))
    client.write(1, b"one")
    assert client.read(1)[:3] == b"one"
    done = 10
    with pytest.raises(Refused, match="pool is empty"):
        while True:
            client.read(0)
            done += 1
    assert done == 100
    with pytest.raises(Refused):
        client.write(1, b"two", wait=0.01)
    assert store.read(1)[:3] == b"one"
    client.close()
