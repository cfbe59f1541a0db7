"""Rows of plain values, printed as a table."""

from __future__ import annotations

import sys
from typing import Any

FILE_COLUMNS = 200


def print_rows(rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), int | float | None) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_write_cell(row.get(column, "")) for column in columns))
    # In a file nothing need be folded.
    Console(soft_wrap=True, width=None if sys.stdout.isatty() else FILE_COLUMNS).print(table)


def _write_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
