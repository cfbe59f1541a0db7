"""Every order of what a few nodes ask of one store, tried on the code that they run anywhere.

Where `search` steps books, this steps whole nodes: books, couriers and all. A run goes from the beginning
by the moves that were chosen: the next request of a node is done; it is lost, or its reply; news of a
change arrives; time passes; work ends; a node dies, or its session is ended though it lives; the store is
away for long. The *plain* order takes whatever is first in that list. A search tries every run that
departs from the plain order at most so many times (`departures`), at every place where it can, and does
not go on from a state in which it was before.

A run cannot be taken back, so each is made from its beginning again; what it costs is the number of
states times the length of a run.

To search a protocol, derive from `OrderedWorld`: see `scenarios.claim.small`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bursar.errors import BursarError
from bursar.sim.ordering import Ordering
from bursar.sim.search import Found
from bursar.world import World

STEPS_MAX = 3_000
"""A run that is not over by then goes in circles."""

Move = tuple[str, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Troubles:
    """How often each may happen in a run."""

    lost: int = 1
    dead: int = 1
    away: int = 1


class OrderedWorld(ABC):
    """What is searched: `begin` boots the nodes and returns when the search is to begin."""

    nodes: Sequence[str]
    periodic_ns: frozenset[int] = frozenset()
    asking_ns: frozenset[int] = frozenset()
    departures = 2
    troubles = Troubles()

    @abstractmethod
    async def begin(self, run: Ordering, worlds: dict[str, World]) -> None: ...

    @abstractmethod
    def events(self, run: Ordering) -> list[Move]:
        """What may happen beside the store: work ends, somebody asks for something."""

    @abstractmethod
    def tell(self, node: str) -> Hashable:
        """All that this node remembers, so that equal states are known as equal."""

    @abstractmethod
    def check(self, run: Ordering) -> None:
        """After every move. Raises AssertionError."""

    @abstractmethod
    def check_quiet(self, run: Ordering) -> None:
        """Where nothing is in flight, and nothing but `events` can happen."""

    @abstractmethod
    def audit(self, run: Ordering) -> None:
        """Where nothing can happen any more."""


class OrderSearch:
    """One search of one world, which `make` makes anew for each run."""

    def __init__(self, make: Callable[[], OrderedWorld], departures: int | None = None) -> None:
        self._make = make
        self._departures = make().departures if departures is None else departures
        self._seen: dict[Hashable, int] = {}
        self._moves = self._depth = self.runs = 0

    def run(self) -> Found:
        """Walk until a violation or the end."""
        wanted: list[tuple[int, ...]] = [()]
        while wanted:
            path = wanted.pop()
            self.runs += 1
            walk = Walk(self._make())
            try:
                wanted.extend(self._follow(walk, path))
            except (AssertionError, BursarError) as error:
                steps = tuple(f"{count:>4} {label}" for count, label in enumerate(walk.labels))
                return self._found(str(error), steps)
            finally:
                walk.close()
        return self._found(None, ())

    def _found(self, why: str | None, steps: tuple[str, ...]) -> Found:
        within = f"every order with up to {self._departures} departures from the plain one"
        return Found(len(self._seen), self._moves, self._depth, True, why, steps, within)

    def _follow(self, walk: Walk, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Take the moves of a path and then the plain ones; yields the paths that depart from there."""
        taken = list(path)
        left = self._departures - sum(1 for choice in path if choice)
        for choice in path:
            walk.take(choice)
        while moves := walk.moves():
            self._moves += 1
            self._depth = max(self._depth, len(taken))
            assert len(taken) < STEPS_MAX, f"{STEPS_MAX} moves and no end: it goes in circles"
            if left:
                state = walk.tell()
                if self._seen.get(state, -1) >= left:
                    return
                self._seen[state] = left
                yield from ((*taken, choice) for choice in range(1, len(moves)))
            walk.take(0)
            taken.append(0)
        walk.finish()


