"""One process of a live run: a server with its tenants' load, or a controller.

`main(["server", CONFIG])` or `main(["controller", CONFIG])` is all that the process does. It says
"ready ADDRESS" on standard output, begins at the boot time that it is given on standard input, and
ends with SIGTERM, after it has written its report.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bursar.errors import BursarError
from bursar.rates.controller import ControllerBook
from bursar.rates.courier import ControllerCourier, ServerCourier
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.messages import UNBOUNDED, Allowance, Grant
from bursar.rates.placement import Placement
from bursar.rates.scheduler import Scheduler, compile_kernels
from bursar.rates.server import ServerBook
from bursar.rates.views import Picture, Targets
from bursar.runtime import logs
from bursar.runtime.loops import new_event_loop
from bursar.runtime.world import LiveWorld, open_world
from bursar.world import SECOND_NS, Clock
from bursar_lab.experiments.rates_live.ledger import Ledger
from bursar_lab.experiments.rates_live.load import FileRequests, Load, MemcachedRequests, Requests
from bursar_lab.experiments.rates_live.plan import Plan

RESOURCE = "live"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told. `target`: the address of its memcached, or the path of its file."""

    name: str
    folder: str
    ledgers: str
    plan: Plan
    target: str = ""
    peers: Mapping[str, str] = {}


class Round(msgspec.Struct, frozen=True, array_like=True):
    """One placement: grants with sequences above `after`, up to the next round's."""

    epoch: int
    after: int
    reported_at: int
    began_at: int
    ended_at: int
    period: int


