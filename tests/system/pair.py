"""Two daemons that share a budget and names on one SQLite store, and what befalls their disks."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import bursar
from bursar.demo.ports import find_free_port

from .processes import Process

LIMIT = 1_000
PATIENCE_S = 10.0


def run(*arguments: str) -> Process:
    return Process([sys.executable, "-m", "bursar", *arguments])


class Pair:
    """Nodes `a` and `b`: `live` is all they have on disk, beside their policy files."""

    def __init__(self, folder: Path) -> None:
        self.live, self._backups = folder / "live", folder / "backups"
        self.live.mkdir()
        self.url = f"sqlite://{self.live}/store.db"
        self.policies: dict[str, Path] = {}
        self.at: dict[str, str] = {}
        for name in ("a", "b", "c"):
            port = find_free_port()
            self.at[name] = f"bursar://127.0.0.1:{port}"
            self.policies[name] = folder / f"{name}.toml"
            self.policies[name].write_text(
                f'store = "{self.url}"\n'
                f'[daemon]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\nhttp = "off"\n'
                f'session_timeout = "2s"\nstate = "{self.live}/{name}"\n[resource.llm]\nkind = "quota"\n'
                f"[resource.llm.tenant]\nacme = {{ limit = {LIMIT} }}\n"
                '[resource.site]\nkind = "claim"\n'
            )

    def serve(self, name: str) -> Process:
        return run("serve", str(self.policies[name]), "--log", "json")

    def lose_store(self) -> None:
        for file in self.live.glob("store.db*"):
            file.unlink()

    def back_store_up(self, to: str) -> None:
        """While it is in use, as SQLite would have it."""
        self._backups.mkdir(exist_ok=True)
        with (
            closing(sqlite3.connect(self.live / "store.db")) as source,
            closing(sqlite3.connect(self._backups / to)) as target,
        ):
            source.backup(target)

    def restore_store(self, backup: str) -> None:
        self.lose_store()
        shutil.copy(self._backups / backup, self.live / "store.db")

    def adopt(self, *options: str) -> None:
        self.command("store", "adopt", "--store", self.url, *options, "--yes")

    def command(self, *arguments: str) -> None:
        """As soon as the sessions of nodes that were killed are over."""
        deadline = time.monotonic() + PATIENCE_S
        while (said := self._try(*arguments)) != "":
            assert " is up: stop " in said and time.monotonic() < deadline, said

    def _try(self, *arguments: str) -> str:
        with run(*arguments) as command:
            return "" if command.wait() == 0 else "".join(command.lines) or "nothing"


def kill(*daemons: Process) -> None:
    for daemon in daemons:
        daemon.signal(signal.SIGKILL)
        daemon.wait()


async def spend(at: str, most: int = LIMIT) -> int:
    """Tens, as long as they are granted; how much that was."""
    told = 0
    async with await bursar.connect(at) as b:
        while told < most:
            try:
                async with b.resource("llm").acquire("acme", 10, wait=2):
                    told += 10
            except (bursar.Refused, bursar.Unknown):
                return told
    return told


async def find_fence(at: str) -> int:
    """That of the next one to have the name."""
    async with await bursar.connect(at) as b, b.claim("vm-7:E", tenant="ops", wait=5) as grant:
        return grant.fence["vm-7"]
