"""The lease between two real processes, each killed (-9) and started again at random moments."""

from __future__ import annotations

import random
import signal
import socket
import sys
import time
from pathlib import Path

from bursar.runtime.journal import read_records
from bursar.runtime.state import StateDirectory
from bursar_lab.leases.book import Entry, _decode
from system.processes import Process

from .lease_node import TOTAL

NODE = Path(__file__).with_name("lease_node.py")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def entries(state: Path) -> list[Entry]:
    path = state / "journals" / "lease"
    return [_decode(record) for record in read_records(path.read_bytes(), path)[0]]


def check_books(directory: Path) -> tuple[int, int]:
    """Spent by the file, unspent by the owner's journal; never more than there is in all."""
    spent = len((directory / "spends").read_bytes()) if (directory / "spends").exists() else 0
    unspent = TOTAL
    for entry in entries(directory / "owner"):
        unspent += entry.tokens if entry.ended else -entry.tokens
    assert 0 <= unspent <= TOTAL
    assert spent + unspent <= TOTAL
    return spent, unspent


def test_tokens_never_exceed_the_total_whoever_is_killed(tmp_path: Path) -> None:
    seed = 17
    chance = random.Random(seed)
    address = free_address()
    owner_arguments = [sys.executable, str(NODE), "owner", str(tmp_path / "owner"), address]
    holder_arguments = [
        sys.executable,
        str(NODE),
        "holder",
        str(tmp_path / "holder"),
        address,
        str(tmp_path / "spends"),
    ]
    start = {"owner": lambda: Process(owner_arguments), "holder": lambda: Process(holder_arguments)}
    running = {name: begin() for name, begin in start.items()}
    lives = {"owner": 1, "holder": 1}
    try:
        for name, process in running.items():
            process.wait_for(f"{name}.ready")
        for _ in range(10):
            time.sleep(chance.uniform(0.1, 0.5))
            victim = chance.choice(("owner", "holder"))
            running[victim].signal(signal.SIGKILL)
            running[victim].wait()
            with running[victim]:
                running[victim] = start[victim]()
            lives[victim] += 1
            running[victim].wait_for(f"{victim}.ready")
            check_books(tmp_path)
        progress = check_books(tmp_path)[0]
        time.sleep(1.0)
    finally:
        for process in running.values():
            with process:
                process.signal(signal.SIGKILL)
                process.wait()
    spent, unspent = check_books(tmp_path)
    assert spent > progress, f"seed {seed}: spending goes on after the last restart"
    assert unspent < TOTAL
    for name, count in lives.items():
        assert not any("node.down" in line for line in running[name].lines), f"seed {seed}"
        state = StateDirectory(tmp_path / name)
        assert state.begin_life() == count + 1
        state.close()
