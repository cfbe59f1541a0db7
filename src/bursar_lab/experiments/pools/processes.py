"""One pool, three programs: `bursar.connect` in each, one of them killed, and the one that leads too."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bursar.errors import BursarError
from bursar_lab.experiments.pools.bars import Findings, at_least, check, conclude
from bursar_lab.experiments.pools.program import COUNT, PERIODS_MAX
from bursar_lab.processes import Process, run_redis

CAPACITY = 20_000
RESERVATIONS = {"acme": 8_000, "globex": 4_000, "greedy": 0}
"""A second."""

PASSWORD = "a secret"
START_TIMEOUT_S = 60.0
POLL_S = 0.02

REST = 0.9
"""What is left over must be used up to this part at least, in a whole period with everybody alive."""


def three_programs(out: Path, quick: bool) -> Findings:
    """The words in shared memory, then in a Redis server with a password."""
    periods, period_s = (14, 0.5) if quick else (60, 1.0)
    rows: list[dict[str, Any]] = []
    bars = []
    for where in ("shm", "redis"):
        with open_words(where) as url, run(url, periods, period_s) as found:
            rows += [{"words": where, **row} for row in found.rows()]
            bars += found.bars(where)
    return conclude({"table": rows}, *bars)


@contextmanager
def open_words(where: str) -> Iterator[str]:
    if where == "shm":
        name = f"bursar-lab-{os.getpid()}"
        try:
            yield f"shm:///{name}"
        finally:
            Path(f"/dev/shm/bursar-{os.geteuid()}-{name}").unlink(missing_ok=True)
        return
    with (
        tempfile.TemporaryDirectory(prefix="bursar-pools-") as folder,
        run_redis(folder, "--requirepass", PASSWORD) as url,
    ):
        yield f"redis://:{quote(PASSWORD)}@{url.removeprefix('redis://')}/1"


class Program:
    """One process. What it was granted is counted in a mapped file, which outlives it."""

    def __init__(self, folder: Path, tenant: str, life: int) -> None:
        self.tenant = tenant
        self._counts = folder / f"{tenant}.{life}"
        self._counts.write_bytes(bytes(COUNT.size * (PERIODS_MAX + 1)))
        module, policy = "bursar_lab.experiments.pools.program", str(folder / "policy.toml")
        command = [sys.executable, "-m", module, policy, tenant, str(self._counts)]
        self._process = Process(command, folder / "log")

    @property
    def leads(self) -> bool:
        """As it said last."""
        return self._read()[0] == 1

    @property
    def spent(self) -> dict[int, int]:
        return {period: tokens for period, tokens in enumerate(self._read()) if period and tokens}

    def _read(self) -> tuple[int, ...]:
        return tuple(each[0] for each in struct.iter_unpack(COUNT.format, self._counts.read_bytes()))

    def check(self) -> None:
        if not self._process.running:
            raise self._process.fail(f"the program of {self.tenant} did not run on")

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.stop()


class Run:
    """All lives of three programs, and in which periods each tenant had one throughout."""

    def __init__(self, folder: Path, period_s: float) -> None:
        self._folder = folder
        self._period_s = period_s
        self.capacity = int(CAPACITY * period_s)
        self._lives: list[Program] = []
        self._interrupted: dict[str, set[int]] = {tenant: set() for tenant in RESERVATIONS}
        self.kills: list[tuple[str, int]] = []
        self.last = 0

    def start(self, tenant: str) -> Program:
        self._lives.append(Program(self._folder, tenant, len(self._lives)))
        return self._lives[-1]

    def period(self) -> int:
        """The last one in which anybody was granted anything."""
        return max((max(life.spent, default=0) for life in self._lives), default=0)

    def await_period(self, period: int, running: list[Program]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S + 3 * period * self._period_s
        while self.period() < period:
            for program in running:
                program.check()
            if time.monotonic() > deadline:
                raise BursarError(f"period {period} did not begin")
            time.sleep(POLL_S)

    def replace(self, running: list[Program], victim: Program) -> None:
        """kill -9, and another in its place. The tenant counts as gone until the new one was granted
        something in a period, and that period was over."""
        victim.kill()
        self.kills.append((victim.tenant, self.period()))
        running.remove(victim)
        running.append(self.start(victim.tenant))
        before = self.period()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not running[-1].spent:
            if time.monotonic() > deadline:
                raise BursarError(f"the new program of {victim.tenant} was granted nothing")
            running[-1].check()
            time.sleep(POLL_S)
        self._interrupted[victim.tenant].update(range(before, min(running[-1].spent) + 1))
        self.await_period(self.period() + 2, running)

    def spent(self, tenant: str | None = None) -> dict[int, int]:
        """Tokens granted in each period, to a tenant or in all."""
        total: dict[int, int] = {}
        for life in self._lives:
            for period, tokens in life.spent.items() if tenant in (None, life.tenant) else ():
                total[period] = total.get(period, 0) + tokens
        return total

    def whole(self, tenant: str) -> list[int]:
        """Periods in which its program and a monitor lived throughout."""
        killed_in = {period for _, period in self.kills}
        first = min(period for period in self.spent(tenant)) + 1
        gone = self._interrupted[tenant] | killed_in
        return [period for period in range(first, self.last) if period not in gone]

    def met(self, tenant: str) -> list[int]:
        spent, due = self.spent(tenant), int(RESERVATIONS[tenant] * self._period_s)
        return [period for period in self.whole(tenant) if spent.get(period, 0) >= due]

    def rest(self) -> float:
        """The part of the capacity that was used in periods in which everybody lived."""
        spent = self.spent()
        periods = set.intersection(*(set(self.whole(tenant)) for tenant in RESERVATIONS))
        return sum(spent.get(p, 0) for p in periods) / (len(periods) * self.capacity)

    def rows(self) -> list[dict[str, Any]]:
        promised = [tenant for tenant, rate in RESERVATIONS.items() if rate]
        return [
            *({"what": f"killed in period {period}", "value": tenant} for tenant, period in self.kills),
            {"what": "periods", "value": self.last},
            {"what": "capacity of a period", "value": self.capacity},
            {"what": "most granted in a period", "value": max(self.spent().values())},
            *(
                {"what": f"met the reservation: {tenant}", "value": len(self.met(tenant))}
                for tenant in promised
            ),
            *({"what": f"whole periods: {tenant}", "value": len(self.whole(tenant))} for tenant in promised),
            {"what": "of the capacity, with all alive", "value": round(self.rest(), 3)},
        ]

    def bars(self, where: str) -> list[dict[str, Any]]:
        most = max(self.spent().values())
        missed = [
            f"{tenant} in {period}: {self.spent(tenant).get(period, 0)}"
            for tenant in RESERVATIONS
            for period in self.whole(tenant)
            if period not in self.met(tenant)
        ]
        return [
            check(
                f"{where}: no period grants more than its capacity", most, most <= CAPACITY * self._period_s
            ),
            check(f"{where}: reservations are met in whole periods", ", ".join(missed) or "all", not missed),
            at_least(f"{where}: the greedy one gets the rest", self.rest(), REST),
        ]

    def stop(self) -> None:
        for life in self._lives:
            life.stop()


@contextmanager
def run(url: str, periods: int, period_s: float) -> Iterator[Run]:
    """A third of the periods in peace, then one that does not lead is killed, then the one that leads."""
    with tempfile.TemporaryDirectory(prefix="bursar-pools-") as name:
        folder = Path(name)
        (folder / "policy.toml").write_text(_write_policy(url, period_s))
        found = Run(folder, period_s)
        try:
            running = [found.start(tenant) for tenant in RESERVATIONS]
            _await_all(found, running)
            first = found.period()
            found.await_period(first + periods // 3, running)
            found.replace(running, next(each for each in reversed(running) if not each.leads))
            found.await_period(first + 2 * periods // 3, running)
            found.replace(running, next(each for each in running if each.leads))
            found.await_period(first + periods, running)
            found.last = found.period()
        finally:
            found.stop()
        yield found


def _await_all(found: Run, running: list[Program]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not all(program.spent for program in running):
        if time.monotonic() > deadline:
            raise BursarError("a program was granted nothing")
        for program in running:
            program.check()
        time.sleep(POLL_S)


def _write_policy(url: str, period_s: float) -> str:
    tenants = "".join(f'{name} = {{ reservation = "{rate}/s" }}\n' for name, rate in RESERVATIONS.items())
    return (
        f'[resource.records]\nkind = "pool"\ncapacity = "{CAPACITY}/s"\nwords = "{url}"\n'
        f'period = "{round(period_s * 1000)}ms"\n[resource.records.tenant]\n{tenants}'
    )
