"""The nodes: `bursar serve` processes with default settings, and whoever starts them again when they end.

A node is known by its slot (a, b, c), which has one address. Should its state be lost for good, as the
documentation says, another node takes the slot, under a new name and with an empty directory.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bursar_lab.processes import Process
from bursar_lab.storm import clocks
from bursar_lab.storm.history import History, now_ns
from bursar_lab.storm.places import Place
from bursar_lab.storm.planted import list_command

READY = b'"daemon.ready"'
READY_TIMEOUT_S = 20.0
POLL_S = 0.05
AGAIN_S = 1.0
SAID_BYTES = 4_000
TMPFS = "size=8m,mode=0700"


class Node:
    """One slot."""

    def __init__(self, slot: str, folder: Path) -> None:
        self.slot = slot
        self.life = 1
        self.state = folder / "state" / slot
        self.log = folder / "logs" / f"{slot}.log"
        self.clock = folder / "state" / f"{slot}.clock"
        self.process: Process | None = None
        self.wanted = False
        self.turned = False
        """Whether its wall clock can be turned."""
        self.drift_ppm = 0
        self.mounted = False
        self.heard = 0
        """How much its log had when it was started last."""
        self.again_at = 0.0

    @property
    def name(self) -> str:
        return self.slot if self.life == 1 else f"{self.slot}-{self.life}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running

    @property
    def ended_by_itself(self) -> bool:
        return self.process is not None and (self.process.child.poll() or 0) > 0

    def said(self, since: int | None = None) -> bytes:
        """What it logged since it was started last, or from a place in its log on."""
        with self.log.open("rb") as file:
            file.seek(self.heard if since is None else since)
            return file.read()

    @property
    def logged(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    @property
    def ready(self) -> bool:
        return self.running and READY in self.said()


class Fleet:
    def __init__(self, folder: Path, place: Place, store: str, history: History, planted: str = "") -> None:
        self._folder = folder
        self._place = place
        self._store = store
        self._history = history
        self._planted = planted
        self.join_token: Path | None = None
        """The file with the token that lets nodes in, once there are tokens."""
        self._lock = threading.RLock()
        self.nodes: dict[str, Node] = {}
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "state").mkdir(parents=True, exist_ok=True)

    def add(self, slot: str) -> Node:
        return self.nodes.setdefault(slot, Node(slot, self._folder))

    # -- starting and ending

    def start(self, slot: str) -> None:
        with self._lock:
            node = self.nodes[slot]
            if node.running:
                return
            node.wanted = True
            node.heard = node.logged
            node.process = Process(self._command(node), node.log)

    def _command(self, node: Node) -> list[str]:
        command = [
            *list_command(self._planted, "bursar", "serve"), "--store", self._store, "--name", node.name,
            "--listen", self._place.address(node.slot), "--http", self._place.http(node.slot),
            "--state", str(node.state), "--log", "json",
        ]  # fmt: skip
        if self.join_token is not None:
            command += ["--join-token-file", str(self.join_token)]
        files = self._place.certificate(node.slot)
        if files is not None:
            command += files.options()
        if node.turned:
            command = [*self._turned(node), *command]
        return self._place.command(node.slot, command)

    def _turned(self, node: Node) -> list[str]:
        if not node.clock.exists():
            clocks.turn(node.clock, 0.0)
        return ["env", *clocks.list_settings(node.clock.parent, node.clock, node.drift_ppm)]

    def await_ready(self, *slots: str, timeout_s: float = READY_TIMEOUT_S) -> list[str]:
        """Wait for them; those that are not ready in time."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            late = [slot for slot in slots if not self.nodes[slot].ready]
            if not late:
                return []
            time.sleep(POLL_S)
        return late

    def list_absent(self, *slots: str) -> list[str]:
        """Of each that is not ready though nothing ails it any more: what it said last."""
        return [
            f"node {slot} was not ready at the end: {read_last_words(self.nodes[slot])}"
            for slot in self.await_ready(*slots)
        ]

    def stop(self, slot: str) -> None:
        with self._lock:
            self.nodes[slot].wanted = False
            process = self.nodes[slot].process
        if process is not None:
            process.stop()

    def kill(self, slot: str) -> None:
        with self._lock:
            node = self.nodes[slot]
            node.wanted = False
            if node.running:
                assert node.process is not None, "it is running"
                node.process.kill()

    def signal(self, slot: str, sent: signal.Signals) -> None:
        process = self.nodes[slot].process
        if process is not None and process.running:
            os.kill(process.pid, sent)

    def tend(self) -> None:
        """Start those again that ended by themselves, as a supervisor would."""
        with self._lock:
            for node in self.nodes.values():
                if not node.wanted or node.running or time.monotonic() < node.again_at:
                    continue
                node.again_at = time.monotonic() + AGAIN_S
                if node.process is not None:
                    code = node.process.child.returncode
                    says = read_last_words(node)
                    self._history.write("note", at=now_ns(), what="exit", node=node.slot, code=code, why=says)
                self.start(node.slot)

    # -- disks

    def mount(self, slot: str) -> None:
        """A small disk of its own for the node's state."""
        node = self.nodes[slot]
        node.state.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", TMPFS, "tmpfs", str(node.state)], check=True)
        node.mounted = True

    def fill(self, slot: str) -> None:
        """Until nothing more fits on its disk."""
        with open(self.nodes[slot].state / "filler", "wb", buffering=0) as file:
            for size in (65_536, 4_096, 512, 1):
                with _until_full():
                    while True:
                        file.write(b"\0" * size)

    def drain(self, slot: str) -> None:
        (self.nodes[slot].state / "filler").unlink(missing_ok=True)

    def lose_state(self, slot: str) -> None:
        state = self.nodes[slot].state
        for path in sorted(state.iterdir()) if state.exists() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def journals(self, slot: str) -> list[Path]:
        folder = self.nodes[slot].state / "journals"
        found = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.exists() else []
        return [path for path in found if path.stat().st_size]

    def tear(self, slot: str, rng: random.Random) -> list[str]:
        """Half a record at the end of each journal, as a crash in the middle of a write leaves it."""
        torn = self.journals(slot)
        for path in torn:
            with path.open("ab") as file:
                file.write(rng.randbytes(rng.randint(1, 30)))
        return [path.name for path in torn]

    def flip(self, slot: str, rng: random.Random) -> list[str]:
        """One bit in the first half of one journal, where records were promised."""
        found = self.journals(slot)
        if not found:
            return []
        path = rng.choice(found)
        content = bytearray(path.read_bytes())
        at = rng.randrange(max(1, len(content) // 2))
        content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content))
        return [f"{path.name} byte {at}"]

    def replace(self, slot: str) -> None:
        """Another node takes the slot: a new name, and an empty directory."""
        with self._lock:
            self.lose_state(slot)
            self.nodes[slot].life += 1

    def turn_clock(self, slot: str, by_s: float) -> None:
        clocks.turn(self.nodes[slot].clock, by_s)

    # -- the end

    def close(self) -> None:
        for node in self.nodes.values():
            node.wanted = False
            self.signal(node.slot, signal.SIGCONT)
        stoppers = [threading.Thread(target=self.stop, args=(slot,)) for slot in self.nodes]
        for thread in stoppers:
            thread.start()
        for thread in stoppers:
            thread.join()
        for node in self.nodes.values():
            if node.mounted:
                subprocess.run(["umount", "-l", str(node.state)], capture_output=True)


def read_last_words(node: Node) -> str:
    lines = node.said()[-SAID_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


@contextmanager
def _until_full() -> Iterator[None]:
    try:
        yield
    except OSError:
        return
