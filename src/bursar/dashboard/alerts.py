"""What someone should look at, as sentences. Pure: a reading in, alerts out."""

from __future__ import annotations

import msgspec

from bursar.dashboard.source import Reading
from bursar.resource.alerts import Alert
from bursar.runtime.conditions import find_conditions

RECENT_MAX = 50


def find_alerts(reading: Reading) -> list[Alert]:
    """What is so now. Errors first."""
    found = [
        Alert(severity="error", what=f"{node} is silent: {why}", remedy="start it again, or look at its log")
        for node, why in reading.silent.items()
    ]
    found += [
        Alert(
            severity="error",
            what=f"{record.name} runs an older policy: {record.problem}",
            remedy="bring its build up to date, or apply a policy that it can take",
        )
        for record in reading.nodes.values()
        if record.problem
    ]
    for name, figures in reading.statistics.items():
        found += find_conditions(name, reading.kinds.get(name, ""), figures)
    return sorted(found, key=lambda alert: alert.severity)


def find_recent(reading: Reading) -> list[Alert]:
    """What the nodes told lately, newest first."""
    told = [
        msgspec.convert(alert, Alert)
        for figures in reading.statistics.values()
        for alert in figures.get("alerts", ())
    ]
    return sorted(told, key=lambda alert: -alert.at_s)[:RECENT_MAX]
