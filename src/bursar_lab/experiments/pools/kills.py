"""kill -9 of clients and of the monitor, at random: what a period spends, and what the living get."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import Any

import numpy as np

from bursar.errors import BursarError
from bursar.profile.processes import LATE_S, Process, await_ready, begin_all
from bursar.runtime.clock import BootClock
from bursar.runtime.words import SharedWords
from bursar.world import SECOND_NS
from bursar_lab.experiments.pools.bars import at_least, check, conclude
from bursar_lab.experiments.pools.config import audit_word
from bursar_lab.experiments.pools.place import Place, collect, open_place

LIVING = ("C1", "C2")
VICTIMS = ("C3", "C4", "monitor", "standby")
TAIL_S = 2.0
"""So long everything runs on after the last kill."""

MET_WITH_KILLS = 0.99
"""Part of the periods in which clients that were left alone must have their reservation, while
processes are killed and started beside them on the same few processors."""


def run_kills(
    seconds: float, seed: int, reservations: dict[str, int], capacity: int, period_ns: int
) -> dict[str, Any]:
    """C1 and C2 live throughout; C3, C4, the monitor and its standby are killed and started again."""
    random = np.random.default_rng(seed)
    with open_place() as place:
        crew = Crew(place, reservations, capacity, seconds, period_ns)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(float(random.uniform(0.1, 0.6)))
            crew.kill(str(random.choice(VICTIMS)))
        return crew.judge()


class Crew:
    """The processes of a run with kills. Each victim has a spare that is ready, and begins when it is
    killed; one without a spare is spared."""

    def __init__(
        self, place: Place, reservations: dict[str, int], capacity: int, seconds: float, period_ns: int
    ) -> None:
        self._place = place
        self._reservations = reservations
        self._capacity = capacity
        self._seconds = seconds + TAIL_S
        self._period_ns = period_ns
        self._starting: list[threading.Thread] = []
        self._failed: list[str] = []
        self.killed: dict[str, int] = dict.fromkeys(VICTIMS, 0)
        self._running = {name: self._start(name) for name in (*LIVING, *VICTIMS)}
        self._spares = {name: self._start(name) for name in VICTIMS}
        for process in (*self._running.values(), *self._spares.values()):
            await_ready(process)
        self._until = BootClock().now() + int(self._seconds * SECOND_NS)
        begin_all(list(self._running.values()), until_ns=self._until)

    def _start(self, name: str) -> Process:
        common: dict[str, Any] = {"seconds": self._seconds, "period_ns": self._period_ns}
        if name in self._reservations:
            return self._place.start(self._place.config("client", tenant=name, audit=True, **common))
        return self._place.start(
            self._place.config("monitor", reservations=self._reservations, capacity=self._capacity, **common)
        )

    def kill(self, name: str) -> None:
        spare = self._spares.pop(name, None)
        if spare is None:
            return
        victim, self._running[name] = self._running[name], spare
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(LATE_S)
        self.killed[name] += 1
        begin_all([spare], wait_ns=0, until_ns=self._until)
        thread = threading.Thread(target=self._prepare, args=(name,))
        self._starting.append(thread)
        thread.start()

    def _prepare(self, name: str) -> None:
        try:
            spare = self._start(name)
            await_ready(spare)
        except (BursarError, OSError, subprocess.TimeoutExpired) as error:
            self._failed.append(f"{name}: {error}")
        else:
            self._spares[name] = spare

    def judge(self) -> dict[str, Any]:
        for thread in self._starting:
            thread.join(LATE_S)
        if self._failed:
            raise BursarError(f"a process could not be started again: {self._failed[0]}")
        left_s = max(0.0, (self._until - BootClock().now()) / SECOND_NS)
        counts = {name: collect(process, left_s) for name, process in self._running.items()}
        alive = {name: counts[name].done for name in LIVING}
        spent = self._spent(max(max(done, default=0) for done in alive.values()))
        periods = sorted(set(alive["C1"]) & set(alive["C2"]))[2:-1]
        met = [
            alive[name].get(period, 0) >= self._reservations[name] for name in LIVING for period in periods
        ]
        part = sum(met) / max(1, len(met))
        worst = max(spent.values(), default=0)
        table = [
            *({"what": f"kills of {name}", "value": count} for name, count in self.killed.items()),
            {"what": "periods opened", "value": len(periods)},
            {"what": "capacity of a period", "value": self._capacity},
            {"what": "most spent in a period", "value": worst},
            {"what": "of the capacity", "value": worst / self._capacity},
            {"what": "reservations of the living met", "value": part},
        ]
        return conclude(
            {"table": table, "killed": sum(self.killed.values()), "safe": 0 < worst <= self._capacity},
            check("no period spends more than its capacity", worst, 0 < worst <= self._capacity),
            at_least("reservations of the living met", part, MET_WITH_KILLS),
        )

    def _spent(self, last: int) -> dict[int, int]:
        """What all clients, dead or alive, spent in each period: they count it in shared words before
        each read."""
        words = SharedWords(self._place.root / "words")
        try:
            return {period: words.read(audit_word(period)) for period in range(1, last + 1)}
        finally:
            words.close()
