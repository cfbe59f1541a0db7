"""Rows of an experiment that takes long, written down as they are found: one that was stopped is
started again and goes on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class KeptRows:
    """A row for each line of a file. Delete the file to begin anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def has(self, case: Row) -> bool:
        """Whether there is a row of this case."""
        return any(case.items() <= row.items() for row in self.rows)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def finish(self) -> list[Row]:
        """All rows; the next run of the experiment begins anew."""
        self._path.unlink(missing_ok=True)
        return self.rows
