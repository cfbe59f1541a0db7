"""One node of a run: its lives, its disk, and the World that each life sees."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from bursar.sim.chance import Chance, NodeRandom
from bursar.sim.clock import DriftingClock
from bursar.sim.disk import Disk, SimJournal
from bursar.sim.loop import LIFE, Life, VirtualLoop
from bursar.sim.network import Fabric, Port
from bursar.sim.scenario import Boot
from bursar.sim.store import SimStore, StoreServer
from bursar.sim.trace import History, NodeTrace
from bursar.sim.words import Memory, SimWords
from bursar.world import SECOND_NS, Task, World

START_MAX_NS = 1_000 * SECOND_NS
WALL_ERROR_MAX_NS = SECOND_NS
PROCESS_ONLY = 0.5
"""How often only the process was started again, not the machine: its clock goes on, and it ends the
session that it left in the store."""

Failure = Callable[[Life, str, BaseException], None]
"""Told when a task ended with an error."""


class Spawner:
    """World's `spawn` of one life."""

    def __init__(self, loop: VirtualLoop, life: Life, failure: Failure) -> None:
        self._loop = loop
        self._life = life
        self._failure = failure
        self._context = contextvars.copy_context()
        self._context.run(LIFE.set, life)

    def __call__(self, work: Coroutine[Any, Any, Any], name: str) -> Task:
        if self._life.dead:
            work.close()
            self._life.check()
        task = self._loop.create_task(work, name=name, context=self._context.copy())
        task.add_done_callback(self._finish)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context.copy())

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._life.dead:
            self._failure(self._life, task.get_name(), error)


class Surroundings:
    """What all nodes of a run share."""

    def __init__(
        self, loop: VirtualLoop, chance: Chance, history: History, fabric: Fabric, session_timeout_ns: int
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.history = history
        self.fabric = fabric
        self.store = StoreServer(loop, chance, fabric, history)
        self.memory = Memory()
        self.session_timeout_ns = session_timeout_ns


class Node:
    """A name, a disk and a clock speed that stay, and one life after another."""

    def __init__(self, around: Surroundings, name: str, boot: Boot, drift_ppm: int, failure: Failure) -> None:
        self.name = name
        self.drift_ppm = drift_ppm
        self.incarnation = 0
        self.life = Life(name, 0)
        self.life.kill()
        self.clock = DriftingClock(around.loop, self.life, drift_ppm, 0)
        self._around = around
        self._boot = boot
        self._failure = failure
        self._disk = Disk(around.chance, name)
        self._stream = around.chance.stream(f"node/{name}")
        self._store: SimStore | None = None
        self._boots = around.chance.stream(f"boots/{name}")

    @property
    def up(self) -> bool:
        return not self.life.dead

    def boot(self) -> None:
        """Begin a new life."""
        self.incarnation += 1
        self.life = Life(self.name, self.incarnation)
        spawn = Spawner(self._around.loop, self.life, self._failure)
        world = self._world(spawn)
        self._around.history.add(
            f"{self.name}/{self.incarnation}", "boot", drift_ppm=self.drift_ppm, clock=self.clock.read()
        )
        spawn.call_soon(self._start, world, spawn)

    def _start(self, world: World, spawn: Spawner) -> None:
        work = self._boot(world)
        if work is not None:
            spawn(work, "boot")

    def _world(self, spawn: Spawner) -> World:
        around, life = self._around, self.life
        loop = around.loop
        wall_error_ns = self._stream.randrange(-WALL_ERROR_MAX_NS, WALL_ERROR_MAX_NS)
        start_ns, boot, former = self._stream.randrange(0, START_MAX_NS), self.clock.boot + 1, 0
        if self._store is not None and self._boots.random() < PROCESS_ONLY:
            start_ns, boot, former = self.clock.read(), self.clock.boot, self._store.last_session
        timeout_ns = around.session_timeout_ns
        self.clock = clock = DriftingClock(loop, life, self.drift_ppm, start_ns, wall_error_ns, boot)
        self._store = SimStore(around.store, loop, life, clock, spawn, timeout_ns, former)
        network = Port(around.fabric, loop, life, clock, around.history, spawn)
        around.fabric.ports[self.name] = network
        return World(
            name=self.name,
            incarnation=self.incarnation,
            clock=clock,
            network=network,
            store=self._store,
            journal=lambda name: self._journal(life, name),
            words=SimWords(loop, life, clock, around.memory),
            random=NodeRandom(life, around.chance.stream(f"random/{self.name}/{self.incarnation}")),
            spawn=spawn,
            trace=NodeTrace(life, around.history),
        )

    def _journal(self, life: Life, name: str) -> SimJournal:
        life.check()
        stream = self._around.chance.stream(f"sync/{self.name}")
        return SimJournal(self._around.loop, life, self._disk.file(name), stream, self._around.fabric)

    def crash(self) -> None:
        """Poison the ports, lose what was not synced, and leave the tasks where they stand."""
        self.life.kill()
        lost = self._disk.crash()
        self._around.loop.bury()
        self._around.history.add(f"{self.name}/{self.incarnation}", "crash", lost_records=lost)
