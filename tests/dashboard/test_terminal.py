"""`bursar top` on a screen of 80 columns and 24 lines, driven by its keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Label

from bursar.dashboard.source import Reading, Total
from bursar.dashboard.terminal import Sheet, Top
from bursar.fleet.layout import NodeRecord

SIZE = (80, 24)
NEVER_S = 3600.0


class Source:
    """Every reading a second further on: acme uses 40 a second, globex is refused 7."""

    def __init__(self) -> None:
        self.count = 0
        self.silent: dict[str, str] = {}
        self.extra: dict[str, Any] = {}

    async def read(self, find: Sequence[str] = ()) -> Reading:
        self.count += 1
        tenants: dict[str, Any] = {
            "acme": {"granted": 40 * self.count, "refused": 0, "waiting": 0},
            "globex/search": {"granted": 5, "refused": 7 * self.count, "waiting": 3},
            **self.extra,
        }
        nodes = {
            name: NodeRecord(
                name=name, incarnation=1, address=f"10.0.0.{at}:7070", version=3, head=3, build="1.2"
            )
            for at, name in enumerate(("a", "b"), start=1)
        }
        totals = {name: {"cache": Total(True, 0, 0, 0)} for name in nodes if name not in self.silent}
        return Reading(
            {"cache": "rate"}, {"cache": {"tenants": tenants, "waiting": 3}}, self.silent, nodes, totals
        )

    async def close(self) -> None:
        """Nothing is open."""


Driven = tuple[Top, Source, Pilot[None]]


@pytest.fixture
async def driven() -> AsyncIterator[Driven]:
    """A screen that has read once, and reads again when it is told to."""
    source = Source()
    app = Top(source, NEVER_S)
    async with app.run_test(size=SIZE) as pilot:
        while app.history.latest is None:
            await pilot.pause()
        await app.read()
        yield app, source, pilot


def cells(app: Top, name: str) -> list[list[str]]:
    sheet = app.query_one(f"#{name}", Sheet)
    return [[cell.plain for cell in sheet.get_row_at(at)] for at in range(sheet.row_count)]


def names(app: Top) -> list[str]:
    return [row[0] for row in cells(app, "tenants")]


def said(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Label).render())


async def test_nodes_resources_and_tenants_by_use_are_shown(driven: Driven) -> None:
    app, _, _ = driven
    assert cells(app, "nodes")[0] == ["a", "10.0.0.1:7070", "3", "1.2", "0", "up"]
    assert cells(app, "resources")[0][:4] == ["cache", "rate", "2 of 2", "3"]
    assert names(app) == ["acme", "globex/search"]
    assert cells(app, "tenants")[1][4:] == ["3", "5", "14"]
    assert "2 nodes" in said(app, "summary") and "policy version 3" in said(app, "summary")


async def test_keys_sort_the_tenants(driven: Driven) -> None:
    app, _, pilot = driven
    for key, first in (("r", "globex/search"), ("n", "acme"), ("w", "globex/search"), ("u", "acme")):
        await pilot.press(key)
        assert names(app)[0] == first, key


async def test_a_search_leaves_those_whose_name_has_it_until_escape(driven: Driven) -> None:
    app, _, pilot = driven
    await pilot.press("slash", *"SEAR")
    assert names(app) == ["globex/search"], "letters are typed here, not taken for keys"
    await pilot.press("enter")
    await app.read()
    assert names(app) == ["globex/search"], "it stays while figures go on"
    assert "'SEAR'" in said(app, "more")
    await pilot.press("slash", "escape")
    assert names(app) == ["acme", "globex/search"]


async def test_rows_that_go_are_taken_away_and_at_most_fifty_are_shown(driven: Driven) -> None:
    app, source, _ = driven
    source.extra = {f"t{k}": {"granted": 0, "refused": 0} for k in range(500)}
    await app.read()
    assert len(names(app)) == 50 and "502 rows, the first 50" in said(app, "more")
    source.extra = {}
    await app.read()
    assert names(app) == ["acme", "globex/search"]


async def test_a_silent_node_is_named_with_the_reason(driven: Driven) -> None:
    app, source, _ = driven
    source.silent = {"b": "no daemon answers"}
    await app.read()
    assert cells(app, "nodes")[1][-1] == "silent"
    assert "b is silent: no daemon answers" in said(app, "alerts")
    assert "1 with a problem" in said(app, "summary")
    assert cells(app, "resources")[0][2] == "1 of 1"


async def test_everything_fits_on_a_small_screen_and_every_key_is_named(driven: Driven) -> None:
    app, source, pilot = driven
    source.extra = {f"customer-with-a-long-name-{k}": {"granted": 0, "refused": 0} for k in range(60)}
    await app.read()
    await pilot.pause()
    footer = " ".join(str(key.render()) for key in app.query("FooterKey"))
    assert all(word in footer for word in ("quit", "search", "use", "refusals", "waits", "name", "pause"))
    for widget in (*app.query(Sheet), *app.query(Label), *app.query("FooterKey")):
        if widget.display and widget.region.area:
            assert widget.region.right <= SIZE[0] and widget.region.bottom <= SIZE[1], widget
    assert app.query_one("#tenants").region.height >= 8, "there is room for the tenants"
    assert all(len(name) <= 24 for name in names(app))


async def test_a_pause_is_said_and_q_ends_it(driven: Driven) -> None:
    app, _, pilot = driven
    await pilot.press("p")
    assert "paused" in said(app, "summary")
    await pilot.press("p")
    assert "paused" not in said(app, "summary")
    await pilot.press("q")
    assert not app.is_running
