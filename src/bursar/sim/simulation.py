"""One run of one scenario with one seed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from bursar.errors import JournalError, UsageError
from bursar.sim.chance import Chance
from bursar.sim.errors import EndlessError, InvariantError, RunFailedError
from bursar.sim.faults import Faults
from bursar.sim.loop import Life, VirtualLoop
from bursar.sim.nemesis import Nemesis
from bursar.sim.network import Fabric
from bursar.sim.node import Node, Surroundings
from bursar.sim.scenario import Scenario
from bursar.sim.trace import History
from bursar.stores.tree import Tree

FAILURE_LINES = 60
"""How much of the history a failure carries."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run that found nothing leaves behind."""

    scenario: str
    seed: int
    events: int
    ended_ns: int
    history: tuple[str, ...]


class Simulation:
    """The world of one run. Made, run once, and thrown away."""

    def __init__(
        self,
        name: str,
        scenario: Scenario,
        seed: int,
        *,
        faults: Faults | None = None,
        keep: int | None = None,
    ) -> None:
        """`faults` replaces what the seed would choose; `keep` bounds the lines of history."""
        self.name = name
        self.scenario = scenario
        self.seed = seed
        self.loop = VirtualLoop()  # type: ignore[abstract]  # no sockets, no signals, no processes
        self.chance = Chance(seed)
        self.history = History(self.loop, keep)
        if faults is None:
            faults = scenario.faults().some(self.chance)
        self.fabric = Fabric(self.loop, self.chance, self.history, faults)
        self._surroundings = Surroundings(
            self.loop, self.chance, self.history, self.fabric, scenario.session_timeout_ns
        )
        self._workloads: list[asyncio.Task[Any]] = []
        scenario.sim = self
        self._nodes = {
            name: Node(self._surroundings, name, boot, self._draw_drift(name, faults), self._task_failed)
            for name, boot in scenario.nodes().items()
        }
        self.fabric.names = self.names
        self._nemesis = Nemesis(self)

    # -- what a scenario may use

    @property
    def now_ns(self) -> int:
        """True time since the beginning."""
        return self.loop.now_ns

    @property
    def tree(self) -> Tree:
        """What the store holds, as nobody in the run sees it: now, and whole."""
        return self._surroundings.store.tree

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._nodes)

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def wake_at(self, when_ns: int) -> None:
        """Make sure that something happens then, so that `check` is called."""
        self.loop.call_at_ns(when_ns, _look)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start work that belongs to no node."""
        task = self.loop.create_task(work, name=name, context=contextvars.Context())
        task.add_done_callback(self._finish)
        return task

    def crash(self, name: str, outage_ns: int) -> None:
        """Crash a node now and boot it again later."""
        node = self.node(name)
        if not node.up:
            raise UsageError(f"{name} is down already: crash a node that is up")
        node.crash()
        self.fabric.lose(name)
        self.scenario.crashed(name)
        self.loop.call_at_ns(
            self.now_ns + outage_ns, self._restart, name, node.incarnation, context=contextvars.Context()
        )

    # -- the run

    def run(self) -> Run:
        """Run to the end. Raises RunFailedError."""
        try:
            self._run()
        except (InvariantError, EndlessError) as error:
            raise self._failure(str(error)) from error
        except RunFailedError:
            raise
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        finally:
            self._tear_down()
        return Run(self.name, self.seed, self.loop.events, self.now_ns, self.history.text())

    def _run(self) -> None:
        self.history.add("sim", "begin", scenario=self.name, seed=self.seed, **self.fabric.faults.told())
        self.loop.after_event = self.scenario.check
        for node in self._nodes.values():
            node.boot()
        self._workloads = [self.spawn(work, name) for name, work in self.scenario.workloads().items()]
        self._nemesis.start()
        self.loop.run(self.scenario.duration_ns)
        self._heal()
        self.loop.run(self.scenario.duration_ns + self.scenario.settle_ns)
        self.scenario.audit()
        self.history.add("sim", "end", events=self.loop.events)

    def _heal(self) -> None:
        self.history.add("sim", "healed")
        self._nemesis.stop()
        self.fabric.heal()
        for task in self._workloads:
            task.cancel()
        for node in self._nodes.values():
            node.life.paused_until = 0
            if not node.up:
                node.boot()
        self.scenario.healed()

    def _tear_down(self) -> None:
        """Poison everything before anything is let go."""
        self.history.seal()
        self.loop.after_event = None
        for node in self._nodes.values():
            node.life.kill()
        self.loop.close()

    def _draw_drift(self, name: str, faults: Faults) -> int:
        """Mostly at the bound, where mistakes show."""
        bound = self.scenario.drift_ppm
        stream = self.chance.stream(f"drift/{name}")
        if not faults.drift:
            return 0
        self.fabric.struck["drift"] += 1
        return stream.choice((-bound, bound, stream.randrange(-bound, bound + 1)))

    def _restart(self, name: str, incarnation: int) -> None:
        node = self.node(name)
        if not node.up and node.incarnation == incarnation:
            node.boot()

    def _task_failed(self, life: Life, task: str, error: BaseException) -> None:
        """A node whose disk failed goes down, as it would in production; anything else that a
        task did not expect is a bug."""
        if isinstance(error, JournalError) and self.node(life.name).life is life:
            self.crash(life.name, self.fabric.faults.outage_ns)
            return
        raise self._failure(
            f"task {task!r} of {life.name}/{life.incarnation} ended with {type(error).__name__}: {error}"
        ) from error

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, InvariantError):
            raise error
        if error is not None:
            raise self._failure(f"task {task.get_name()!r} ended with {error!r}") from error

    def _failure(self, why: str) -> RunFailedError:
        return RunFailedError(self.name, self.seed, self.now_ns, why, self.history.text(FAILURE_LINES))


def _look() -> None:
    """Nothing happens here; the check that follows every event does."""
