"""The experiments on this machine: real processes over records in shared memory.

What the clients contend for is processors and memory bandwidth, which the operating system shares
evenly, as the paper's network card did. Every value (a client alone, all together, the deviation)
is measured here first. Two processors carry four clients; the monitor takes a few per cent.
"""

from __future__ import annotations

import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bursar.errors import BursarError
from bursar.experiments.pools.figures import draw_clients, draw_totals
from bursar.experiments.pools.worker import Config, Counts, audit_word
from bursar.integrations.records.store import RecordStore
from bursar.runtime.clock import BootClock
from bursar.runtime.words import SharedWords
from bursar.world import MILLISECOND_NS, SECOND_NS

RECORDS = 20_000
CLIENTS = 4
START_NS = 300 * MILLISECOND_NS
GRACE_S = 60.0
WARM_UP = 2
ZIPF = 0.6
MET_WITH_KILLS = 0.95
"""Part of the periods in which clients that were left alone must have their reservation, while
processes are killed and started beside them on the same few processors."""

Findings = dict[str, Any]


@dataclass(slots=True)
class Place:
    """Where a run keeps its files."""

    root: pathlib.Path
    number: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def config(self, role: Any, **options: Any) -> Config:
        return Config(role=role, store=str(self.root / "records"), words=str(self.root / "words"), **options)

    def start(self, config: Config) -> subprocess.Popen[bytes]:
        """Start a process and wait until it is ready."""
        self.number += 1
        path = self.root / f"{self.number}.json"
        path.write_bytes(msgspec.json.encode(config))
        process = subprocess.Popen(
            [sys.executable, "-m", "bursar.experiments.pools.worker", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.started.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise BursarError(f"a {config.role} did not start: it ended with {process.wait(GRACE_S)}")
        return process

    def forget_words(self) -> None:
        (self.root / "words").unlink(missing_ok=True)


@contextmanager
def open_place() -> Any:
    """A directory in shared memory with a store of records; nothing of it stays behind."""
    base = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bursar-pool-", dir=base) as folder:
        place = Place(pathlib.Path(folder))
        store = RecordStore.create(place.root / "records", RECORDS)
        for index in range(RECORDS):
            store.write(index, index.to_bytes(8, "little"))
        store.close()
        try:
            yield place
        finally:
            for process in place.started:
                if process.poll() is None:
                    process.kill()
                process.wait(GRACE_S)


def begin_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    at = BootClock().now() + START_NS
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{at}\n".encode())
        process.stdin.flush()


def collect(process: subprocess.Popen[bytes], seconds: float) -> Counts:
    try:
        output, _ = process.communicate(timeout=seconds + GRACE_S)
    except subprocess.TimeoutExpired as error:
        raise BursarError(f"a process of the run did not end {GRACE_S:.0f} s after its time") from error
    if process.returncode != 0:
        raise BursarError(f"a process of the run ended with {process.returncode}")
    return msgspec.json.decode(output.splitlines()[-1], type=Counts)


def run_bare(place: Place, clients: int, seconds: float, **options: Any) -> list[float]:
    """I/Os a second of each client, without tokens."""
    configs = [
        place.config("client", tokens=False, seconds=seconds, seed=k, **options) for k in range(clients)
    ]
    processes = [place.start(config) for config in configs]
    begin_all(processes)
    return [sum(collect(process, seconds).done.values()) / seconds for process in processes]


def run_two_sided(place: Place, clients: int, seconds: float) -> list[float]:
    socket = str(place.root / f"socket-{place.number}")
    server = place.start(place.config("server", socket=socket, seconds=seconds + 2))
    processes = [
        place.start(place.config("client", tokens=False, seconds=seconds, seed=k, socket=socket))
        for k in range(clients)
    ]
    begin_all([server, *processes])
    rates = [sum(collect(process, seconds).done.values()) / seconds for process in processes]
    collect(server, seconds)
    return rates


@dataclass(frozen=True, slots=True)
class Profile:
    """What this machine does, in I/Os a second: a client alone, all together, and how far the
    latter varies from second to second."""

    client: float
    capacity: float
    sigma: float


def measure_profile(place: Place, seconds: float, *, many: bool = True, clients: int = CLIENTS) -> Profile:
    alone = run_bare(place, 1, seconds, many=many)[0]
    configs = [
        place.config("client", tokens=False, seconds=seconds, seed=k, many=many) for k in range(clients)
    ]
    processes = [place.start(config) for config in configs]
    begin_all(processes)
    totals: dict[int, int] = {}
    for process in processes:
        for period, done in collect(process, seconds).done.items():
            totals[period] = totals.get(period, 0) + done
    whole = [totals[period] for period in sorted(totals)][: int(seconds)]
    sigma = statistics.stdev(whole) if len(whole) > 1 else 0.0
    return Profile(alone, statistics.mean(whole), sigma)


@dataclass(slots=True)
class Outcome:
    """done[client][period] over the periods that all saw whole; what the monitor noted."""

    done: Any
    monitor: Counts

    def met(self, reservations: Sequence[int]) -> float:
        return float((self.done >= np.array(reservations)[:, None] * 0.999).mean())

    def total(self) -> float:
        return float(self.done.sum(axis=0).mean())


def run_tokens(
    place: Place,
    reservations: Sequence[int],
    seconds: float,
    profile: Profile,
    *,
    many: bool = True,
    paced: bool = True,
    demand: Sequence[int | None] | None = None,
    **options: Any,
) -> Outcome:
    """Clients with tokens for so long; whole periods after the warm-up."""
    place.forget_words()
    names = [f"C{k + 1}" for k in range(len(reservations))]
    monitor = place.start(
        place.config(
            "monitor",
            seconds=seconds + 1,
            reservations=dict(zip(names, reservations, strict=True)),
            capacity=int(profile.capacity),
            client_capacity=None,
            **options,
        )
    )
    wanted = demand or [None] * len(names)
    processes = [
        place.start(
            place.config(
                "client", tenant=name, seconds=seconds, many=many, paced=paced, demand=wanted[k], seed=k
            )
        )
        for k, name in enumerate(names)
    ]
    begin_all([monitor, *processes])
    counts = [collect(process, seconds) for process in processes]
    noted = collect(monitor, seconds)
    common = sorted(set.intersection(*(set(each.done) for each in counts)))
    whole = [period for period in common if 1 + WARM_UP <= period < max(common)]
    if not whole:
        raise BursarError("no whole period was seen by all clients: run for longer")
    done = np.array([[each.done[period] for period in whole] for each in counts])
    return Outcome(done, noted)


def zipf(total: float, clients: int = CLIENTS) -> list[int]:
    weights = np.array([1 / (k + 1) ** ZIPF for k in range(clients)])
    return [int(share) for share in total * weights / weights.sum()]


# -- the experiments


def one(out: pathlib.Path, quick: bool) -> Findings:
    """One-sided against two-sided; a client alone against all (figures 6 and 7)."""
    seconds = 1.0 if quick else 5.0
    rows: list[dict[str, Any]] = []
    with open_place() as place:
        for clients in (1, 2, CLIENTS):
            one_sided = sum(run_bare(place, clients, seconds))
            two_sided = sum(run_two_sided(place, clients, seconds))
            rows.append(
                {
                    "clients": clients,
                    "one-sided /s": round(one_sided),
                    "two-sided /s": round(two_sided),
                    "ratio": one_sided / two_sided,
                    "paper": {1: "400 / 327", 2: "", CLIENTS: "1570 / 430 = 3.65"}[clients],
                }
            )
    bars = {
        f"{row['clients']} clients": {"one-sided": row["one-sided /s"], "two-sided": row["two-sided /s"]}
        for row in rows
    }
    figure = draw_totals(out / "pools-live-1.png", bars, "I/Os a second")
    return {"table": rows, "figures": [figure], "ok": rows[-1]["ratio"] > 1}


def two_a(out: pathlib.Path, quick: bool) -> Findings:
    """90 % reserved, Zipf: reservations met, and the cost of tokens in alternating pairs."""
    seconds, pairs, length = (6.0, 1, 1.0) if quick else (24.0, 15, 3.0)
    with open_place() as place:
        profile = measure_profile(place, 2.0 if quick else 6.0)
        # A machine that others use too is slower now and then: promise a little less than its mean.
        capacity = profile.capacity - profile.sigma
        reservations = zipf(0.9 * capacity)
        bare = run_bare(place, CLIENTS, seconds / 2)
        run = run_tokens(place, reservations, seconds, Profile(profile.client, capacity, profile.sigma))
        costs = {
            "read_many": measure_cost(place, pairs, length, many=True),
            "read": measure_cost(place, pairs, length, many=False),
        }
    rows: list[dict[str, Any]] = []
    for k, reservation in enumerate(reservations):
        rows.append(
            {
                "client": f"C{k + 1}",
                "reservation": reservation,
                "bare": round(bare[k]),
                "with tokens": round(float(run.done[k].mean())),
                "met": float((run.done[k] >= reservation * 0.999).mean()),
                "bare meets": bare[k] >= reservation,
            }
        )
    bars = {
        "reservation": [row["reservation"] / 1000 for row in rows],
        "bare": [row["bare"] / 1000 for row in rows],
        "with tokens": [row["with tokens"] / 1000 for row in rows],
    }
    figure = draw_clients(out / "pools-live-2a.png", {"90 % reserved, Zipf": bars})
    met = run.met(reservations)
    return {
        "table": [
            *rows,
            {"client": "all", "met": met, "with tokens": round(run.total())},
            *_cost_rows(costs),
        ],
        "profile": {"client": profile.client, "capacity": profile.capacity, "sigma": profile.sigma},
        "periods": int(run.done.shape[1]),
        "met": met,
        "of bare": costs,
        "figures": [figure],
        "ok": bool(met >= 0.99 and costs["read_many"] >= 0.97 and costs["read"] >= 0.8),
    }


def _cost_rows(costs: dict[str, float]) -> list[dict[str, Any]]:
    return [{"client": f"{call} of bare", "with tokens": value} for call, value in costs.items()]


def measure_cost(place: Place, pairs: int, seconds: float, *, many: bool) -> float:
    """Throughput with tokens that never run out, as a part of bare: the median of alternating
    pairs of runs of one client."""
    ratios = []
    for pair in range(pairs):
        runs = {}
        for tokens in (False, True) if pair % 2 else (True, False):
            runs[tokens] = _run_alone(place, seconds, many, tokens)
        ratios.append(runs[True] / runs[False])
    return statistics.median(ratios)


def _run_alone(place: Place, seconds: float, many: bool, tokens: bool) -> float:
    if not tokens:
        return run_bare(place, 1, seconds, many=many)[0]
    place.forget_words()
    plenty = 1 << 27
    monitor = place.start(
        place.config("monitor", seconds=seconds + 1, reservations={"C1": plenty}, capacity=2 * plenty)
    )
    client = place.start(place.config("client", tenant="C1", seconds=seconds, many=many, paced=False))
    begin_all([monitor, client])
    done = sum(collect(client, seconds).done.values())
    collect(monitor, seconds)
    return done / seconds


def two_b(out: pathlib.Path, quick: bool) -> Findings:
    """C1 and C2 want half of what they reserved (figures 10 and 11)."""
    seconds = 6.0 if quick else 15.0
    with open_place() as place:
        profile = measure_profile(place, 2.0 if quick else 6.0)
        reservations = zipf(0.9 * profile.capacity)
        demand: list[int | None] = [reservations[0] // 2, reservations[1] // 2, None, None]
        bare_done = _run_bare_demand(place, demand, seconds)
        converted = run_tokens(place, reservations, seconds, profile, demand=demand, paced=False)
        basic = run_tokens(place, reservations, seconds, profile, demand=demand, paced=False, convert=False)
    rows = [
        {"run": "bare", "total": round(bare_done), "of bare": 1.0},
        {"run": "conversion", "total": round(converted.total()), "of bare": converted.total() / bare_done},
        {"run": "no conversion", "total": round(basic.total()), "of bare": basic.total() / bare_done},
    ]
    bars = {"this machine": {str(row["run"]): float(row["total"]) / 1000 for row in rows}}  # type: ignore[arg-type]
    figure = draw_totals(out / "pools-live-2b.png", bars, "K I/Os a period")
    ok = converted.total() >= 0.95 * bare_done and basic.total() < 0.95 * converted.total()
    return {"table": rows, "figures": [figure], "ok": bool(ok)}


def _run_bare_demand(place: Place, demand: Sequence[int | None], seconds: float) -> float:
    processes = [
        place.start(place.config("client", tokens=False, seconds=seconds, seed=k, demand=wanted))
        for k, wanted in enumerate(demand)
    ]
    begin_all(processes)
    totals = [collect(process, seconds).done for process in processes]
    periods = range(1, int(seconds) - 1)
    return statistics.mean(sum(each.get(period, 0) for each in totals) for period in periods)


def kill(out: pathlib.Path, quick: bool) -> Findings:
    """kill -9 of clients and of the monitor at random: no period issues more than its estimate, and
    clients that live keep their reservation in periods with a monitor."""
    seconds = 8.0 if quick else 60.0
    return run_kills(seconds, seed=7)


def run_kills(seconds: float, seed: int, period_ns: int = 500 * MILLISECOND_NS) -> Findings:
    """The victims are C3, C4 and the monitor, which has a standby; C1 and C2 live throughout."""
    random = np.random.default_rng(seed)
    with open_place() as place:
        profile = measure_profile(place, 2.0)
        capacity = int(0.5 * profile.capacity * period_ns / SECOND_NS)
        shares = zipf(0.8 * capacity)
        reservations = {f"C{k + 1}": share for k, share in enumerate(shares)}
        place.forget_words()
        crew = _Crew(place, reservations, capacity, seconds, period_ns)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(float(random.uniform(0.1, 0.6)))
            crew.kill(str(random.choice(["C3", "C4", "monitor", "standby"])))
        return crew.judge()


class _Crew:
    """The processes of a run with kills: every one that was killed is started again."""

    def __init__(
        self, place: Place, reservations: dict[str, int], capacity: int, seconds: float, period_ns: int
    ) -> None:
        self._place = place
        self._reservations = reservations
        self._capacity = capacity
        self._period_ns = period_ns
        self._until = BootClock().now() + int((seconds + 8) * SECOND_NS)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starting: list[threading.Thread] = []
        self._failed: list[str] = []
        self.killed = 0
        for name in ("monitor", "standby", *reservations):
            self._start(name)

    def _start(self, name: str) -> None:
        seconds = (self._until - BootClock().now()) / SECOND_NS
        common: dict[str, Any] = {"seconds": seconds, "period_ns": self._period_ns}
        if name in self._reservations:
            config = self._place.config("client", tenant=name, paced=True, audit=True, **common)
        else:
            config = self._place.config(
                "monitor", reservations=self._reservations, capacity=self._capacity, **common
            )
        process = self._place.start(config)
        begin_all([process])
        self._running[name] = process

    def kill(self, name: str) -> None:
        """Kill a process, if it runs, and start another in its place without waiting for it."""
        process = self._running.pop(name, None)
        if process is None:
            return
        os.kill(process.pid, signal.SIGKILL)
        process.wait(GRACE_S)
        self.killed += 1
        thread = threading.Thread(target=self._restart, args=(name,))
        self._starting.append(thread)
        thread.start()

    def _restart(self, name: str) -> None:
        try:
            self._start(name)
        except BursarError as error:
            self._failed.append(f"{name}: {error}")

    def judge(self) -> Findings:
        for thread in self._starting:
            thread.join(GRACE_S)
        if self._failed:
            raise BursarError(f"a process could not be started again: {self._failed[0]}")
        left_s = (self._until - BootClock().now()) / SECOND_NS
        counts = {name: collect(process, left_s + 5) for name, process in self._running.items()}
        words = SharedWords(self._place.root / "words")
        last = max(max(counts[name].done, default=0) for name in ("C1", "C2"))
        spent = {period: words.read(audit_word(period)) for period in range(1, last + 1)}
        words.close()
        alive = {name: counts[name].done for name in ("C1", "C2")}
        periods = sorted(set(alive["C1"]) & set(alive["C2"]))[2:-2]
        met = [
            alive[name].get(period, 0) >= 0.99 * self._reservations[name]
            for name in alive
            for period in periods
        ]
        worst = max(spent.values(), default=0)
        rows = [
            {"what": "kills", "value": self.killed},
            {"what": "periods", "value": len(periods)},
            {"what": "capacity of a period", "value": self._capacity},
            {"what": "most spent in a period", "value": worst},
            {"what": "reservations of the living met", "value": sum(met) / max(1, len(met))},
        ]
        safe = 0 < worst <= self._capacity
        part = sum(met) / max(1, len(met))
        return {
            "table": rows,
            "safe": safe,
            "met": part,
            "killed": self.killed,
            "ok": safe and part >= MET_WITH_KILLS,
        }
