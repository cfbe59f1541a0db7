"""The store that a storm's fleet stands on: an SQLite file, or servers of its own."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar_lab.etcd_server import EtcdServers
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.processes import Process
from bursar_lab.storm.places import Place
from bursar_lab.zookeeper_server import ZookeeperServers

LOCK_TIMEOUT_S = 5.0
AWAY_S, BACK_S = 0.08, 0.02
"""A slow engine does nothing for the one, and its work in the other, over and over."""

START_S = 10.0


class Engine(Protocol):
    url: str

    def kill(self) -> str:
        """kill -9 of the one that leads; its name."""

    def pause(self, everybody: bool) -> str:
        """Stop the one that leads, or all of them, without a word; their names."""

    def slow(self) -> str:
        """It does its work in a fifth of the time; their names."""

    def heal(self) -> None: ...

    def stop(self) -> None: ...


class _Stutter:
    """Something that is stopped and let go, over and over, until it is over."""

    def __init__(self, stop: Callable[[], object], go: Callable[[], object]) -> None:
        self._stop, self._go = stop, go
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._stop()
            self._over.wait(AWAY_S)
            self._go()
            self._over.wait(BACK_S)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class SqliteEngine:
    """A file. It is "paused" by somebody who holds its write lock: nobody commits meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.db"
        self.url = f"sqlite://{self._path}"
        self._release = threading.Event()
        self._holder: threading.Thread | None = None
        self._stutter: _Stutter | None = None

    def kill(self) -> str:
        raise NotImplementedError("plans on SQLite have no such fault")

    def pause(self, everybody: bool) -> str:
        locked = threading.Event()
        self._release.clear()
        self._holder = threading.Thread(target=self._hold, args=(locked,), daemon=True)
        self._holder.start()
        locked.wait(LOCK_TIMEOUT_S)
        return "store.db"

    def slow(self) -> str:
        self._stutter = _Stutter(lambda: self.pause(True), self._let_go)
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
        if self._stutter is not None:
            self._stutter.end()
            self._stutter = None
        self._let_go()

    def _let_go(self) -> None:
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


class Servers(Protocol):
    count: int

    def leader(self) -> int: ...

    def kill(self, number: int) -> None: ...

    def pause(self, number: int) -> None: ...

    def resume(self, number: int) -> None: ...

    def stop(self) -> None: ...


class ServersEngine:
    """Several servers. `fail_over(leader)` is what somebody does when the leader was killed, where the others
    do not help themselves; `bring_back(number)` starts one that was."""

    def __init__(
        self,
        servers: Servers,
        url: str,
        bring_back: Callable[[int], None],
        fail_over: Callable[[int], None] = lambda leader: None,
    ) -> None:
        self._servers = servers
        self.url = url
        self._bring_back = bring_back
        self._fail_over = fail_over
        self._killed: list[int] = []
        self._paused: list[int] = []
        self._stutter: _Stutter | None = None

    def kill(self) -> str:
        leader = self._servers.leader()
        self._servers.kill(leader)
        self._killed.append(leader)
        self._fail_over(leader)
        return name_server(leader)

    def pause(self, everybody: bool) -> str:
        chosen = range(self._servers.count) if everybody else [self._servers.leader()]
        for number in chosen:
            self._servers.pause(number)
            self._paused.append(number)
        return ",".join(map(name_server, chosen))

    def slow(self) -> str:
        numbers, pause, resume = range(self._servers.count), self._servers.pause, self._servers.resume
        self._stutter = _Stutter(lambda: list(map(pause, numbers)), lambda: list(map(resume, numbers)))
        return ",".join(map(name_server, numbers))

    def heal(self) -> None:
        if self._stutter is not None:
            self._stutter.end()
            self._stutter = None
        for number in self._paused:
            self._servers.resume(number)
        for number in self._killed:
            self._bring_back(number)
        self._paused, self._killed = [], []

    def stop(self) -> None:
        self.heal()
        self._servers.stop()


def _open_zookeeper(place: Place, count: int) -> ServersEngine:
    servers = ZookeeperServers(count, place=_Members(place)).__enter__()
    return ServersEngine(servers, servers.url("/storm"), servers.start)


def _open_etcd(place: Place, count: int) -> ServersEngine:
    servers = EtcdServers(count, place=_Members(place)).__enter__()
    return ServersEngine(servers, servers.url("/storm"), servers.start)


def _open_postgresql(place: Place, count: int) -> ServersEngine:
    """A primary and a standby that it waits for; the standby is promoted when the primary is killed."""
    servers = PostgresqlServers(2, place=_Members(place)).__enter__()
    return ServersEngine(servers, servers.url(), servers.rejoin, servers.fail_over)


SHARED: dict[str, Callable[[Place, int], ServersEngine]] = {
    "zookeeper": _open_zookeeper,
    "etcd": _open_etcd,
    "postgresql": _open_postgresql,
}
STORES = ("sqlite", *SHARED)


def name_server(number: int) -> str:
    return f"store{number + 1}"


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
    return SqliteEngine(folder) if store == "sqlite" else SHARED[store](place, servers)
