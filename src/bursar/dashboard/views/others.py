"""Any figures at all: facts, and a table for whatever has names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Facts, Table

TITLES = {
    "tenants": "Tenants",
    "tenant": "Tenants",
    "servers": "Servers",
}


class PlainView:
    """Every figure of a resource: numbers and texts as facts, tables of names as tables."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = Facts()
        self._place = ui.column().classes("w-full")
        self._tables: dict[str, Table] = {}

    def refresh(self, sample: Sample, history: History) -> None:
        statistics = sample.reading.statistics[self._name]
        self._facts.show({key.replace("_", " "): value for key, value in flat(statistics).items()})
        found = named(statistics)
        for key, rows in found.items():
            if key not in self._tables:
                self._tables[key] = self._add_table(key, rows)
        for key, table in self._tables.items():
            table.show([{"name": name, **flat(row)} for name, row in found.get(key, {}).items()])

    def _add_table(self, key: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
        fields = dict.fromkeys(field for row in rows.values() for field in flat(row))
        with self._place, ui.card().classes("w-full"):
            ui.label(TITLES.get(key, key.replace("_", " "))).classes("card-title")
            columns = {field: field.replace("_", " ") for field in fields}
            return Table(f"{self._name}/{key}", {"name": "", **columns})


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a table; lists as text."""
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        for key, value in row.items()
        if not isinstance(value, Mapping)
    }


def named(statistics: Mapping[str, Any]) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """The tables of a snapshot: names with a row of figures each."""
    return {
        key: value
        for key, value in statistics.items()
        if isinstance(value, Mapping) and value and all(isinstance(row, Mapping) for row in value.values())
    }
