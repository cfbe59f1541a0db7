"""The store that a storm's fleet stands on: an SQLite file, or ZooKeepers of its own."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar_lab.processes import Process
from bursar_lab.storm.places import Place
from bursar_lab.zookeeper_server import ZookeeperServers

LOCK_TIMEOUT_S = 5.0
START_S = 10.0


class Engine(Protocol):
    url: str

    def kill(self) -> str:
        """kill -9 of the one that leads; its name."""

    def pause(self, everybody: bool) -> str:
        """Stop the one that leads, or all of them, without a word; their names."""

    def heal(self) -> None: ...

    def stop(self) -> None: ...


class SqliteEngine:
    """A file. It is "paused" by somebody who holds its write lock: nobody commits meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.db"
        self.url = f"sqlite://{self._path}"
        self._release = threading.Event()
        self._holder: threading.Thread | None = None

    def kill(self) -> str:
        raise NotImplementedError("plans on SQLite have no such fault")

    def pause(self, everybody: bool) -> str:
        locked = threading.Event()
        self._release.clear()
        self._holder = threading.Thread(target=self._hold, args=(locked,), daemon=True)
        self._holder.start()
        locked.wait(LOCK_TIMEOUT_S)
        return "store.db"

    def _hold(self, locked: threading.Event) -> None:
        connection = sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            locked.set()
            self._release.wait()
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            locked.set()  # others were quicker for five seconds: then it was slow without us
        finally:
            connection.close()

    def heal(self) -> None:
        self._release.set()
        if self._holder is not None:
            self._holder.join()
            self._holder = None

    def stop(self) -> None:
        self.heal()


class _Members:
    """Servers that are members of a place."""

    def __init__(self, place: Place) -> None:
        self._in = place

    def addresses(self, count: int) -> Sequence[str]:
        return [self._in.host(name_server(number)) for number in range(count)]

    def command(self, number: int, command: list[str]) -> list[str]:
        return self._in.command(name_server(number), command)

    def dial(self, number: int, port: int, timeout_s: float) -> socket.socket:
        member = name_server(number)
        return self._in.dial(member, self._in.host(member), port, timeout_s)


class ZookeeperEngine:
    def __init__(self, place: Place, count: int) -> None:
        self._servers = ZookeeperServers(count, place=_Members(place)).__enter__()
        self.url = self._servers.url("/storm")
        self._killed: list[int] = []
        self._paused: list[int] = []

    def kill(self) -> str:
        leader = self._servers.leader()
        self._servers.kill(leader)
        self._killed.append(leader)
        return name_server(leader)

    def pause(self, everybody: bool) -> str:
        chosen = range(self._servers.count) if everybody else [self._servers.leader()]
        for number in chosen:
            self._servers.pause(number)
            self._paused.append(number)
        return ",".join(map(name_server, chosen))

    def heal(self) -> None:
        for number in self._paused:
            self._servers.resume(number)
        for number in self._killed:
            self._servers.start(number)
        self._paused, self._killed = [], []

    def stop(self) -> None:
        self.heal()
        self._servers.stop()


def name_server(number: int) -> str:
    return f"zk{number + 1}"


class Words:
    """A Redis server for the words of pools."""

    MEMBER = "words"

    def __init__(self, place: Place, folder: Path) -> None:
        if shutil.which("redis-server") is None:
            raise BursarError("a storm of pools needs redis-server: apt-get install redis-server")
        host, port = place.host(self.MEMBER), find_free_port()
        options = [
            "--bind",
            host,
            "--port",
            str(port),
            "--protected-mode",
            "no",
            "--save",
            "",
            "--dir",
            "/tmp",
        ]
        command = place.command(self.MEMBER, ["redis-server", *options])
        self._process = Process(command, folder / "logs" / "words.log")
        self.address = f"{host}:{port}"
        self._await(place, host, port)

    def _await(self, place: Place, host: str, port: int) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                place.dial(self.MEMBER, host, port, 0.5).close()
                return
            except OSError:
                time.sleep(0.05)
        raise self._process.fail("the Redis server did not start")

    def stop(self) -> None:
        self._process.stop()


def open_engine(store: str, place: Place, folder: Path, servers: int) -> Engine:
    return SqliteEngine(folder) if store == "sqlite" else ZookeeperEngine(place, servers)
