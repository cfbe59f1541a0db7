"""A hostile client of the simulator: replays and forgeries in the nodes' own words change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bursar.sim.errors import RunFailedError
from bursar.sim.faults import Faults
from bursar.sim.forgery import STRANGER
from bursar.sim.network import Fabric
from bursar.sim.packets import Packet
from bursar.sim.scenario import Scenario
from bursar.sim.scenarios.quota.world import QuotaScenario
from bursar.sim.scenarios.rate.world import RateScenario
from bursar.sim.simulation import Run, Simulation
from bursar.world import MILLISECOND_NS, SECOND_NS

SEEDS_MAX = 12
"""A forgery that harms is one that comes at the wrong moment: not every seed has one."""

HOSTILE = Faults(forgeries=20.0, slow_ns=0)


class ShortRateScenario(RateScenario):
    """Without control a rate's controllers are busy electing each other, so it is kept short."""

    duration_ns = SECOND_NS
    settle_ns = 2_400 * MILLISECOND_NS
    fixed: Mapping[str, Any] = {"period": "400ms", "interval": "100ms", "drift_ppm": 10_000}

    def faults(self) -> Faults:
        return HOSTILE


def run_hostile(scenario: type[Scenario], seed: int) -> Run:
    return Simulation(scenario.__name__, scenario(), seed, faults=HOSTILE).run()


@pytest.mark.parametrize("scenario", [ShortRateScenario, QuotaScenario])
def test_forged_messages_are_refused_and_promises_kept(scenario: type[Scenario]) -> None:
    run = run_hostile(scenario, 2)
    forged = [line for line in run.history if " forged " in line]
    refused = [line for line in run.history if " refused " in line and " sender=" in line]
    assert len(forged) > 10
    assert len(forged) == len(refused), "each of them, and nothing else"
    assert any(f"sender={STRANGER}" in line for line in refused), "in its own name"
    assert not all(f"sender={STRANGER}" in line for line in refused), "and in a node's"


@pytest.mark.parametrize(
    ("scenario", "why"),
    [(ShortRateScenario, "periods opened|was served from period"), (QuotaScenario, "transfers|units")],
)
def test_without_the_check_of_membership_a_client_breaks_promises(
    scenario: type[Scenario], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(fabric: Fabric, packet: Packet) -> bool:
        return True

    monkeypatch.setattr(Fabric, "is_from_member", believe)
    with pytest.raises(RunFailedError, match=why):
        for seed in range(SEEDS_MAX):
            run_hostile(scenario, seed)
