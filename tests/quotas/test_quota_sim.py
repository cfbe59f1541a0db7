"""A quota over four nodes under every fault: never overspent, and every unit accounted for."""

from __future__ import annotations

import pytest
from quota_mutations import (
    AnswersFirst,
    BeginsAnew,
    ForgetsExtensions,
    ForgetsUnpaid,
    GrowsForNothing,
    GrowsUnwritten,
    HearsFirst,
    KeepsBoth,
    KeepsGivenBack,
    MintsAgain,
    PaysCutsLate,
    Reverts,
    SendsFirst,
    TellsUnasked,
)

from bursar.quotas.book import NodeBook
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.resource import QuotaDecider
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.quota import (
    FastQuotaScenario,
    LossyQuotaScenario,
    OwingQuotaScenario,
    QuotaScenario,
    RebuiltQuotaScenario,
    WindowedQuotaScenario,
    WorstQuotaScenario,
)
from bursar.sim.simulation import Simulation

SEEDS = 80
FAST_SEEDS = 60
LOSSY_SEEDS = 40
WINDOWED_SEEDS = 40
OWING_SEEDS = 20
WORST_SEEDS = 40
"""Disks and stores are lost in these too."""

REBUILT_SEEDS = 10
SEEDS_A_TEST = 20
MUTANT_SEEDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_a_quota_is_never_exceeded_and_no_unit_is_lost_under_every_fault(first: int) -> None:
    """A failure names its seed and the command that replays it."""
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed("quota", seed, keep=100)


@pytest.mark.parametrize("first", range(0, FAST_SEEDS, SEEDS_A_TEST))
def test_blocks_charged_ahead_are_never_exceeded_either(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed(f"{FastQuotaScenario.__module__}:{FastQuotaScenario.__name__}", seed, keep=100)


@pytest.mark.parametrize("first", range(0, LOSSY_SEEDS, SEEDS_A_TEST))
def test_what_a_lost_disk_had_is_handed_out_by_nobody(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed(f"{LossyQuotaScenario.__module__}:{LossyQuotaScenario.__name__}", seed, keep=100)


@pytest.mark.parametrize("first", range(0, WINDOWED_SEEDS, SEEDS_A_TEST))
def test_windows_are_never_exceeded_and_forgotten_when_they_are_over(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed(f"{WindowedQuotaScenario.__module__}:{WindowedQuotaScenario.__name__}", seed, keep=100)


@pytest.mark.parametrize("first", range(0, OWING_SEEDS, SEEDS_A_TEST))
def test_debts_stay_within_overdrafts_and_what_clients_used_is_charged_or_unpaid(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed(f"{OwingQuotaScenario.__module__}:{OwingQuotaScenario.__name__}", seed, keep=100)


@pytest.mark.parametrize("first", range(0, WORST_SEEDS, SEEDS_A_TEST))
def test_all_of_it_holds_at_once(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed(f"{WorstQuotaScenario.__module__}:{WorstQuotaScenario.__name__}", seed, keep=100)


def test_what_a_lost_store_had_minted_is_not_minted_again() -> None:
    for seed in range(REBUILT_SEEDS):
        run_seed(f"{RebuiltQuotaScenario.__module__}:{RebuiltQuotaScenario.__name__}", seed, keep=100)


def test_seeds_catch_a_node_that_mints_again_in_an_adopted_store() -> None:
    decider = type("Decider", (QuotaDecider,), {"courier_class": MintsAgain})
    scenario = type("Scenario", (RebuiltQuotaScenario,), {"decider_class": decider})
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError as failure:
            if any(words in failure.why for words in ("were granted", "audit")):
                return
    pytest.fail(f"{MUTANT_SEEDS} seeds did not find it")


def test_seeds_catch_a_node_that_says_too_early_that_it_has_carried_a_change_out() -> None:
    decider = type("Decider", (QuotaDecider,), {"courier_class": HearsFirst})
    scenario = type("Scenario", (QuotaScenario,), {"decider_class": decider})
    for seed in (49, *range(MUTANT_SEEDS)):  # the one that found it first
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError as failure:
            assert "has not heard" in failure.why, failure.why
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds did not find it")


def test_seeds_catch_a_node_that_begins_anew_without_its_ledger() -> None:
    decider = type("Decider", (QuotaDecider,), {"courier_class": BeginsAnew})
    scenario = type("Scenario", (LossyQuotaScenario,), {"decider_class": decider})
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError as failure:
            found = ("were granted", "audit", "transfers", "charged twice")
            if any(words in failure.why for words in found):
                return  # others wait in vain for what it had: that alone would not do
    pytest.fail(f"{MUTANT_SEEDS} seeds did not find it")


@pytest.mark.parametrize(
    "mutation",
    [SendsFirst, Reverts, AnswersFirst, PaysCutsLate, TellsUnasked, KeepsBoth, KeepsGivenBack],
)
def test_seeds_catch_a_book_that_breaks_a_rule(mutation: type[NodeBook]) -> None:
    courier = type("Courier", (QuotaCourier,), {"book_class": mutation})
    decider = type("Decider", (QuotaDecider,), {"courier_class": courier})
    scenario = type("Scenario", (QuotaScenario,), {"decider_class": decider})
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError:
            return
    pytest.fail(f"{mutation.__name__} was not caught by {MUTANT_SEEDS} seeds")


@pytest.mark.parametrize("mutation", [GrowsUnwritten, GrowsForNothing, ForgetsUnpaid, ForgetsExtensions])
def test_seeds_catch_a_hold_that_grows_or_ends_as_it_should_not(mutation: type[NodeBook]) -> None:
    courier = type("Courier", (QuotaCourier,), {"book_class": mutation})
    decider = type("Decider", (QuotaDecider,), {"courier_class": courier})
    scenario = type("Scenario", (OwingQuotaScenario,), {"decider_class": decider})
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation("mutant", scenario(), seed, keep=1).run()
        except RunFailedError as failure:
            found = ("were granted", "audit", "unpaid", "its ledger says", "was extended")
            assert any(words in failure.why for words in found), failure.why
            return
    pytest.fail(f"{mutation.__name__} was not caught by {MUTANT_SEEDS} seeds")
