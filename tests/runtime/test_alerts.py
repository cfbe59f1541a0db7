"""Alerts: what happens is told in the log, the metrics, the statistics and to a sink, not too often."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from bursar.resource.alerts import ALERTS_KEPT, Alert
from bursar.resource.statistics import Statistics
from bursar.runtime import alerts as module
from bursar.runtime.alerts import REPEAT_S, Alerts
from bursar.runtime.world import LiveWorld, open_world

from .watched import open_watched


@pytest.fixture
async def world() -> AsyncIterator[LiveWorld]:
    world = await open_world("node")
    yield world
    await world.close()


def make(tenant: str = "acme", **changes: Any) -> Alert:
    settings = {"name": "shadow", "severity": "warning", "resource": "cache", "tenant": tenant}
    return Alert(**settings | {"what": f"{tenant} did", "remedy": "do this"} | changes)


async def test_an_alert_is_told_everywhere(world: LiveWorld, caplog: pytest.LogCaptureFixture) -> None:
    resource, sent = open_watched(world), list[Alert]()
    alerts = Alerts({"cache": resource}, sent.append)
    logging.getLogger("bursar").propagate = True
    alerts.add(make(fields={"tokens": 7}), 0.0)
    # By identity: a logger that propagates hands one record to several handlers.
    records = {id(record): record for record in caplog.records if record.getMessage() == "alert.shadow"}
    (record,) = records.values()
    assert record.levelno == logging.WARNING
    assert record.fields == {  # type: ignore[attr-defined]
        "severity": "warning",
        "resource": "cache",
        "tenant": "acme",
        "tokens": 7,
        "count": 1,
        "what": "acme did",
        "remedy": "do this",
    }
    assert alerts.counts == {("shadow", "cache"): 1}
    assert [alert.what for alert in sent] == ["acme did"]
    statistics = await resource.statistics()
    assert statistics.alerts == tuple(sent) and statistics.alerts[0].at_s > 1.7e9
    again = msgspec.json.decode(msgspec.json.encode(statistics), type=Statistics)
    assert again.alerts == statistics.alerts, "as it goes over the wire"


def test_the_same_is_told_once_a_minute_with_how_often_it_happened() -> None:
    told = list[Alert]()
    alerts = Alerts({}, told.append)
    for second in range(30):
        alerts.add(make(fields={"tokens": second}), float(second))
    assert [alert.count for alert in told] == [1]
    alerts.flush(REPEAT_S - 1)
    assert len(told) == 1
    alerts.flush(REPEAT_S)
    assert [(alert.count, alert.fields["tokens"]) for alert in told] == [(1, 0), (29, 29)]
    alerts.add(make(), 1.5 * REPEAT_S)
    assert len(told) == 2, "the minute begins with the last that was told"
    alerts.add(make(), 2 * REPEAT_S)
    assert [alert.count for alert in told] == [1, 29, 2]


def test_what_differs_is_told_at_once() -> None:
    told = list[Alert]()
    alerts = Alerts({}, told.append)
    for alert in (make(), make("globex"), make(name="budget"), make(resource="b"), make(which="95 %")):
        alerts.add(alert, 0.0)
    assert len(told) == 5


def test_what_is_over_is_forgotten_and_told_anew() -> None:
    told = list[Alert]()
    alerts = Alerts({}, told.append)
    alerts.add(make(), 0.0)
    alerts.flush(REPEAT_S)
    assert not alerts._told
    alerts.add(make(), REPEAT_S + 1)
    assert [alert.count for alert in told] == [1, 1]


def test_very_many_different_alerts_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBJECTS_MAX", 3)
    told = list[Alert]()
    alerts = Alerts({}, told.append)
    for number in range(10):
        alerts.add(make(f"t{number}"), 0.0)
    assert (len(told), alerts.dropped) == (3, 7)
    alerts.flush(REPEAT_S)
    alerts.add(make("t9"), REPEAT_S)
    assert len(told) == 4


async def test_a_resource_remembers_the_newest(world: LiveWorld) -> None:
    resource = open_watched(world)
    alerts = Alerts({"cache": resource})
    for number in range(2 * ALERTS_KEPT):
        alerts.add(make(f"t{number}"), 0.0)
    assert len(resource.alerts) == ALERTS_KEPT
    assert resource.alerts[-1].tenant == f"t{2 * ALERTS_KEPT - 1}"
