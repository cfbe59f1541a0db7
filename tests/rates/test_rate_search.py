"""The promises of `rate` in every order of events of small worlds, and each rule's removal found."""

from __future__ import annotations

import pytest
from rate_bugs import BUGS, plant_small_world

from bursar.sim.scenarios.rate import SMALL_WORLDS, SmallRate
from bursar.sim.search import Search


@pytest.mark.parametrize("world", SMALL_WORLDS)
def test_every_order_of_events_of_a_small_world_keeps_the_limit(world: type[SmallRate]) -> None:
    found = Search(world()).run()
    assert found.why is None, str(found)
    assert found.complete
    assert found.states > 1_000, "far fewer states than there were: is it still a search?"


@pytest.mark.parametrize("bug", BUGS)
def test_each_rule_taken_out_is_found_by_search(bug: str) -> None:
    found = Search(plant_small_world(bug)).run()
    assert found.why is not None, f"the search did not find {bug}"
    assert "limit" in found.why or "had begun" in found.why
