"""The client processes of a storm, and the other processes that write histories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from bursar_lab.storm.history import SECOND_NS, History, now_ns
from bursar_lab.storm.places import Place
from bursar_lab.storm.planted import list_command

STOP_TIMEOUT_S = 8.0
POLL_S = 0.05
CONNECT_S = 30.0
CONNECTIONS = 2


class Clients:
    """`specs` are the plan's. A client that was killed comes back as another: "c1-2" after "c1"."""

    def __init__(self, folder: Path, place: Place, seconds: float, planted: str = "") -> None:
        self._folder = folder
        self._place = place
        self._planted = planted
        self._begin_ns = 0
        self._seconds = seconds
        self._lives: dict[str, int] = {}
        self._specs: dict[str, dict[str, Any]] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.crashed: list[str] = []
        """Clients that ended with an error of their own: they say nothing of the fleet."""
        (folder / "specs").mkdir(parents=True, exist_ok=True)

    def start(self, spec: dict[str, Any], extra: dict[str, Any]) -> None:
        self._specs[spec["name"]] = spec | extra
        self._lives[spec["name"]] = 0
        self._launch(spec["name"])

    def name(self, client: str) -> str:
        """Under which its present life writes."""
        life = self._lives[client]
        return client if life == 1 else f"{client}-{life}"

    def _launch(self, client: str) -> None:
        self._lives[client] += 1
        name, spec = self.name(client), self._specs[client]
        from_s = max(0.0, (now_ns() - self._begin_ns) / SECOND_NS) if self._begin_ns else 0.0
        files = self._place.certificate(client)
        whole = spec | {
            "name": name,
            "history": str(self._folder / "history" / f"{name}.jsonl"),
            "begin": str(self._begin),
            "seconds": self._seconds,
            "from_s": from_s,
            "tls": None if files is None else files.table(),
            "certificate": client,
        }
        path = self._folder / "specs" / f"{name}.json"
        path.write_text(json.dumps(whole))
        command = [*list_command(self._planted, "bursar_lab.storm.client_process", "client"), str(path)]
        self.running[client] = start_process(
            self._place.command(client, command), self._folder / "logs" / f"{name}.log"
        )

    @property
    def _begin(self) -> Path:
        return self._folder / "specs" / "begin"

    def begin(self) -> int:
        """Say when it begins, once all of them are connected, or have had their time for it."""
        until = time.monotonic() + CONNECT_S
        while time.monotonic() < until and not all(map(self._is_connected, self.running)):
            time.sleep(POLL_S)
        self._begin_ns = now_ns() + SECOND_NS
        new = self._begin.with_suffix(".new")
        new.write_text(str(self._begin_ns))
        new.rename(self._begin)
        return self._begin_ns

    def _is_connected(self, client: str) -> bool:
        path = self._folder / "history" / f"{self.name(client)}.jsonl"
        return path.exists() and path.read_bytes().count(b'"op":"connect"') >= CONNECTIONS

    def kill(self, client: str) -> None:
        self._look(client)
        self.running[client].kill()
        self.running[client].wait()

    def restart(self, client: str) -> None:
        if self.running[client].poll() is not None:
            self._launch(client)

    def signal(self, client: str, sent: signal.Signals) -> None:
        if self.running[client].poll() is None:
            os.kill(self.running[client].pid, sent)

    def join(self, timeout_s: float, history: History) -> None:
        """Wait until they are done; who is not is stopped, and that is written down."""
        until = time.monotonic() + timeout_s
        for client, process in self.running.items():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                history.write("harness", at=now_ns(), what="hung", node=self.name(client))
                stop_process(process)
            self._look(client)

    def _look(self, client: str) -> None:
        if (self.running[client].poll() or 0) > 0:
            self.crashed.append(f"the client {self.name(client)} crashed: see logs/{self.name(client)}.log")

    def close(self) -> None:
        for client, process in self.running.items():
            self.signal(client, signal.SIGCONT)
            stop_process(process)


def start_process(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