class Opening(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    period: int
    at: int


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """`grants`: (epoch, sequence, when it arrived)."""

    life: str
    grants: list[tuple[int, int, int]]
    cpu_s: float
    done: int
    dropped: int


# -- a server ---------------------------------------------------------------------------------


async def run_server(config: Config) -> None:
    plan = config.plan
    folder = Path(config.folder)
    world = await open_world(
        config.name, state=folder / config.name, listen="127.0.0.1:0", store=f"sqlite://{folder}/store.db"
    )
    life = f"{config.name}.{world.incarnation}"
    ledger = Ledger(Path(config.ledgers), plan, life, "w+")
    chance = random.Random(f"{plan.seed}.{config.name}")
    requests: Requests = (
        MemcachedRequests(plan, config.target, chance)
        if plan.backend == "memcached"
        else FileRequests(config.target, chance)
    )
    await requests.prepare()
    book = ServerBook(config.name, world.incarnation, plan.tenants, Scheduler([1] * len(plan.terms)))
    book.set_terms(plan.make_terms().get, "")
    clock = world.clock
    queues = Dispatcher(
        world,
        book,
        period_ns=plan.period_ns,
        capacity=plan.rate,
        dispatched=lambda tenant, period, tokens: ledger.count(clock.now(), tenant, period, tokens),
    )
    queues.start()
    grants: list[tuple[int, int, int]] = []

    def take_note() -> None:
        if not grants or grants[-1][:2] != (book.epoch, book.sequence):
            grants.append((book.epoch, book.sequence, clock.now()))
        queues.pump()

    ServerCourier(world, RESOURCE, book, take_note).start()
    load = Load(world, plan, config.name, queues, requests)
    began_at = await _say_ready(world)
    ledger.began_at = began_at
    if not plan.controlled:
        world.spawn(_run_free(world, plan, queues, began_at), "free")
    load.start(began_at)
    await _wait_for_the_end(world)
    report = ServerReport(life=life, grants=grants, cpu_s=_cpu_s(), done=load.done, dropped=load.dropped)
    (folder / f"{life}.report").write_bytes(msgspec.json.encode(report))
    await world.close()
    await requests.close()


async def _run_free(world: LiveWorld, plan: Plan, queues: Dispatcher, began_at: int) -> None:
    """Without a controller: everyone may have everything, period after period, in turn."""
    rows = tuple(Allowance(tenant, UNBOUNDED, 0) for tenant in plan.terms)
    period = 0
    while True:
        period += 1
        opens_at = began_at + (period - 1) * plan.period_ns
        await world.clock.sleep(opens_at - world.clock.now())
        left_ns = opens_at + plan.period_ns - opens_at
        grant = Grant(1, period, world.incarnation, period, opens_at, left_ns, rows)
        queues.book.receive(world.clock.now(), "", grant)
        queues.pump()


# -- a controller -----------------------------------------------------------------------------


class TimedPlacement:
    """The placement, with a line for each round in a file that outlives the process."""

    def __init__(self, place: Placement, clock: Clock, path: Path, recent_ns: int) -> None:
        self._place = place
        self._clock = clock
        self._recent_ns = recent_ns
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._period = 0
        self.book: ControllerBook | None = None

    def __call__(self, picture: Picture) -> Targets:
        began_at = self._clock.now()
        targets = self._place(picture)
        ended_at = self._clock.now()
        assert self.book is not None, "told before it leads"
        epoch = self.book.state.epoch
        recent = [view for view in picture.servers if view.heard_at > began_at - self._recent_ns]
        opens = picture.period != self._period
        if opens:
            self._period = picture.period
            self._write(Opening(epoch, picture.period, picture.now))
        # A period opens with the reports that there are: its first tokens answer none of them.
        first = began_at if opens else min((view.report.sent_at for view in recent), default=began_at)
        self._write(Round(epoch, self.book.sent, first, began_at, ended_at, picture.period))
        return targets

    def _write(self, line: Round | Opening) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


async def run_controller(config: Config) -> None:
    plan = config.plan
    folder = Path(config.folder)
    world = await open_world(
        config.name,
        state=folder / config.name,
        peers=config.peers,
        store=f"sqlite://{folder}/store.db",
        session_timeout_ns=int(plan.session_timeout_s * SECOND_NS),
    )
    place = TimedPlacement(
        Placement(dict.fromkeys(plan.servers, plan.rate)),
        world.clock,
        folder / f"{config.name}.{world.incarnation}.rounds",
        plan.interval_ns // 2,
    )
    book = ControllerBook(
        f"{config.name}.{world.incarnation}",
        plan.servers,
        plan.make_terms(),
        place,
        period_ns=plan.period_ns,
        interval_ns=plan.interval_ns,
        drift_ppm=plan.drift_ppm,
        adaptive=plan.adaptive,
    )
    place.book = book
    _warm_up(plan)
    ControllerCourier(world, RESOURCE, book).start()
    await _say_ready(world)
    await _wait_for_the_end(world)
    (folder / f"{config.name}.cpu").write_text(str(_cpu_s()))
    await world.close()


def _warm_up(plan: Plan) -> None:
    """Compile (or load) what a placement calls before the first period waits for it."""
    from bursar.rates.allowances import allocate_allowances

    shape = (len(plan.terms), len(plan.servers))
    ones = [[1] * shape[1]] * shape[0]
    allocate_allowances(ones, [1] * shape[1], [1] * shape[0], [2] * shape[0])


# -- both -------------------------------------------------------------------------------------


async def _say_ready(world: LiveWorld) -> int:
    """The boot time to begin at, as the parent says."""
    print(f"ready {world.listening or '-'}", flush=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        raise BursarError("the parent process went away before the start")
    return int(line)


async def _wait_for_the_end(world: LiveWorld) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    world.failure.add_done_callback(lambda _: ended.set())
    await ended.wait()
    if world.failure.done():
        raise BursarError(f"{world.name} failed: {world.failure.result()!r}")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str]) -> None:
    logs.configure("json", "warning")
    role, path = arguments
    config = msgspec.json.decode(Path(path).read_bytes(), type=Config)
    compile_kernels()
    run: Any = {"server": run_server, "controller": run_controller}[role]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run(config))
