"""The storage target: real processes, sockets and files."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from bursar.errors import FormatError, UsageError
from bursar_lab.experiments.shares.real import run_real, start_server
from bursar_lab.experiments.shares.workloads import MIB, Workload
from bursar_lab.storage.config import Config, read_config, read_report
from bursar_lab.storage.protocol import (
    READ,
    WRITE,
    Command,
    Hello,
    read_command,
    read_hello,
    read_outcome,
    send_command,
    send_hello,
)
from bursar_lab.storage.tenant import Stream


def make_config(root, **changes):
    settings = {
        "socket": str(root / "socket"),
        "directory": str(root / "files"),
        "report": str(root / "report.json"),
        "rate_bytes": 50 * MIB,
        "weights": {"a": 1, "b": 3},
    }
    return Config(**(settings | changes))


@pytest.fixture
def server(tmp_path):
    config = make_config(tmp_path)
    process = start_server(tmp_path, config)
    yield config
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0


def connect(config, hello=Hello("a", 0)):  # noqa: B008 - a constant
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(config.socket)
    send_hello(connection, hello)
    return connection


def test_what_is_written_is_in_a_real_file_and_can_be_read(server):
    with connect(server) as connection:
        send_command(connection, Command(7, WRITE, 4096, 8192), b"x" * 4096)
        assert read_outcome(connection).number == 7
        assert (Path(server.directory) / "a.0").read_bytes()[8192:] == b"x" * 4096
        connection.sendall(struct.pack("!QB3xIQ", 8, READ, 10, 8192))
        header = connection.recv(16, socket.MSG_WAITALL)
        assert struct.unpack("!QB3xI", header) == (8, 0, 10)
        assert connection.recv(10, socket.MSG_WAITALL) == b"x" * 10


@pytest.mark.parametrize(
    "hostile",
    [
        b"\xff\xff" + b"x" * 100,
        b"\x00\x02{}",
        b"\x00\x20" + b'{"tenant":"../etc","file":0}    ',
        struct.pack("!H", 23) + b'{"tenant":"a","file":0}' + struct.pack("!QB3xIQ", 1, 9, 4096, 0),
        struct.pack("!H", 23) + b'{"tenant":"a","file":0}' + struct.pack("!QB3xIQ", 1, 1, 2**31, 0),
        struct.pack("!H", 23) + b'{"tenant":"a","file":0}' + struct.pack("!QB3xIQ", 1, 0, 4096, 2**60),
    ],
)
def test_hostile_bytes_end_their_connection_and_nothing_else(server, hostile):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(server.socket)
        connection.sendall(hostile)
        try:
            assert connection.recv(1) == b"", "the server closes it"
        except ConnectionResetError:
            pass  # closed with bytes unread: the same answer
    with connect(server) as connection:
        send_command(connection, Command(1, WRITE, 16, 0), b"y" * 16)
        assert read_outcome(connection).status == 0


def test_a_tenant_that_dies_in_the_middle_of_a_write_harms_nobody(server):
    with connect(server) as connection:
        connection.sendall(struct.pack("!QB3xIQ", 1, WRITE, 4096, 0) + b"half")
    with connect(server, Hello("b", 1)) as connection:
        send_command(connection, Command(1, READ, 16, 0))
        assert read_outcome(connection).length == 16


def test_files_are_removed_and_the_report_is_written_when_it_ends(tmp_path):
    config = make_config(tmp_path)
    process = start_server(tmp_path, config)
    with connect(config) as connection:
        send_command(connection, Command(1, WRITE, 16, 0), b"y" * 16)
        read_outcome(connection)
    process.terminate()
    assert process.wait(timeout=20) == 0
    assert list(Path(config.directory).iterdir()) == []
    assert not Path(config.socket).exists()
    assert read_report(Path(config.report)).samples[-1].served in ({"a": 16}, {})


def steady(seconds, streams=4, io_bytes=MIB):
    return [Stream(burst_bytes=2**40, until_s=seconds, io_bytes=io_bytes, window=4)] * streams


def run_two(mode, seconds=2.5, rate=50 * MIB, io_bytes=MIB, since=0.5):
    streams = {"a": steady(seconds, io_bytes=io_bytes), "b": steady(seconds, io_bytes=io_bytes)}
    workload = Workload("two", {"a": 1, "b": 3}, streams, seconds, rate)
    run = run_real(workload, mode)
    inside = [sample for sample in run.samples if since <= sample.at_s <= seconds]
    first, last = inside[0], inside[-1]
    served = {name: last.served[name] - first.served.get(name, 0) for name in ("a", "b")}
    return served, last.at_s - first.at_s


def test_backlogged_tenants_get_bandwidth_by_weight_and_the_device_is_full():
    served, seconds = run_two("share")
    assert served["b"] / served["a"] == pytest.approx(3, rel=0.2)
    assert sum(served.values()) / seconds == pytest.approx(50 * MIB, rel=0.15)


def test_small_requests_are_shared_by_bytes_too():
    # Few small requests wait at a time, so who began to ask more slowly lent at first, and is paid back.
    served, _ = run_two("share", seconds=4.5, rate=4 * MIB, io_bytes=4096, since=2.5)
    assert served["b"] / served["a"] == pytest.approx(3, rel=0.2)


def test_without_rules_it_is_first_come_first_served():
    served, _ = run_two("none")
    assert served["b"] / served["a"] == pytest.approx(1, rel=0.2)


def test_static_rules_leave_a_lone_tenant_its_part_only():
    workload = Workload("one", {"a": 1, "b": 3}, {"a": steady(1.5)}, 1.5, 40 * MIB)
    run = run_real(workload, "static")
    inside = [sample for sample in run.samples if 0.5 <= sample.at_s <= 1.5]
    seconds = inside[-1].at_s - inside[0].at_s
    served = inside[-1].served["a"] - inside[0].served["a"]
    assert served / seconds == pytest.approx(10 * MIB, rel=0.2)


@pytest.mark.parametrize(
    "changes", [{"rate_bytes": 0}, {"weights": {}}, {"weights": {"a": 0}}, {"interval_ms": 0}, {"threads": 0}]
)
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path, changes):
    with pytest.raises(UsageError):
        make_config(tmp_path, **changes)


def test_a_configuration_file_is_refused_with_its_name(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"mode": "share"}')
    with pytest.raises(UsageError, match=r"c\.json"):
        read_config(path)
    done = subprocess.run(
        [sys.executable, "-m", "bursar_lab.storage", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 1 and "c.json" in done.stderr and "Traceback" not in done.stderr


def test_messages_are_bounded_before_they_are_believed():
    left, right = socket.socketpair()
    with left, right:
        send_hello(left, Hello("a" * 300, 0))
        with pytest.raises(UsageError, match="longer than"):
            read_hello(right)
        left.sendall(struct.pack("!QB3xIQ", 1, 5, 1, 1))
        with pytest.raises(FormatError, match="operation 5"):
            read_command(right)


def test_commands_survive_being_cut_into_pieces():
    left, right = socket.socketpair()
    with left, right:
        data = struct.pack("!QB3xIQ", 3, WRITE, 5, 9) + b"hello"

        def dribble():
            for position in range(len(data)):
                left.sendall(data[position : position + 1])

        thread = threading.Thread(target=dribble)
        thread.start()
        command, body = read_command(right)
        thread.join()
        assert (command, bytes(body)) == (Command(3, WRITE, 5, 9), b"hello")
        assert msgspec.structs.asdict(command)["offset"] == 9
