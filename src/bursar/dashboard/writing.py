"""Figures as people read them: the same on the pages and in the terminal."""

from __future__ import annotations

from typing import Any


def write(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case _:
            return str(value)
