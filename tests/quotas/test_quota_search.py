"""Every order of events of two- and three-node worlds, and mutations that the search must catch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from quota_mutations import (
    AnswersFirst,
    DecidesOverLots,
    FreesFirst,
    KeepsBoth,
    Recredits,
    RefusesLocally,
    Reverts,
    SendsFirst,
    StatesEarly,
    TellsUnasked,
    TrustsItsLedger,
)

from bursar.quotas.book import NodeBook
from bursar.sim.scenarios.quota.small import CHAIN, SMALL_RULES, THREE, TWO, SmallLots, SmallQuota
from bursar.sim.scenarios.quota.small_keys import SmallKeys
from bursar.sim.search import Budget, Found, Search
from bursar.world import MILLISECOND_NS


def search(states_max: int = 400_000, **settings: Any) -> Found:
    world = type("World", (SmallQuota,), settings)()
    return Search(world, states_max).run()


def search_keys(**settings: Any) -> Found:
    return Search(type("World", (SmallKeys,), settings)(), 400_000).run()


def assert_nothing_found(found: Found) -> None:
    assert found.why is None and found.complete, str(found)
    assert found.states > 1_000, "a world too small to say anything"


def test_two_nodes_with_a_crash_never_overspend_nor_refuse_wrongly() -> None:
    assert_nothing_found(search(places=TWO, budget=Budget(crashes=1, duplicates=0, moves=1)))


def test_two_nodes_with_loss_and_duplication_never_overspend_nor_refuse_wrongly() -> None:
    assert_nothing_found(search(places=TWO, budget=Budget(crashes=0, duplicates=1, drops=1, moves=1)))


def test_two_nodes_asked_at_once_never_overspend_nor_refuse_wrongly() -> None:
    budget = Budget(crashes=0, duplicates=1, moves=2)
    assert_nothing_found(search(places=TWO, budget=budget, horizon_ns=12 * MILLISECOND_NS))


def test_a_chain_of_three_with_a_crash_never_overspends() -> None:
    budget = Budget(crashes=1, duplicates=0, moves=1)
    assert_nothing_found(search(places=CHAIN, askers=("c",), budget=budget))


def test_a_star_of_three_with_duplication_never_overspends() -> None:
    budget = Budget(crashes=0, duplicates=1, moves=2)
    horizon_ns = 5 * MILLISECOND_NS
    assert_nothing_found(search(places=THREE, askers=("b", "c"), budget=budget, horizon_ns=horizon_ns))


def test_a_star_of_three_with_a_crash_never_overspends() -> None:
    budget = Budget(crashes=1, duplicates=0, moves=2)
    horizon_ns = 5 * MILLISECOND_NS
    assert_nothing_found(search(places=THREE, askers=("b", "c"), budget=budget, horizon_ns=horizon_ns))


def test_settled_holds_give_back_once_whatever_crashes() -> None:
    found = search(settles=True, amounts=(1,), askers=("b",), budget=Budget(crashes=1, duplicates=0, moves=3))
    assert_nothing_found(found)


def test_blocks_charged_ahead_are_never_spent_twice() -> None:
    budget = Budget(crashes=1, duplicates=0, moves=2)
    found = search(block=2, amounts=(1,), askers=("b",), budget=budget)
    assert_nothing_found(found)


def test_the_papers_form_keeps_the_same_ledger() -> None:
    """Sections IV-B1 and IV-B2."""
    paper = replace(SMALL_RULES, paper=True, beta=1, margin=1.0)
    assert_nothing_found(search(rules=paper, budget=Budget(crashes=1, duplicates=0, moves=1)))


@pytest.mark.parametrize(
    ("mutation", "settings"),
    [
        (SendsFirst, {"budget": Budget(crashes=1, duplicates=0, moves=1)}),
        (Reverts, {"budget": Budget(crashes=0, duplicates=0, moves=1)}),
        (AnswersFirst, {"budget": Budget(crashes=1, duplicates=0, moves=1), "amounts": (1,)}),
        (Recredits, {"budget": Budget(crashes=0, duplicates=1, moves=1)}),
        (RefusesLocally, {"budget": Budget(crashes=0, duplicates=0, moves=1)}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_mutations_are_caught(mutation: type[NodeBook], settings: dict[str, Any]) -> None:
    found = search(book=mutation, **settings)
    assert found.why is not None, f"{mutation.__name__} was not caught: {found}"


@pytest.mark.parametrize(
    "budget",
    [
        Budget(crashes=1, duplicates=0, moves=3),
        Budget(crashes=0, duplicates=1, moves=4),
        Budget(crashes=1, duplicates=1, moves=2),
    ],
    ids=["a crash", "a duplicate", "both"],
)
def test_one_key_is_charged_once_whatever_crashes_or_comes_twice(budget: Budget) -> None:
    assert_nothing_found(search_keys(budget=budget))


def test_one_key_out_of_a_block_is_charged_once_whatever_crashes() -> None:
    budget = Budget(crashes=1, duplicates=0, moves=2)
    assert_nothing_found(search_keys(budget=budget, block=1, horizon_ns=MILLISECOND_NS))


@pytest.mark.parametrize("mutation", [TellsUnasked, TrustsItsLedger, KeepsBoth, FreesFirst])
def test_mutations_of_keys_are_caught(mutation: type[NodeBook]) -> None:
    found = search_keys(book=mutation, budget=Budget(crashes=1, duplicates=0, moves=4))
    assert found.why is not None, f"{mutation.__name__} was not caught: {found}"


def search_lots(**settings: Any) -> Found:
    return Search(type("World", (SmallLots,), settings)(), 400_000).run()


def test_nobody_is_refused_because_of_a_lot() -> None:
    assert_nothing_found(search_lots())


@pytest.mark.parametrize("mutation", [DecidesOverLots, StatesEarly])
def test_a_root_that_decides_over_what_is_charged_ahead_is_caught(mutation: type[NodeBook]) -> None:
    found = search_lots(book=mutation)
    assert found.why is not None and "were refused" in found.why, str(found)