class Walk:
    """One run: what can happen next, and what did."""

    def __init__(self, world: OrderedWorld) -> None:
        self._world = world
        self._run = Ordering(world.periodic_ns, world.asking_ns)
        self._lost = self._dead = self._away = 0
        self._missed: list[str] = []
        self._ended: list[str] = []
        self.labels: list[str] = []
        self._begin()

    def _begin(self) -> None:
        run, worlds = self._run, {}
        for name in self._world.nodes:
            worlds[name] = run.open_world(name)
        begun = run.loop.create_task(self._world.begin(run, worlds))
        run.perform(_do_nothing)
        while not begun.done():
            run.perform(self._plain()[0][1])
        begun.result()

    def close(self) -> None:
        self._run.close()

    def take(self, choice: int) -> None:
        label, act = self.moves()[choice]
        self.labels.append(f"{self._run.loop.now_ns / 1e9:>10.3f} {label}")
        self._run.perform(act)
        self._world.check(self._run)

    def moves(self) -> list[Move]:
        """What can happen next, the plain move first."""
        flying = self._plain()
        if not flying:
            self._world.check_quiet(self._run)
        moves = [*flying, *self._world.events(self._run)]
        if self._run.asking and not self._run.timers:
            moves.append(("time passes", self._run.pass_time))
        return [*moves, *self._trouble()] if moves else []

    def finish(self) -> None:
        self._world.audit(self._run)

    def _plain(self) -> list[Move]:
        """What is in flight, and time."""
        run = self._run
        moves: list[Move] = [(f"{node} hears of {w.path}", self._hear(node, w)) for node, w in run.news]
        moves += [(f"{each.node}: {_show(each.what)}", _bind(run.do, each)) for each in run.heads()]
        moves += [(f"{node} learns that its session ended", _bind(self._learn, node)) for node in self._ended]
        moves += [(f"the session of {node} ends", _bind(self._miss, node)) for node in self._missed]
        if run.timers:
            moves.append(("time passes", run.pass_time))
        return moves

    def _trouble(self) -> list[Move]:
        run, allowed, moves = self._run, self._world.troubles, list[Move]()
        living = [node for node in self._world.nodes if not run.lives[node].dead]
        for each in run.heads() if self._lost < allowed.lost else ():
            told = f"{each.node}: {_show(each.what)}"
            moves.append((f"lost: {told}", _bind(self._lose, each, False)))
            if each.changes:
                moves.append((f"reply lost: {told}", _bind(self._lose, each, True)))
        if self._dead < allowed.dead:
            if len(living) > 1:
                moves += [(f"{node} dies", _bind(self._die, node)) for node in living]
            moves += [(f"the session of {node} is ended", _bind(self._end, node)) for node in living]
        if self._away < allowed.away:
            moves.append(("the store is away", self._leave))
        return moves

    def _hear(self, node: str, watch: Any) -> Callable[[], None]:
        def hear() -> None:
            self._run.news.remove((node, watch))
            watch.fire()

        return hear

    def _lose(self, request: Any, done: bool) -> None:
        self._lost += 1
        self._run.lose(request, done=done)

    def _die(self, node: str) -> None:
        self._dead += 1
        self._missed.append(node)
        self._run.kill(node)

    def _miss(self, node: str) -> None:
        self._missed.remove(node)
        self._run.end_session(node)

    def _end(self, node: str) -> None:
        self._dead += 1
        self._ended.append(node)
        self._run.end_session(node)

    def _learn(self, node: str) -> None:
        self._ended.remove(node)
        if not self._run.stores[node].is_over:
            self._run.stores[node].expire()

    def _leave(self) -> None:
        self._away += 1
        self._run.leave()

    def tell(self) -> Hashable:
        """The state: all that a run could go on from."""
        run = self._run
        nodes = tuple((path, node.data, node.version, node.owner) for path, node in run.tree.walk())
        asked = tuple((each.node, repr(each.what)) for each in run.requests)
        news = tuple((node, watch.path) for node, watch in run.news)
        stacks = tuple(sorted(map(_stack, asyncio.all_tasks(run.loop))))
        told = tuple(self._world.tell(node) for node in self._world.nodes)
        trouble = (self._lost, self._dead, self._away, tuple(self._missed), tuple(self._ended))
        times = (tuple(sorted(run.timers)), tuple(sorted(run.asking)), run.loop.now_ns)
        return hash((nodes, asked, news, stacks, told, trouble, times))


def _do_nothing() -> None:
    """Whoever is ready goes on."""


def _bind(act: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: act(*arguments)


def _show(what: Hashable) -> str:
    if not isinstance(what, tuple):
        return str(what)
    return ", ".join(part if isinstance(part, str) else _show_operation(part) for part in what)


def _show_operation(operation: Any) -> str:
    return f"{type(operation).__name__.lower()} {operation.path}"


def _stack(task: asyncio.Task[Any]) -> str:
    """Where a coroutine stands, and what it holds of plain values."""
    lines, coroutine = [task.get_name()], task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        plain = {
            name: value for name, value in frame.f_locals.items() if isinstance(value, (str, int, tuple))
        }
        lines.append(f"{frame.f_code.co_name}:{frame.f_lasti}:{plain}")
        coroutine = coroutine.cr_await  # type: ignore[union-attr]
    return "|".join(lines)
