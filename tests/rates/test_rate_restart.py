"""A killed node decides again at once, and what its earlier life granted stays granted."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bursar.errors import Refused, Unknown
from bursar.policy import RatePolicy, parse
from bursar.rates.resource import open_resource
from bursar.resource.door import Resource
from bursar.sim import node as sim_node
from bursar.sim.faults import Faults
from bursar.sim.loop import sleep_until
from bursar.sim.scenario import Boot, Scenario
from bursar.sim.simulation import Simulation
from bursar.world import MILLISECOND_NS, SECOND_NS, World

LIMIT = 600
PERIOD_S = 60
KILLED_AT_NS = 20 * SECOND_NS
DOWN_NS = 50 * MILLISECOND_NS
STEPS = 40
"""What a crash may cost: two steps of half a second, and more than that for a burst."""


def make_policy(*servers: str) -> RatePolicy:
    where = ", ".join(f'{server} = "1000/s"' for server in servers)
    policy = parse(
        f'[resource.api]\nkind = "rate"\nperiod = "{PERIOD_S}s"\nwithout_bursar = "refuse"\n'
        f"pacing = false\nservers = {{ {where} }}\n"
        f'[resource.api.tenant]\nacme = {{ limit = "{LIMIT // PERIOD_S}/s" }}\n'
    ).resources["api"]
    assert isinstance(policy, RatePolicy)
    return policy


class KilledScenario(Scenario):
    """Nodes a and b, each with its server, or a alone; one of them is killed 20 s into the period.
    Each asks for tokens all the time, of which the first half of the period uses up a third."""

    duration_ns = 50 * SECOND_NS
    settle_ns = SECOND_NS
    session_timeout_ns = 10 * SECOND_NS

    def __init__(self, names: tuple[str, ...], killed: str, pause_ms: int = 200) -> None:
        self.names = names
        self.killed = killed
        self.pause_ns = pause_ms * MILLISECOND_NS
        self.granted = 0
        self.granted_before = 0
        self.decided_after_ns: int | None = None
        self.granted_after_ns: int | None = None

    def nodes(self) -> Mapping[str, Boot]:
        return dict.fromkeys(self.names, self._boot)

    def workloads(self) -> Mapping[str, object]:  # type: ignore[override]
        return {"killer": self._kill()}

    async def _kill(self) -> None:
        await sleep_until(self.sim.loop, KILLED_AT_NS)
        self.granted_before = self.granted
        self.sim.crash(self.killed, DOWN_NS)

    async def _boot(self, world: World) -> None:
        resource = open_resource(world, "api", make_policy(*self.names))
        await resource.start()
        while True:
            await self._ask(world, resource)
            await world.clock.sleep(self.pause_ns)

    async def _ask(self, world: World, resource: Resource) -> None:
        granted = False
        try:
            await (await resource.acquire("acme", 1)).release()
            granted = True
        except Unknown:
            return
        except Refused:
            granted = False
        self.granted += granted
        since_ns = self.sim.now_ns - KILLED_AT_NS - DOWN_NS
        if world.incarnation > 1 and self.decided_after_ns is None:
            self.decided_after_ns = since_ns
        if world.incarnation > 1 and granted and self.granted_after_ns is None:
            self.granted_after_ns = since_ns


def run(
    scenario: KilledScenario, monkeypatch: pytest.MonkeyPatch, *, machine: bool = False
) -> KilledScenario:
    monkeypatch.setattr(sim_node, "PROCESS_ONLY", 0.0 if machine else 1.0)
    Simulation("killed", scenario, 1, faults=Faults(), keep=20).run()
    return scenario


def test_a_lone_node_goes_on_with_its_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = run(KilledScenario(("a",), "a"), monkeypatch)
    assert scenario.granted_after_ns is not None and scenario.granted_after_ns < SECOND_NS
    assert scenario.granted > scenario.granted_before + 100
    assert scenario.granted <= LIMIT


def test_what_was_used_up_before_stays_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = run(KilledScenario(("a",), "a", pause_ms=10), monkeypatch)
    assert scenario.granted_before == LIMIT
    assert scenario.granted == LIMIT, "the minute is not over"
    assert scenario.decided_after_ns is not None and scenario.decided_after_ns <= SECOND_NS


def test_a_crash_costs_no_more_than_what_was_charged_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = run(KilledScenario(("a",), "a", pause_ms=60), monkeypatch)
    assert LIMIT - STEPS <= scenario.granted <= LIMIT


def test_the_period_ends_when_it_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = KilledScenario(("a",), "a", pause_ms=10)
    scenario.duration_ns = 70 * SECOND_NS
    run(scenario, monkeypatch)
    assert scenario.granted == 2 * LIMIT


def test_where_the_clock_began_anew_the_period_lasts_a_whole_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = KilledScenario(("a",), "a", pause_ms=10)
    scenario.session_timeout_ns = 2 * SECOND_NS
    scenario.duration_ns = 75 * SECOND_NS
    run(scenario, monkeypatch, machine=True)
    assert scenario.granted == LIMIT, "nothing tells how long the machine was down"


@pytest.mark.parametrize("killed", ["a", "b"])
def test_one_of_two_nodes_goes_on_with_its_minute(killed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them leads, and the other one's server does not wait for its next round."""
    scenario = run(KilledScenario(("a", "b"), killed), monkeypatch)
    assert scenario.granted_after_ns is not None and scenario.granted_after_ns < SECOND_NS
    assert scenario.granted > scenario.granted_before + 100
    assert scenario.granted <= LIMIT
