"""The parts of a storm's world, each by itself."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar_lab.storm import clocks
from bursar_lab.storm.guard_process import Guard
from bursar_lab.storm.history import Counter, History
from bursar_lab.storm.namespaces import NamespacePlace, find_hindrance
from bursar_lab.storm.nodes import Fleet
from bursar_lab.storm.places import LoopbackPlace

WATCH = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
DRIFT = """import ctypes, time
libc = ctypes.CDLL(None)
def read(clock):
    at = (ctypes.c_long * 2)()
    libc.syscall(228, clock, at)
    return at[0] + at[1] / 1e9
for clock in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_REALTIME):
    drifting, true = time.clock_gettime(clock), read(clock)
    time.sleep(0.3)
    print(time.clock_gettime(clock) - drifting, read(clock) - true)
"""
LISTEN = """import socket
server = socket.create_server(("", 7070))
print(flush=True)
while True:
    server.accept()[0].close()
"""


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_numbered_and_counted(tmp_path: Path) -> None:
    history = History(tmp_path / "c1.jsonl")
    history.write("acquire", at=1, answer={"is": "grant"})
    history.write("note", at=2)
    assert [line["n"] for line in read_lines(history.path)] == [1, 2]
    counter = Counter(tmp_path)
    assert counter.count() == 1
    history.write("acquire", at=3, answer={"is": "refused"})
    assert counter.count() == 2


def test_a_guard_refuses_an_older_fence_and_writes_it_down(tmp_path: Path) -> None:
    guard = Guard(History(tmp_path / "guard.jsonl"))
    assert guard.write("vm-1", 5, "c1/1")
    assert guard.write("vm-1", 5, "c2/1")
    assert not guard.write("vm-1", 4, "c1/1")
    assert not guard.write("vm-2", 0, "c1/1")
    told = [line["accepted"] for line in read_lines(tmp_path / "guard.jsonl")]
    assert told == [True, True, False, False]


@pytest.mark.skipif(not clocks.can_turn(), reason="there is no C compiler here")
def test_a_turned_clock_turns_the_wall_clock_alone(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clocks.turn(clock, 0.0)
    command = ["env", *clocks.list_settings(tmp_path, clock), sys.executable, "-c", WATCH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        offsets = []
        for by_s in (0.0, 3600.0, -50.5, 0.0):
            clocks.turn(clock, by_s)
            child.stdin.write("\n")
            child.stdin.flush()
            wall, steady = map(float, child.stdout.readline().split())
            offsets.append((by_s, wall - time.time(), steady - time.monotonic()))
        child.stdin.close()
    for by_s, turned_s, steady_s in offsets:
        assert abs(turned_s - by_s) < 5, offsets
        assert abs(steady_s) < 5, offsets


@pytest.mark.skipif(not clocks.can_turn(), reason="there is no C compiler here")
def test_a_drifting_clock_is_ahead_by_its_part_of_the_time(tmp_path: Path) -> None:
    """By a hundred times as much as a storm has it, so that a short wait shows it."""
    clock = tmp_path / "clock"
    clocks.turn(clock, 0.0)
    command = ["env", *clocks.list_settings(tmp_path, clock, 100_000), sys.executable, "-c", DRIFT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for ahead, lasted in (map(float, line.split()) for line in done.stdout.splitlines()):
        assert 1.09 < ahead / lasted < 1.11, done.stdout


class Spoiled:
    """A node's journal, as it is while the node is down."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder, LoopbackPlace(["a"]), "sqlite://nowhere", History(folder / "h.jsonl"))
        self.fleet.add("a")
        self.journal = self.fleet.nodes["a"].state / "journals" / "quota"
        self.journal.parent.mkdir(parents=True)
        self.journal.write_bytes(bytes(1000))


def test_torn_is_more_at_the_end_and_flipped_one_bit_within(tmp_path: Path) -> None:
    spoiled = Spoiled(tmp_path)
    assert spoiled.fleet.tear("a", random.Random(1)) == ["quota"]
    torn = spoiled.journal.read_bytes()
    assert torn[:1000] == bytes(1000) and 1000 < len(torn) <= 1030
    (where,) = spoiled.fleet.flip("a", random.Random(1))
    flipped = spoiled.journal.read_bytes()
    (at,) = [number for number, (old, new) in enumerate(zip(torn, flipped, strict=True)) if old != new]
    assert where == f"quota byte {at}" and (torn[at] ^ flipped[at]).bit_count() == 1


def test_a_node_that_takes_a_slot_has_another_name_and_nothing_else(tmp_path: Path) -> None:
    spoiled = Spoiled(tmp_path)
    spoiled.fleet.replace("a")
    assert spoiled.fleet.nodes["a"].name == "a-2"
    assert not spoiled.journal.exists()


# -- namespaces


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespacePlace]:
    """One for all: what a test does to it, it heals."""
    hindrance = find_hindrance()
    if hindrance:
        pytest.skip(hindrance)
    place = NamespacePlace(["a", "b"], ["c"], tmp_path_factory.mktemp("place") / "certificates")
    try:
        yield place
    finally:
        place.close()


def reaches(place: NamespacePlace, member: str, other: str) -> bool:
    try:
        place.dial(member, place.host(other), 7070, 0.5).close()
    except (TimeoutError, OSError):
        return False
    return True


@pytest.fixture
def listening(place: NamespacePlace) -> Iterator[NamespacePlace]:
    command = place.command("a", [sys.executable, "-c", LISTEN])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield place
        finally:
            child.kill()


@pytest.mark.needs("netns", "openssl")
def test_a_cut_is_between_two_and_heals(listening: NamespacePlace) -> None:
    assert reaches(listening, "b", "a") and reaches(listening, "c", "a")
    listening.cut("a", "b")
    assert not reaches(listening, "b", "a")
    assert reaches(listening, "c", "a")
    listening.heal("a")
    assert reaches(listening, "b", "a")


@pytest.mark.needs("netns", "openssl")
def test_what_loses_everything_is_reached_by_nobody(listening: NamespacePlace) -> None:
    listening.lose("a", 1.0)
    assert not reaches(listening, "b", "a")
    listening.heal("a")
    listening.slow("a")
    assert reaches(listening, "b", "a")
    listening.heal("a")


@pytest.mark.needs("netns", "openssl")
def test_nothing_is_left_of_a_network_that_is_closed(place: NamespacePlace, tmp_path: Path) -> None:
    def list_mine() -> set[str]:
        told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        return {line.split()[0] for line in told.splitlines() if line.startswith(f"bs{os.getpid()}-")}

    before = list_mine()
    other = NamespacePlace(["a"], [], tmp_path / "certificates")
    assert len(list_mine() - before) == 2  # the member and the hub
    other.close()
    assert list_mine() == before


@pytest.mark.needs("netns", "openssl")
def test_a_member_has_a_certificate_in_its_name_and_its_later_ones(place: NamespacePlace) -> None:
    files = place.certificate("a")
    assert files is not None
    shown = subprocess.run(
        ["openssl", "x509", "-in", files.cert, "-noout", "-ext", "subjectAltName"],
        capture_output=True,
        text=True,
    ).stdout
    assert "DNS:a," in shown and "DNS:a-2," in shown and place.host("a") in shown


def test_loopback_needs_no_root() -> None:
    place = LoopbackPlace(["a"])
    host, _, port = place.address("a").partition(":")
    with socket.create_server((host, int(port))), place.dial("c", host, int(port), 1.0):
        assert place.command("a", ["true"]) == ["true"]
    assert place.certificate("a") is None
