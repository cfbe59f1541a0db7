"""What an experiment must show."""

from __future__ import annotations

from typing import Any

Findings = dict[str, Any]
Bar = dict[str, Any]


def check(bar: str, found: float | str, met: bool) -> Bar:
    return {"bar": bar, "found": round(found, 4) if isinstance(found, float) else found, "met": bool(met)}


def at_least(bar: str, found: float, least: float) -> Bar:
    return check(f"{bar} (at least {least:g})", float(found), found >= least)


def below(bar: str, found: float, bound: float) -> Bar:
    return check(f"{bar} (below {bound:g})", float(found), found < bound)


def conclude(findings: Findings, *bars: Bar) -> Findings:
    return {**findings, "bars": list(bars), "ok": all(bar["met"] for bar in bars)}
