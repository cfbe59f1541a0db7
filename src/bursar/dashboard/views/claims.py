"""Claims: who holds what, who waits and why, and the tasks: what runs, was given up, and is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Facts, Table

HOLDERS = {"names": "names", "tenant": "tenant", "id": "claim"}
SHOWN = ("resource", "kind")
"""Said in the heading."""

QUEUE = {"names": "names", "tenant": "tenant", "why": "waits because", "id": "claim"}
TASKS = {
    "function": "task",
    "names": "names",
    "tenant": "tenant",
    "stands": "stands",
    "attempt": "attempt",
    "at": "done by",
    "says": "says",
    "id": "id",
}
FIRST = ("running", "dead", "pending")
"""What is listed first; what is over comes last."""


class ClaimView:
    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = Facts()
        with ui.card().classes("w-full"):
            ui.label("Who holds what (E: alone, S: shared)").classes("card-title")
            self._holders = Table(f"{name}/holders", HOLDERS, texts=True)
        with ui.card().classes("w-full"):
            ui.label("Who waits, and why").classes("card-title")
            self._queue = Table(f"{name}/queue", QUEUE, texts=True)
        with ui.card().classes("w-full"):
            ui.label("Tasks, at all workers").classes("card-title")
            self._tasks = Table(f"{name}/tasks", TASKS, texts=True)

    def refresh(self, sample: Sample, history: History) -> None:
        statistics = sample.reading.statistics[self._name]
        facts = {key.replace("_", " "): value for key, value in statistics.items() if key not in SHOWN}
        self._facts.show(
            {key: value for key, value in facts.items() if isinstance(value, int | str) and value != ""}
        )
        for table, key in ((self._holders, "holders"), (self._queue, "queue")):
            table.show([{"id": id, **row} for id, row in statistics.get(key, {}).items()])
        tasks = [{"id": id, **row} for id, row in statistics.get("tasks", {}).items()]
        self._tasks.show(sorted(tasks, key=_place))


def _place(row: Mapping[str, Any]) -> int:
    return FIRST.index(row["stands"]) if row["stands"] in FIRST else len(FIRST)
