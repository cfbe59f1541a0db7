"""What several views are made of: tables that grow no further than a page, charts, headings."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nicegui import ui

from bursar.dashboard import charts
from bursar.dashboard.charts import Options
from bursar.dashboard.history import History, count_tenants, tenants_of
from bursar.dashboard.summary import ROWS_MAX as TENANTS_MAX
from bursar.dashboard.writing import write

ROWS_MAX = 200
"""Rows in one table; a policy may have 100,000 tenants, a page may not."""


class Table:
    """Rows of figures by name. `columns` maps a field to its heading; the first column is text, and
    with `texts` all of them are, or those that it names."""

    def __init__(
        self, name: str, columns: Mapping[str, str], *, texts: bool | Collection[str] = False
    ) -> None:
        self._fields = list(columns)
        left = self._fields if texts is True else {self._fields[0], *(texts or ())}
        described = [
            {"name": field, "label": label, "field": field, "align": "left" if field in left else "right"}
            for field, label in columns.items()
        ]
        self._table = ui.table(columns=described, rows=[], row_key=self._fields[0])
        self._table.props(f'flat dense data-table="{name}" hide-pagination :rows-per-page-options="[0]"')
        self._table.classes("w-full texts" if texts is True else "w-full")
        self._more = ui.label().classes("text-caption figures")

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        shown = [{field: write(row.get(field)) for field in self._fields} for row in rows[:ROWS_MAX]]
        if shown != self._table.rows:
            self._table.rows = shown
        hidden = len(rows) - len(shown)
        self._more.set_text(f"and {hidden:,} more: see /api/statistics" if hidden else "")
        self._more.set_visibility(hidden > 0)


class Find:
    """Where a visitor types what a tenant's name must have in it. The choice is made here, not in the
    browser, which gets a page of rows only."""

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self._input = ui.input(placeholder="search tenants", on_change=changed).classes("find")
        self._input.props(f'dense outlined clearable debounce="200" data-find="{name}"')

    @property
    def text(self) -> str:
        return str(self._input.value or "")


class TenantTable:
    """The tenants of a resource: all of them, or where there are too many those that are found and
    use the most."""

    def __init__(self, name: str, title: str, columns: Mapping[str, str]) -> None:
        with ui.card().classes("w-full"):
            with ui.row().classes("items-center gap-2"):
                ui.label(title).classes("card-title")
                self._find = Find(name, self._choose)
            self._table = Table(name, columns)
            self._more = ui.label().classes("text-caption figures")
        self._history: History | None = None
        self._figures: Mapping[str, Any] = {}
        self._use: Mapping[str, float] = {}
        self._make: Callable[[str], Mapping[str, Any]] = lambda name: {}

    def show(
        self,
        history: History,
        figures: Mapping[str, Any],
        use: Mapping[str, float],
        make: Callable[[str], Mapping[str, Any]],
    ) -> None:
        """`figures` are the resource's; `make` gives the row of a tenant."""
        self._history, self._figures, self._use, self._make = history, figures, use, make
        self._choose()

    def _choose(self) -> None:
        if self._history is None:
            return
        wanted = self._find.text.casefold()
        self._history.look_for(wanted)
        found = [name for name in tenants_of(self._figures) if wanted in name.casefold()]
        shown = found
        if len(found) > TENANTS_MAX:
            shown = heapq.nlargest(TENANTS_MAX, found, key=lambda name: self._use.get(name, 0.0))
        self._table.show([self._make(name) for name in shown])
        hidden = (len(found) if wanted else count_tenants(self._figures)) - len(shown)
        self._more.set_text(f"and {hidden:,} more, who use less: search for them")
        self._more.set_visibility(hidden > 0)


class Chart:
    """An ECharts picture with a heading; `name` is for those who look for it by name."""

    def __init__(self, name: str, title: str, height_px: int = 260) -> None:
        with ui.card().classes("w-full chart-card"):
            ui.label(title).classes("card-title")
            self._chart = ui.echart({}).style(f"height: {height_px}px; width: 100%")
            self._chart.props(f'data-chart="{name}" role="img" aria-label="{title}"')
            self._empty = ui.label().classes("text-caption figures")

    def show(self, options: Options, empty: str = "") -> None:
        """`empty` is said in place of a picture that would have nothing in it."""
        self._empty.set_text(empty)
        self._empty.set_visibility(bool(empty))
        self._chart.set_visibility(not empty)
        if options != self._chart.options:
            self._chart.options.clear()
            self._chart.options.update(options)
            self._chart.update()


class Facts:
    """A line of names and values."""

    def __init__(self) -> None:
        self._row = ui.row().classes("facts")
        self._shown: dict[str, str] = {}

    def show(self, facts: Mapping[str, Any]) -> None:
        wanted = {name: write(value) for name, value in facts.items()}
        if wanted == self._shown:
            return
        self._shown = wanted
        self._row.clear()
        with self._row:
            for name, value in wanted.items():
                with ui.element("span").classes("fact").props(f'data-fact="{name}"'):
                    ui.label(name).classes("fact-name")
                    ui.label(value).classes("fact-value figures")


def choose_shown(tenants: Collection[str], gets: Mapping[str, float]) -> list[str]:
    """Who is drawn: everyone, or where there are too many those that get the most."""
    if len(tenants) <= charts.SHOWN_MAX:
        return list(tenants)
    busy = [name for name in tenants if gets.get(name)] or list(tenants)[: charts.SHOWN_MAX]
    return heapq.nlargest(charts.SHOWN_MAX, busy, key=lambda name: gets.get(name, 0.0))
