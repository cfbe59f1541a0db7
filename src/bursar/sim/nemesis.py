"""Breaks the world from time to time, as the faults say, and mends it again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from bursar.sim.chance import draw_ns
from bursar.sim.loop import sleep_until
from bursar.sim.packets import Link
from bursar.sim.store import STORE
from bursar.world import SECOND_NS

if TYPE_CHECKING:
    from bursar.sim.simulation import Simulation

Strike = Callable[[random.Random, int], None]
"""Breaks something for so many nanoseconds."""


class Nemesis:
    """One task for each fault that comes by the second, each with its own chance."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        faults = self._sim.fabric.faults
        kinds: list[tuple[str, float, Strike]] = [
            ("cut", faults.cuts, self._cut),
            ("one_way_cut", faults.one_way_cuts, self._cut_one_way),
            ("clog", faults.clogs, self._clog),
            ("store_cut", faults.store_cuts, self._cut_store),
            ("crash", faults.crashes, self._crash),
            ("pause", faults.pauses, self._pause),
            ("forgery", faults.forgeries, self._forge),
        ]
        for name, per_second, strike in kinds:
            if per_second > 0:
                self._spawn(self._strike_often(name, per_second, strike), name)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self._sim.spawn(work, f"nemesis.{name}"))

    async def _strike_often(self, name: str, per_second: float, strike: Strike) -> None:
        stream = self._sim.chance.stream(f"nemesis/{name}")
        apart_ns = int(2 * SECOND_NS / per_second)
        while True:
            await self._sleep(draw_ns(stream, 0, apart_ns))
            strike(stream, draw_ns(stream, 0, 2 * self._sim.fabric.faults.outage_ns))

    async def _sleep(self, duration_ns: int) -> None:
        await sleep_until(self._sim.loop, self._sim.now_ns + duration_ns)

    def _pick(self, stream: random.Random) -> str:
        return stream.choice(self._sim.names)

    def _others(self, name: str) -> list[str]:
        return [other for other in self._sim.names if other != name]

    def _cut_for(self, links: list[Link], outage_ns: int) -> None:
        mend = self._sim.fabric.cut(links)
        self._sim.loop.call_at_ns(self._sim.now_ns + outage_ns, mend)

    def _cut(self, stream: random.Random, outage_ns: int) -> None:
        name = self._pick(stream)
        others = self._others(name)
        self._tell("cut", name, outage_ns)
        self._cut_for([(name, other) for other in others] + [(other, name) for other in others], outage_ns)

    def _cut_one_way(self, stream: random.Random, outage_ns: int) -> None:
        name = self._pick(stream)
        others = self._others(name)
        if others:
            link = (name, stream.choice(others))
            self._tell("one_way_cut", "->".join(link), outage_ns)
            self._cut_for([link], outage_ns)

    def _clog(self, stream: random.Random, outage_ns: int) -> None:
        name = self._pick(stream)
        others = self._others(name)
        if others:
            link = (name, stream.choice(others))
            self._tell("clog", "->".join(link), outage_ns)
            self._sim.fabric.clog(link, self._sim.now_ns + outage_ns)

    def _cut_store(self, stream: random.Random, outage_ns: int) -> None:
        """Half of them last long enough for the session to expire."""
        name = self._pick(stream)
        if stream.random() < 0.5:
            outage_ns += self._sim.scenario.session_timeout_ns
        self._tell("store_cut", name, outage_ns)
        self._cut_for([(name, STORE), (STORE, name)], outage_ns)

    def _crash(self, stream: random.Random, outage_ns: int) -> None:
        name = self._pick(stream)
        if self._sim.node(name).up:
            self._sim.fabric.struck["crashes"] += 1
            self._sim.crash(name, outage_ns)

    def _pause(self, stream: random.Random, outage_ns: int) -> None:
        node = self._sim.node(self._pick(stream))
        if node.up:
            self._tell("pause", node.name, outage_ns)
            node.life.pause(self._sim.now_ns + outage_ns)

    def _forge(self, stream: random.Random, outage_ns: int) -> None:
        self._sim.fabric.forgery.strike(stream)

    def _tell(self, event: str, what: str, outage_ns: int) -> None:
        self._sim.fabric.struck[f"{event}s"] += 1
        self._sim.history.add("nemesis", event, what=what, for_ns=outage_ns)
