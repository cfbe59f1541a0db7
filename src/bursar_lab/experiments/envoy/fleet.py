"""Three real Envoys under bursar, three with a fixed third each, the same load on both at once.

The load moves from Envoy to Envoy; a tenant floods beside one with a reservation; bursar is
killed and started again; an Envoy is killed. What is counted is what was answered with 200.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.integrations.envoy.settings import REPORT_S, Settings
from bursar.policy import RatePolicy, load
from bursar.runtime.loops import new_event_loop
from bursar.units import Rate
from bursar_lab.experiments.envoy.load import Load
from bursar_lab.experiments.envoy.processes import Bursar, Envoy, make_static_filter, start_envoy

LIMIT = 240
CAPACITY = 400
RESERVATION = 100
SETTLED_PART = 0.95
REPORTS_TO_SETTLE = 2
BOUND_WINDOWS_S = (1, 5, 10)
ENVOYS = ("a", "b", "c")
STATIC = {name: f"static-{name}" for name in ENVOYS}

POLICY = """
[resource.api]
kind = "rate"
servers = {{ service = "{capacity}/s" }}
without_bursar = "keep"
[resource.api.tenant]
acme = {{ limit = "{limit}/s" }}
calm = {{ reservation = "{reservation}/s", limit = "{capacity}/s" }}
flood = {{ limit = "{capacity}/s" }}
[daemon]
http = "off"
state = "{state}"
"""

Rates = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Phase:
    """`expected`: what each tenant should get in the end. `action`: what is done as it begins."""

    name: str
    rates: Rates
    expected: Mapping[str, float]
    action: str = ""


def make_phases(quick: bool) -> list[Phase]:
    even = {(name, "acme"): 80.0 for name in ENVOYS}
    on_b: Rates = {("b", "acme"): 300.0}
    flooded: Rates = {**on_b, ("c", "calm"): 100.0, ("a", "flood"): 250.0, ("b", "flood"): 250.0}
    shares = {"acme": 150.0, "calm": 100.0, "flood": 150.0}
    without_b: Rates = {("a", "acme"): 150.0, ("c", "acme"): 150.0}
    phases = [
        Phase("even", even, {"acme": 240.0}),
        Phase("moved to a", {("a", "acme"): 300.0}, {"acme": 240.0}),
        Phase("moved to b", on_b, {"acme": 240.0}),
        Phase("flood", flooded, shares),
        Phase("bursar killed", flooded, shares, "kill bursar"),
        Phase("bursar back", flooded, shares, "start bursar"),
        Phase("Envoy b killed", without_b, {"acme": 240.0}, "kill b"),
    ]
    return phases[:2] if quick else phases


class Run:
    """The processes of one run."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self._folder, self._options = folder, options
        self._file = folder / "policy.toml"
        terms = {"capacity": CAPACITY, "limit": LIMIT, "reservation": RESERVATION}
        self._file.write_text(POLICY.format(state=folder / "state", **terms))
        policy = load(self._file).resource("api")
        assert isinstance(policy, RatePolicy)
        self._port = find_free_port()
        self.envoys: dict[str, Envoy] = {}
        self.start_bursar()
        for name in ENVOYS:
            self.envoys[name] = start_envoy(folder, f"envoy-{name}", policy, self._port)
            self.envoys[STATIC[name]] = Envoy(folder, STATIC[name], _make_static(), [])

    def start_bursar(self) -> None:
        self.bursar = Bursar(self._file, self._port, self._folder / "bursar.log", self._options)

    def act(self, action: str) -> None:
        if action == "kill bursar":
            self.bursar.kill()
        elif action == "start bursar":
            self.start_bursar()
        elif action:
            name = action.split()[1]
            self.envoys[name].kill()
            self.envoys[STATIC[name]].kill()

    def stop(self) -> None:
        for process in (self.bursar, *self.envoys.values()):
            process.stop()


def _make_static() -> Any:
    parts = {"acme": LIMIT / 3, "calm": CAPACITY / 3, "flood": CAPACITY / 3}
    return make_static_filter({name: Rate.of(int(rate)) for name, rate in parts.items()}, "x-tenant")


async def drive(run: Run, phases: list[Phase], phase_s: int) -> Load:
    traffic = Load({name: envoy.port for name, envoy in run.envoys.items()})
    for number, phase in enumerate(phases):
        acting = asyncio.create_task(asyncio.to_thread(run.act, phase.action))
        traffic.rates = dict(phase.rates)
        traffic.rates |= {(STATIC[name], tenant): rate for (name, tenant), rate in phase.rates.items()}
        await traffic.run((number + 1) * phase_s)
        await acting
    traffic.close()
    return traffic


def _fleet_rate(traffic: Load, envoys: tuple[str, ...], tenant: str, start: int, end: int) -> float:
    return sum(traffic.admitted(envoys, tenant, s) for s in range(start, end)) / max(1, end - start)


