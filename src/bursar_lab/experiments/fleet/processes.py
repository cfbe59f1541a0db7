"""The processes of a fleet: nodes that are started with the same command but for their names, and
clients that ask one of them first and the others when it is away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar_lab.processes import Process, await_port

CLIENT = "bursar_lab.experiments.fleet.client"
COMMAND_TIMEOUT_S = 60
BIN_S = 0.05
"""Clients count what they were told by parts of a second so long."""


class Fleet:
    """Nodes on one store, in a folder of their own."""

    def __init__(self, folder: Path, store: str) -> None:
        self.store = store
        self.folder = folder
        self.ports: dict[str, int] = {}
        self.nodes: dict[str, Process] = {}

    def start(self, name: str, python: str = sys.executable) -> None:
        port = self.ports.setdefault(name, find_free_port())
        command = [
            python, "-m", "bursar", "serve", "--store", self.store, "--name", name,
            "--listen", f"127.0.0.1:{port}", "--http", "off", "--state", str(self.folder / name),
        ]  # fmt: skip
        node = Process(command, self.folder / f"{name}.log")
        self.nodes[name] = node
        try:
            await_port(port, node.child)
        except BursarError as error:
            raise node.fail(f"node {name} did not start") from error

    def url(self, first: str, *others: str) -> str:
        return "bursar://" + ",".join(f"127.0.0.1:{self.ports[name]}" for name in (first, *others))

    def ask(self, *arguments: str) -> Any:
        """A command of `bursar` at the fleet's store, and what it printed as JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "bursar", *arguments, "--store", self.store, "--json"],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        if done.returncode:
            raise BursarError(f"bursar {' '.join(arguments)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout)

    def apply(self, text: str) -> Any:
        file = self.folder / "policy.toml"
        file.write_text(text)
        return self.ask("apply", str(file), "--yes")

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()


def start_client(url: str, tenant: str, streams: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", CLIENT, url, tenant, str(streams), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read_client(child: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
    said = child.communicate(timeout=timeout_s)[0]
    if child.returncode:
        raise BursarError(f"a client ended with {child.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
