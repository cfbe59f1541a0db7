"""Everything at once, and the sum of it to the unit: charged = told + what the law says is lost."""

from __future__ import annotations

import pytest
from quota_mutations import ChargesMore, KeepsRefunds

from bursar.quotas.book import NodeBook
from bursar.quotas.courier import QuotaCourier
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios.quota import WholeQuotaScenario
from bursar.sim.scenarios.quota.whole import AnchoredWindows
from bursar.sim.simulation import Simulation

SEEDS = 12
MUTANT_SEEDS = 12


def test_what_is_charged_is_what_was_told_and_what_the_law_says_is_lost() -> None:
    told = lost = notes = settled_elsewhere = 0
    for seed in range(SEEDS):
        scenario = WholeQuotaScenario()
        Simulation("whole", scenario, seed, keep=100).run()
        told += scenario.told_units
        lost += scenario.lost_units
        notes += scenario._notes
        settled_elsewhere += scenario.settled_elsewhere
    assert told and lost and notes and settled_elsewhere


@pytest.mark.parametrize("mutation", [ChargesMore, KeepsRefunds])
def test_seeds_catch_a_unit_that_is_charged_for_nothing(mutation: type[NodeBook]) -> None:
    courier = type("Courier", (QuotaCourier,), {"book_class": mutation})
    decider = type("Decider", (AnchoredWindows,), {"courier_class": courier})
    scenario = type("Scenario", (WholeQuotaScenario,), {"decider_class": decider})
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError as failure:
            assert any(words in failure.why for words in ("charged", "its ledger says", "and said")), (
                failure.why
            )
            return
    pytest.fail(f"{mutation.__name__} was not caught by {MUTANT_SEEDS} seeds")
