"""Wrong tokens wait, good ones never do; what is logged is bounded."""

from __future__ import annotations

from typing import Any

from bursar.fleet.refusals import DELAY_MAX_NS, FREE_OF_ALL, FREE_OF_SOURCE, SOURCES_MAX, Refusals
from bursar.world import SECOND_NS


class Town:
    def __init__(self) -> None:
        self.now = 0
        self.lines: list[dict[str, Any]] = []
        self.refusals = Refusals(lambda: self.now, self.warn)

    def warn(self, event: str, /, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


def test_a_few_are_free_and_then_each_waits_longer_up_to_a_bound() -> None:
    town = Town()
    delays = [town.refusals.note("web", "wrong") for _ in range(50)]
    assert delays[:FREE_OF_SOURCE] == [0] * FREE_OF_SOURCE
    assert delays == sorted(delays) and delays[FREE_OF_SOURCE] > 0
    assert delays[-1] == DELAY_MAX_NS
    assert town.refusals.note("other", "wrong") == 0, "nobody pays for somebody else"
    town.now = 120 * SECOND_NS
    assert town.refusals.note("web", "wrong") == 0, "it is forgiven"


def test_a_new_name_each_time_does_not_help() -> None:
    town = Town()
    delays = [town.refusals.note(f"client-{n}", "wrong") for n in range(5 * FREE_OF_ALL)]
    assert delays[:FREE_OF_ALL] == [0] * FREE_OF_ALL
    assert delays[-1] == DELAY_MAX_NS


def test_what_is_remembered_of_sources_is_bounded() -> None:
    town = Town()
    for n in range(3 * SOURCES_MAX):
        town.refusals.note(f"client-{n}", "wrong")
    assert len(town.refusals._sources) == SOURCES_MAX


def test_a_line_a_second_is_logged_with_how_many_there_were() -> None:
    town = Town()
    for n in range(1_000):
        town.now = n * SECOND_NS // 250
        town.refusals.note("web", "wrong")
    assert town.refusals.count == 1_000
    assert [line["since_last"] for line in town.lines] == [1, 250, 250, 250]
