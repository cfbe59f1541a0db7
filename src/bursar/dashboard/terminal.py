"""The fleet in a terminal: what `bursar top` shows, refreshed while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Label
from textual.widgets.data_table import ColumnKey

from bursar.dashboard.alerts import find_alerts
from bursar.dashboard.history import History
from bursar.dashboard.source import Source
from bursar.dashboard.summary import (
    FIGURES,
    NODES,
    RESOURCES,
    ROWS_MAX,
    SORTS,
    TENANTS,
    Row,
    list_nodes,
    list_resources,
    list_tenants,
)
from bursar.dashboard.writing import write

ALERTS_MAX = 3
NAME_MAX = 24
"""Letters of a name; a longer one keeps its beginning and its end."""


class Sheet(DataTable[Text]):
    """Rows that are replaced by newer ones, in place: whoever scrolled stays where they are."""

    def __init__(self, columns: Mapping[str, str], **more: Any) -> None:
        super().__init__(cursor_type="none", zebra_stripes=True, **more)
        self._headings = columns

    def on_mount(self) -> None:
        for field in self._headings:
            self.add_column(self._write_heading(field, ""), key=field)

    def _write_heading(self, field: str, sorted_by: str) -> Text:
        # A mark would take room, of which there is none in 80 columns.
        style = "reverse" if field == sorted_by else ""
        return Text(self._headings[field], style, justify="right" if field in FIGURES else "left")

    def show(self, rows: Sequence[Row], sorted_by: str = "") -> None:
        for field in self._headings:
            self.columns[ColumnKey(field)].label = self._write_heading(field, sorted_by)
        while self.row_count > len(rows):
            self.remove_row(self.coordinate_to_cell_key(Coordinate(self.row_count - 1, 0)).row_key)
        for at, row in enumerate(rows):
            cells = [write_cell(field, row.get(field)) for field in self._headings]
            if at >= self.row_count:
                self.add_row(*cells)
                continue
            for column, cell in enumerate(cells):
                if self.get_cell_at(Coordinate(at, column)) != cell:
                    self.update_cell_at(Coordinate(at, column), cell, update_width=True)


def write_cell(field: str, value: Any) -> Text:
    if field in FIGURES:
        wrong = field == "refused_s" and bool(value)
        return Text(write(value), justify="right", style="yellow" if wrong else "")
    text = write(value)
    if field == "state":
        return Text(text, style="" if text == "up" else "bold red")
    if field == "ready":
        ready, _, of = text.partition(" of ")
        return Text(text, style="" if ready == of else "bold red")
    return Text(text if len(text) <= NAME_MAX else f"{text[: NAME_MAX - 9]}…{text[-8:]}")


class Find(Input):
    """Where one types what a tenant's name must have in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "done", key_display="enter"),
        Binding("escape", "app.clear", "everyone"),
    ]


