"""`bursar tasks`: what runs, what waits and why, what was given up, and what was over last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bursar.cli.places import Ask

LISTED_MAX = 20
OVER_MAX = 10
NAMES_MAX = 4

Row = dict[str, Any]


async def read_overview(ask: Ask) -> dict[str, Any]:
    tasks = await ask("tasks")
    running = [task for task in tasks if task["state"] != "pending"]
    waiting = [task for task in tasks if task["state"] == "pending"]
    for task in [*running[:LISTED_MAX], *waiting[:LISTED_MAX]]:
        task["why"] = await ask("why", id=task["id"])
    dead, over = await ask("dead"), await ask("history", most=OVER_MAX)
    return {"running": running, "waiting": waiting, "given up": dead, "over": over}


def write_overview(seen: dict[str, list[Row]]) -> Iterable[str]:
    for title, say in (
        ("running", _say_why),
        ("waiting", _say_why),
        ("given up", _say_end),
        ("over", _say_over),
    ):
        rows = seen[title]
        if not rows:
            continue
        yield f"{title}:"
        yield from _write_rows(rows[:LISTED_MAX], say)
        if len(rows) > LISTED_MAX:
            yield f"  and {len(rows) - LISTED_MAX} more: see `bursar tasks list`"
    yield ", ".join(f"{len(seen[title])} {title}" for title in ("running", "waiting", "given up"))


def _write_rows(rows: Sequence[Row], say: Callable[[Row], list[str]]) -> Iterable[str]:
    for row in rows:
        yield f"  {row['id']}  {name_of(row)}  {row['tenant']}  {write_needs(row)}"
        yield from (f"      {line}" for line in say(row) if line)


def name_of(row: Row) -> str:
    return row["function"] or ("a claim" if row["claim"] else "a task")


def write_needs(row: Row) -> str:
    needs = row["needs"]
    more = f" and {len(needs) - NAMES_MAX} more" if len(needs) > NAMES_MAX else ""
    return ", ".join(needs[:NAMES_MAX]) + more


def _say_why(row: Row) -> list[str]:
    lines: list[str] = row["why"]
    return lines


def _say_end(row: Row) -> list[str]:
    text = row["result"].decode("utf-8", "replace") or row["failure"]
    why = text.strip().splitlines()[-1:] or ["whoever did it died each time"]
    return [f"tried {row['attempt']} times: {why[0][:300]}", f"`bursar tasks retry {row['id']}`, or discard"]


def _say_over(row: Row) -> list[str]:
    ago_s = max(0.0, time.time() - row["ended"])
    said = f"{row['outcome']} {write_ago(ago_s)} ago, attempt {row['attempt']}"
    if row["outcome"] == "failed":
        said += f": {(row['result'].decode('utf-8', 'replace').strip().splitlines() or [''])[-1][:300]}"
    elif row["failures"]:
        said += f"; it failed before: {(row['failure'].strip().splitlines() or [''])[-1][:300]}"
    return [said]


def write_ago(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