def _due(traffic: Load, tenant: str, rate: float, start: int, end: int) -> float:
    """min(demand, what it should get): a machine too busy to send the load is not the fleet's."""
    sent = sum(traffic.offered(ENVOYS, tenant, s) for s in range(start, end)) / max(1, end - start)
    return min(rate, sent)


def _find_settling(traffic: Load, phase: Phase, start: int, end: int) -> int | None:
    """Seconds until each tenant's rate stays at 95 % of what is due, over three seconds."""
    for second in range(start, end - 2):
        if all(
            _fleet_rate(traffic, ENVOYS, tenant, at, at + 3)
            >= SETTLED_PART * _due(traffic, tenant, rate, at, at + 3)
            for tenant, rate in phase.expected.items()
            for at in range(second, end - 2)
        ):
            return second - start
    return None


def _find_peaks(traffic: Load, tenant: str, limit: float, start: int, end: int) -> dict[str, float]:
    """The most in any window of some seconds, as a multiple of the limit."""
    peaks = {}
    for window in BOUND_WINDOWS_S:
        firsts = range(start, end - window + 1)
        rates = (_fleet_rate(traffic, ENVOYS, tenant, s, s + window) for s in firsts)
        peaks[f"peak {window} s"] = round(max(rates) / limit, 3)
    return peaks


def summarize(traffic: Load, phases: list[Phase], phase_s: int) -> list[dict[str, Any]]:
    table = []
    for number, phase in enumerate(phases):
        start, end = number * phase_s, (number + 1) * phase_s
        settle_at = start + REPORTS_TO_SETTLE * REPORT_S + 1
        settled = _find_settling(traffic, phase, start, end)
        for tenant, expected in phase.expected.items():
            got = _fleet_rate(traffic, ENVOYS, tenant, settle_at, end)
            static = _fleet_rate(traffic, tuple(STATIC.values()), tenant, settle_at, end)
            due = _due(traffic, tenant, expected, settle_at, end)
            row = {"phase": phase.name, "tenant": tenant, "due/s": round(due, 1), "bursar/s": round(got, 1)}
            row |= {"part": round(got / max(due, 1.0), 3), "static/s": round(static, 1)}
            row |= {"settled s": settled if settled is not None else "never"}
            table.append(
                row | _find_peaks(traffic, tenant, LIMIT if tenant == "acme" else CAPACITY, start, end)
            )
    return table


def judge(table: list[dict[str, Any]], overlap: float, burst_s: float) -> dict[str, bool]:
    """The bound over 5 s: (1 + overlap) x limit, and a burst of each Envoy for each report."""
    bound = (1 + overlap) * (1 + 2 * burst_s / REPORT_S)
    return {
        "settled at 95 % within 2 reports": all(row["part"] >= SETTLED_PART for row in table),
        "within the bound": all(row["peak 5 s"] <= bound for row in table),
        "reservation held": all(row["part"] >= SETTLED_PART for row in table if row["tenant"] == "calm"),
    }


def fleet(out: Path, quick: bool) -> dict[str, Any]:
    """`bursar experiment envoy-fleet`."""
    phase_s = 17 if quick else 25
    phases = make_phases(quick)
    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="bursar-envoy-") as folder:
        run = Run(Path(folder), ())
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                traffic = runner.run(drive(run, phases, phase_s))
        finally:
            run.stop()
    table = summarize(traffic, phases, phase_s)
    verdict = judge(table, settings.overlap, settings.burst_s)
    draw(out / "envoy-fleet.png", traffic, phases, phase_s)
    bound = f"{1 + settings.overlap:g} x limit, and a burst of {settings.burst_s:g} s for each change"
    return {"table": table, "ok": all(verdict.values()), **verdict, "bound": bound, "limit": LIMIT}


def draw(path: Path, traffic: Load, phases: list[Phase], phase_s: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(10.0, 4.0), layout="constrained")
    seconds = range(len(phases) * phase_s)
    colours = {"acme": "#4477aa", "calm": "#228833", "flood": "#ee6677"}
    for tenant, colour in colours.items():
        for names, style in ((ENVOYS, "-"), (tuple(STATIC.values()), ":")):
            rates = [traffic.admitted(names, tenant, second) for second in seconds]
            label = f"{tenant} ({'bursar' if style == '-' else 'static third'})"
            axis.plot(seconds, rates, style, color=colour, label=label, linewidth=1.3)
    axis.axhline(LIMIT, color="black", linewidth=0.7, linestyle="--")
    for number, phase in enumerate(phases):
        axis.axvline(number * phase_s, color="#bbbbbb", linewidth=0.8)
        axis.text(number * phase_s + 0.5, axis.get_ylim()[1], phase.name, fontsize=8, va="bottom")
    axis.set_xlabel("seconds")
    axis.set_ylabel("requests admitted by the fleet in a second")
    figure.legend(fontsize=8, loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
