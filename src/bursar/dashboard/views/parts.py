"""What several views are made of: tables that grow no further than a page, charts, headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from bursar.dashboard.charts import Options
from bursar.dashboard.writing import write

ROWS_MAX = 200
"""Rows in one table; a policy may have 100,000 tenants, a page may not."""


class Table:
    """Rows of figures by name. `columns` maps a field to its heading; the first column is text, and
    with `texts` all of them are."""

    def __init__(self, name: str, columns: Mapping[str, str], *, texts: bool = False) -> None:
        self._fields = list(columns)
        described = [
            {"name": field, "label": label, "field": field, "align": "left" if texts or at == 0 else "right"}
            for at, (field, label) in enumerate(columns.items())
        ]
        self._table = ui.table(columns=described, rows=[], row_key=self._fields[0])
        self._table.props(f'flat dense data-table="{name}" hide-pagination :rows-per-page-options="[0]"')
        self._table.classes("w-full texts" if texts else "w-full")
        self._more = ui.label().classes("text-caption figures")

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        shown = [{field: write(row.get(field)) for field in self._fields} for row in rows[:ROWS_MAX]]
        if shown != self._table.rows:
            self._table.rows = shown
        hidden = len(rows) - len(shown)
        self._more.set_text(f"and {hidden:,} more: see /api/statistics" if hidden else "")
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
