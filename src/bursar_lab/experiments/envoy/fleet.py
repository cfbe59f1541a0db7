"""One limit for three real Envoys and clients of the API, at two nodes: `bursar experiment envoy-fleet`.

The load moves from Envoy to Envoy and to the API; an Envoy is cut off; a node is killed and started again;
another limit is applied. What is counted is what Envoys answered with 200 and what clients were granted.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bursar
from bursar.errors import BursarError, Refused, Unknown
from bursar.policy import RatePolicy, parse
from bursar.runtime.loops import new_event_loop
from bursar_lab.experiments.envoy.gate import Gate
from bursar_lab.experiments.envoy.load import Load
from bursar_lab.experiments.envoy.processes import Bursar, Envoy, find_ports, start_envoy

LIMIT, RAISED = 100, 150
SETTLED_PART = 0.95
SETTLING_S = 18
PHASE_S = 27
WINDOW_S = 5
APPLY_TIMEOUT_S = 60
ENVOYS = ("a", "b", "c")
NODES = ("x", "y")
TENANT = "acme"
OVERLAP = 1.3
"""The limit, and in any five seconds: a burst at each Envoy (a tenth of the limit each)."""

POLICY = """
[resource.api]
kind = "rate"
servers = {{ x = "1k/s", y = "1k/s" }}
without_bursar = "keep"
[resource.api.tenant]
acme = {{ limit = "{limit}/s" }}
{more}
"""


@dataclass(frozen=True)
class Phase:
    """`api`: what clients ask for a second. `bound`: how many times the limit may be seen in five seconds."""

    name: str
    rates: Mapping[str, float]
    api: float = 0.0
    action: str = ""
    limit: int = LIMIT
    bound: float = OVERLAP
    settles: bool = True


def make_phases(quick: bool) -> list[Phase]:
    even = dict.fromkeys(ENVOYS, 50.0)
    phases = [
        Phase("even", even),
        Phase("clients beside", even, 100.0),
        Phase("moved to a", {"a": 150.0}, 30.0),
        Phase("a cut off, as much at b", {"a": 150.0, "b": 150.0}, 30.0, "shut a", bound=1 + OVERLAP),
        Phase("a back", {"a": 30.0, "b": 150.0}, 30.0, "open a"),
        Phase("node x killed", even, 30.0, "kill x", bound=1 + OVERLAP, settles=False),
        Phase("node x back", even, 30.0, "start x"),
        Phase("another limit applied", even, 60.0, "apply", limit=RAISED),
    ]
    return phases[:2] if quick else phases


@dataclass
class Clients:
    """Clients of the API: so many acquisitions a second, of one token each."""

    rate: float = 0.0
    granted: Counter[int] = field(default_factory=Counter)

    async def run(self, addresses: str, load: Load) -> None:
        async with await bursar.connect(addresses) as b:
            door, owed, last = b.resource("api"), 0.0, load.now_s
            while True:
                await asyncio.sleep(0.01)
                now = load.now_s
                owed, last = min(owed + self.rate * (now - last), 5.0), now
                while owed >= 1.0:
                    owed -= 1.0
                    try:
                        async with door.acquire(TENANT):
                            self.granted[int(load.now_s)] += 1
                    except (Refused, Unknown):
                        pass  # it is counted by not being counted


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite://{folder}/store.db"
        self.ports = {name: find_ports() for name in NODES}
        self.apply(LIMIT)
        self.nodes = {name: self._start(name) for name in NODES}
        for node in self.nodes.values():
            node.wait_until_ready()
        self.gates: dict[str, Gate] = {}
        self.envoys: dict[str, Envoy] = {}

    def _start(self, name: str) -> Bursar:
        options = ("--store", self.store, "--name", name, "--state", str(self.folder / name))
        return Bursar(None, self.ports[name], self.folder / f"{name}.log", options)

    def apply(self, limit: int, more: str = "") -> None:
        file = self.folder / "policy.toml"
        file.write_text(POLICY.format(limit=limit, more=more))
        command = [sys.executable, "-m", "bursar", "apply", str(file), "--store", self.store, "--yes"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=APPLY_TIMEOUT_S)
        if done.returncode:
            raise BursarError(f"the policy was not applied: {done.stdout}{done.stderr}")

    async def start_envoys(self) -> None:
        policy = parse(POLICY.format(limit=LIMIT, more="")).resource("api")
        assert isinstance(policy, RatePolicy)
        for number, name in enumerate(ENVOYS):
            # Each has the nodes in another order, as clusters of several nodes would spread them.
            order = [NODES[(number + k) % len(NODES)] for k in range(len(NODES))]
            gates = [Gate(self.ports[node][2]) for node in order]
            for k, gate in enumerate(gates):
                await gate.start()
                self.gates[f"{name}{k}"] = gate
            ports = [gate.port for gate in gates]
            self.envoys[name] = await asyncio.to_thread(start_envoy, self.folder, name, policy, ports)

    async def act(self, action: str) -> None:
        verb, _, name = action.partition(" ")
        if verb == "kill":
            self.nodes[name].kill()
        elif verb == "start":
            self.nodes[name] = await asyncio.to_thread(self._start, name)
        elif verb == "apply":
            more = "".join(f'"new-{k}" = {{ limit = "5/s" }}\n' for k in range(10))
            await asyncio.to_thread(self.apply, RAISED, more)
        for key, gate in self.gates.items():
            if verb in ("shut", "open") and key.startswith(name):
                getattr(gate, verb)()

    async def stop(self) -> None:
        for gate in self.gates.values():
            await gate.close()
        for process in (*self.envoys.values(), *self.nodes.values()):
            process.stop()


async def drive(run: Run, phases: list[Phase]) -> list[dict[str, Any]]:
    await run.start_envoys()
    load = Load({name: envoy.port for name, envoy in run.envoys.items()})
    clients = Clients()
    addresses = "bursar://" + ",".join(f"127.0.0.1:{run.ports[name][0]}" for name in NODES)
    asking = asyncio.create_task(clients.run(addresses, load))
    try:
        for number, phase in enumerate(phases):
            acting = asyncio.create_task(run.act(phase.action))
            load.rates = {(name, TENANT): rate for name, rate in phase.rates.items()}
            clients.rate = phase.api
            await load.run((number + 1) * PHASE_S)
            await acting
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        load.close()
    return [summarize(load, clients, phase, number) for number, phase in enumerate(phases)]


def summarize(load: Load, clients: Clients, phase: Phase, number: int) -> dict[str, Any]:
    start, end = number * PHASE_S, (number + 1) * PHASE_S
    settled = start + SETTLING_S
    passed = {s: load.admitted(ENVOYS, TENANT, s) + clients.granted[s] for s in range(start, end)}
    asked = sum(load.offered(ENVOYS, TENANT, s) for s in range(settled, end)) / (end - settled) + phase.api
    due = min(float(phase.limit), asked)
    got = sum(passed[s] for s in range(settled, end)) / (end - settled)
    peak = max(sum(passed[k] for k in range(s, s + WINDOW_S)) for s in range(start, end - WINDOW_S + 1))
    envoys = {
        name: round(sum(load.admitted((name,), TENANT, s) for s in range(settled, end)) / (end - settled), 1)
        for name in ENVOYS
    }
    api = round(sum(clients.granted[s] for s in range(settled, end)) / (end - settled), 1)
    row: dict[str, Any] = {"phase": phase.name, "due/s": round(due, 1), "got/s": round(got, 1)}
    row |= {"part": round(got / max(due, 1.0), 3), **envoys, "clients": api}
    row |= {"peak 5 s": round(peak / WINDOW_S / phase.limit, 3), "bound": phase.bound}
    return row


def fleet(out: Path, quick: bool) -> dict[str, Any]:
    """`bursar experiment envoy-fleet`."""
    phases = make_phases(quick)

    async def go() -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="bursar-envoy-") as folder:
            run = await asyncio.to_thread(Run, Path(folder))
            try:
                return await drive(run, phases)
            finally:
                await run.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        table = runner.run(go())
    verdict = {
        "used once settled": all(
            row["part"] >= SETTLED_PART for row, phase in zip(table, phases, strict=True) if phase.settles
        ),
        "within the bound": all(row["peak 5 s"] <= row["bound"] for row in table),
    }
    return {"table": table, "ok": all(verdict.values()), **verdict, "limit": LIMIT}
