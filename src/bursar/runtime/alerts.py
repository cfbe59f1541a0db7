"""Telling what someone should know: in the log, in the metrics, on the dashboard, at a webhook.

The same thing is told at most once a minute; what happened in between is counted, and told when the
minute is over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from bursar.resource.alerts import Alert
from bursar.resource.door import Resource
from bursar.runtime import logs

REPEAT_S = 60.0
SUBJECTS_MAX = 1_000
"""Different things told within a minute. More are counted as dropped: nobody would read them."""

Sink = Callable[[Alert], None]


@dataclass(slots=True)
class Told:
    """When it was told, and what has happened since."""

    at_s: float
    since: Alert | None = None


class Alerts:
    """Takes what happens, and tells it. `sink` is told everything too."""

    def __init__(self, resources: Mapping[str, Resource], sink: Sink | None = None) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.dropped = 0
        self._resources = resources
        self.sink = sink
        self._told: dict[tuple[str, str, str, str], Told] = {}

    def add(self, alert: Alert, now_s: float) -> None:
        """It happened. `now_s` is of a clock that only goes forward."""
        told = self._told.get(alert.subject)
        if told is not None and now_s - told.at_s < REPEAT_S:
            before = told.since.count if told.since else 0
            told.since = msgspec.structs.replace(alert, count=before + alert.count)
            return
        if told is None and len(self._told) >= SUBJECTS_MAX:
            self.dropped += 1
            return
        self._tell(alert, told, now_s)

    def flush(self, now_s: float) -> None:
        """Tell what has waited for its minute, and forget what was told long ago."""
        for subject, told in list(self._told.items()):
            if now_s - told.at_s >= REPEAT_S:
                if told.since is not None:
                    self._tell(told.since, None, now_s)
                else:
                    del self._told[subject]

    def _tell(self, alert: Alert, told: Told | None, now_s: float) -> None:
        waited = told.since.count if told is not None and told.since is not None else 0
        alert = msgspec.structs.replace(alert, count=alert.count + waited, at_s=round(time.time(), 3))
        self._told[alert.subject] = Told(now_s)
        self.counts[alert.name, alert.resource] += 1
        resource = self._resources.get(alert.resource)
        if resource is not None:
            resource.alerts.append(alert)
        logs.warning(f"alert.{alert.name}", **write_fields(alert))
        if self.sink is not None:
            self.sink(alert)


def write_fields(alert: Alert) -> dict[str, int | float | str]:
    """What is told of it, without its name and time."""
    about = {"severity": alert.severity, "resource": alert.resource}
    whose = {"tenant": alert.tenant} if alert.tenant else {}
    return {
        **about,
        **whose,
        **alert.fields,
        "count": alert.count,
        "what": alert.what,
        "remedy": alert.remedy,
    }