class Top(App[None]):
    """Reads the source every `every_s` seconds. Close the source yourself."""

    TITLE = "bursar top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { width: 100%; height: 1; padding: 0 1; background: $primary; color: $text; text-style: bold; }
    Sheet { height: auto; scrollbar-size: 1 1; background: $background; background-tint: 0%; }
    Sheet:focus { background-tint: 0%; }
    #nodes { max-height: 25%; }
    #alerts { width: 100%; max-height: 4; padding: 0 1; color: $text-error; display: none; }
    #alerts.shown { display: block; }
    #resources { max-height: 30%; margin-top: 1; }
    #tenants { height: 1fr; margin-top: 1; }
    #more { height: 1; padding: 0 1; color: $text-muted; }
    #find { display: none; border: none; height: 1; padding: 0 1; }
    #find.shown { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("slash", "find", "search", key_display="/"),
        Binding("u", "sort('use')", "by use"),
        Binding("r", "sort('refusals')", "by refusals"),
        Binding("w", "sort('waits')", "by waits"),
        Binding("n", "sort('name')", "by name"),
        Binding("p", "pause", "pause"),
    ]

    def __init__(self, source: Source, every_s: float, *, find: str = "", sort: str = "use") -> None:
        super().__init__()
        self.history = History()
        self._source = source
        self._every_s = every_s
        self._find = find
        self._sort = sort
        self._paused = False

    def compose(self) -> ComposeResult:
        yield Label("connecting", id="summary")
        with Vertical():
            # A problem is a sentence or two: it stands below, where there is room for it.
            yield Sheet({field: head for field, head in NODES.items() if field != "problem"}, id="nodes")
            yield Label("", id="alerts")
            yield Sheet(RESOURCES, id="resources")
            yield Sheet(TENANTS, id="tenants")
        yield Label("", id="more")
        yield Find(self._find, placeholder="part of a tenant's name", id="find")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#tenants").focus()
        self.run_worker(self._keep_reading(), name="reading")

    async def _keep_reading(self) -> None:
        while True:
            if not self._paused:
                await self.read()
            await asyncio.sleep(self._every_s)

    async def read(self) -> None:
        """One sample."""
        reading = await self._source.read((self._find,) if self._find else ())
        self.history.add(time.monotonic(), time.time(), reading)
        self._show()

    def _show(self) -> None:
        nodes, resources = list_nodes(self.history), list_resources(self.history)
        tenants, found = list_tenants(self.history, self._find, self._sort)
        self.query_one("#nodes", Sheet).show(nodes)
        self.query_one("#resources", Sheet).show(resources)
        self.query_one("#tenants", Sheet).show(tenants, SORTS[self._sort])
        self._show_alerts()
        self.query_one("#summary", Label).update(self._sum_up(nodes))
        self.query_one("#more", Label).update(self._say_more(found, len(tenants)))

    def _show_alerts(self) -> None:
        assert self.history.latest is not None
        found = find_alerts(self.history.latest.reading)
        said = [f"{each.resource}: {each.what}" if each.resource else each.what for each in found]
        if len(said) > ALERTS_MAX:
            said[ALERTS_MAX - 1 :] = [f"and {len(said) - ALERTS_MAX + 1} more: see the dashboard"]
        label = self.query_one("#alerts", Label)
        label.update(Text("\n".join(said)))
        label.set_class(bool(said), "shown")

    def _sum_up(self, nodes: Sequence[Row]) -> Text:
        wrong = sum(row["state"] != "up" for row in nodes)
        versions = sorted({row["version"] for row in nodes if row.get("version")})
        said = [
            self.TITLE,
            f"{len(nodes)} node{'s' * (len(nodes) != 1)}",
            f"policy version {', '.join(map(str, versions))}" if versions else "",
            f"{wrong} with a problem" if wrong else "",
            time.strftime("%H:%M:%S"),
            "paused" if self._paused else "",
        ]
        return Text("  ".join(part for part in said if part))

    def _say_more(self, found: int, shown: int) -> Text:
        rows = f"{found:,} row{'s' * (found != 1)}"
        having = f" of tenants with {self._find!r}" if self._find else ""
        first = f", the first {shown}" if found > ROWS_MAX else ""
        return Text(f"{rows}{having}{first} by {self._sort}")

    # -- keys

    def action_sort(self, sort: str) -> None:
        self._sort = sort
        self.query_one("#tenants", Sheet).scroll_home(animate=False)
        self._show()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._show()

    def action_find(self) -> None:
        self.query_one("#find").add_class("shown")
        self.query_one("#find").focus()

    def action_clear(self) -> None:
        self.query_one("#find", Input).value = ""
        self._close_find()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._find = event.value
        self._show()
        self.run_worker(self.read(), group="finding", exclusive=True)  # of others than the busiest

    def on_input_submitted(self) -> None:
        self._close_find()

    def _close_find(self) -> None:
        self.query_one("#find").remove_class("shown")
        self.query_one("#tenants").focus()
