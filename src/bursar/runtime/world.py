"""A node of the real world: all its ports, and its end.

A task that fails takes its node down: the failure is logged with its traceback, the ports stop
working at once (`CrashedError`), and whoever runs the node learns of it from `LiveWorld.failure`.
Nothing is done in the name of a node that has lost one of its parts.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.errors import CrashedError, UsageError
from bursar.fleet.following import FleetView
from bursar.fleet.secret import read_secret
from bursar.policy.values import Tls
from bursar.resource.checks import check_name
from bursar.runtime import logs
from bursar.runtime.clock import BootClock
from bursar.runtime.journal import FileJournal
from bursar.runtime.limits import Limits
from bursar.runtime.network import SocketNetwork
from bursar.runtime.routes import Address
from bursar.runtime.session_record import FileSessionRecord
from bursar.runtime.state import StateDirectory
from bursar.runtime.words import SharedWords
from bursar.stores import TIMEOUT_NS, open_store
from bursar.world import Journal, Store, World

TOLD = frozenset({"rate.leading", "rate.deposed", "node.waits_for_namesake"})
"""Lines of a protocol's history that an operator wants to see; the others are for whoever looks for a bug."""


class Node:
    """What the ports of one node share: its tasks, its files, and whether it is still alive."""

    def __init__(self, name: str, state: StateDirectory | None, network: SocketNetwork) -> None:
        self.name = name
        self.network = network
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._state = state
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._journals: dict[str, FileJournal] = {}
        # One thread: a node's journals share one disk, and syncing them in turn loses nothing.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-journal")
        self._closing = False

    @property
    def alive(self) -> bool:
        return not self._closing and not self.failure.done()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Implements `bursar.world.Spawn`."""
        if not self.alive:
            work.close()
            raise CrashedError(f"node {self.name} is down")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not (self._closing and isinstance(error, CrashedError)):
            self.crash(error, task.get_name())

    def crash(self, error: BaseException, part: str) -> None:
        """Take the node down: first the ports, then the tasks."""
        if self.failure.done():
            return
        logs.failure("node.down", error, node=self.name, part=part)
        self.failure.set_result(error)
        self.network.crash()
        for journal in self._journals.values():
            journal.crash()
        self._cancel_tasks()

    def journal(self, name: str) -> Journal:
        """The journal of that name, opened at most once a life."""
        if self._state is None:
            raise UsageError(f"node {self.name} has no state directory and can keep no journal; set one")
        if name in self._journals:
            raise UsageError(f"the journal {name!r} is open in this life already; restart the node first")
        journal = FileJournal(self._state.journal_path(name), self._disk)
        self._journals[name] = journal
        return journal

    @property
    def folder(self) -> Path | None:
        """Where it keeps what it remembers."""
        return None if self._state is None else self._state.path

    def recall(self, name: str) -> bytes | None:
        """What was kept under that name in the state directory; None for nothing."""
        try:
            return None if self._state is None else (self._state.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, name: str, data: bytes) -> None:
        """Keep something small in the state directory, durably."""
        if self._state is not None:
            self._state.write(name, data)

    def trace(self, event: str, /, **fields: int | str | bool | None) -> None:
        (logs.info if event in TOLD else logs.debug)(event, node=self.name, **fields)

    def _cancel_tasks(self) -> list[asyncio.Task[Any]]:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        tasks = self._cancel_tasks()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.network.close()
        for journal in self._journals.values():
            await journal.close()
        self._disk.shutdown(wait=True)
        if self._state is not None:
            self._state.close()


@dataclass(frozen=True, slots=True)
class LiveWorld(World):
    """A World on real ports. `listening` is where it takes connections, None for nowhere."""

    node: Node
    listening: Address | None
    sockets: SocketNetwork
    shared: SharedWords

    @property
    def failure(self) -> asyncio.Future[BaseException]:
        """Done, with the error, when the node has gone down by itself."""
        return self.node.failure

    async def close(self) -> None:
        """A clean end: tasks are stopped, what was said is sent, files and sockets are closed."""
        await self.node.close()
        await self.store.close()
        self.shared.close()


async def open_world(
    name: str,
    *,
    state: Path | str | None = None,
    listen: str | None = None,
    peers: Mapping[str, str] | None = None,
    tls: Tls | None = None,
    store: str | Store = "memory://",
    session_timeout_ns: int = TIMEOUT_NS,
    words: Path | str | None = None,
    limits: Limits | None = None,
    seed: int | None = None,
    secret: bytes | None = None,
) -> LiveWorld:
    """One more life of the node `name`.

    Its incarnation and journals are kept in `state`; a node without one remembers nothing and has
    no journals. `listen` is "host:port" (port 0: any), beyond loopback only with `tls`. `words` is
    the file of shared words, in `state` unless told. `secret` is for nodes that are peers and have no
    store in common; else it is the store's. Raises UsageError, NetworkError, JournalError
    or StoreError; then nothing is left open."""
    check_name("node name", name)
    directory = StateDirectory(Path(state)) if state is not None else None
    clock = BootClock()
    seed = secrets.randbits(64) if seed is None else seed
    opened: list[Any] = []
    try:
        incarnation = directory.begin_life() if directory else time.time_ns()
        network = SocketNetwork(
            name, incarnation, peers=peers, tls=tls, limits=limits, clock=clock, seed=seed
        )
        node = Node(name, directory, network)
        opened.append(node)
        if isinstance(store, str):
            record = FileSessionRecord(directory, store) if directory is not None else None
            store = await open_store(
                store, clock=clock, name=name, timeout_ns=session_timeout_ns, record=record
            )
        opened.append(store)
        network.secret = await read_secret(store, clock) if secret is None else secret
        listening = await network.listen(listen) if listen is not None else None
    except BaseException:
        for part in opened:
            await part.close()
        if directory is not None and not opened:
            directory.close()
        raise
    shared = SharedWords(Path(words) if words is not None else _words_path(name, directory))
    logs.info("node.up", node=name, incarnation=incarnation, address=str(listening or "none"), seed=seed)
    return LiveWorld(
        name=name,
        incarnation=incarnation,
        clock=clock,
        network=network,
        store=store,
        journal=node.journal,
        words=shared,
        random=random.Random(seed),
        spawn=node.spawn,
        trace=node.trace,
        node=node,
        listening=listening,
        sockets=network,
        shared=shared,
        fleet=FleetView(),
    )


class NoStore:
    """A client of a daemon has no store, journal or shared words: all that is the daemon's."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError("a client of a daemon keeps nothing itself")


@dataclass(frozen=True, slots=True)
class ClientWorld(World):
    """A World with a clock and a network, and nothing to keep."""

    node: Node

    async def close(self) -> None:
        await self.node.close()


def open_client_world(network: SocketNetwork, chance: random.Random) -> ClientWorld:
    """The world of a program that only asks a daemon."""
    node = Node(network.name, None, network)
    nothing: Any = NoStore()
    return ClientWorld(
        name=network.name,
        incarnation=1,
        clock=network.clock,
        network=network,
        store=nothing,
        journal=node.journal,
        words=nothing,
        random=chance,
        spawn=node.spawn,
        trace=node.trace,
        node=node,
    )


def _words_path(name: str, directory: StateDirectory | None) -> Path:
    return (directory.path if directory else Path("/dev/shm") / f"bursar-{name}") / "words"
