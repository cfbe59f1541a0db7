"""The tables of a fleet, from readings made by hand."""

from __future__ import annotations

from typing import Any

from bursar.dashboard.alerts import find_alerts
from bursar.dashboard.history import History
from bursar.dashboard.source import Reading, Total
from bursar.dashboard.summary import list_nodes, list_parts, list_resources, list_tenants
from bursar.fleet.layout import NodeRecord


def make_history(*readings: Reading) -> History:
    history = History()
    for at, reading in enumerate(readings):
        history.add(float(at), float(at), reading)
    return history


def make_reading(tenants: dict[str, dict[str, int]], **more: Any) -> Reading:
    total = Total(True, 4, *(sum(row[field] for row in tenants.values()) for field in ("granted", "refused")))
    figures = {"tenants": tenants, "waiting": 4, **more}
    return Reading({"x": "rate"}, {"x": figures}, totals={"a": {"x": total}})


def node(name: str, **fields: Any) -> NodeRecord:
    return NodeRecord(name=name, incarnation=1, address=f"{name}:7070", **fields)


def test_every_node_is_up_silent_behind_or_says_what_keeps_it() -> None:
    nodes = {
        "a": node("a", version=7, head=9),
        "b": node("b", version=6, head=8),
        "c": node("c", version=6, head=8, problem="version 7 is not taken: no such kind"),
        "d": node("d", version=7, head=9),
    }
    history = make_history(Reading(silent={"d": "no answer", "bursar://e": "refused"}, nodes=nodes))
    rows = list_nodes(history)
    assert [(row["node"], row["state"]) for row in rows] == [
        ("a", "up"),
        ("b", "behind"),
        ("c", "old policy"),
        ("d", "silent"),
        ("bursar://e", "silent"),
    ]
    assert [row["problem"] for row in rows[2:]] == [nodes["c"].problem, "no answer", "refused"]
    assert history.latest is not None
    told = [alert.what for alert in find_alerts(history.latest.reading)]
    assert len(told) == 3 and any("c runs an older policy" in what for what in told)


def test_tenants_come_by_use_since_the_last_sample_not_by_what_they_ever_used() -> None:
    history = make_history(
        make_reading({"old": {"granted": 9000, "refused": 0}, "new": {"granted": 0, "refused": 10}}),
        make_reading({"old": {"granted": 9001, "refused": 0}, "new": {"granted": 50, "refused": 40}}),
    )
    rows, found = list_tenants(history)
    assert [(row["tenant"], row["granted_s"], row["refused_s"]) for row in rows] == [
        ("new", 50.0, 30.0),
        ("old", 1.0, 0.0),
    ]
    assert found == 2
    (resource,) = list_resources(history)
    assert (resource["granted_s"], resource["refused_s"], resource["waiting"]) == (51.0, 30.0, 4)


def test_of_very_many_tenants_the_first_are_shown_and_any_can_be_found() -> None:
    tenants = {f"Tenant-{k:05d}": {"granted": k, "refused": 0} for k in range(20_000)}
    later = {name: {**row, "granted": 2 * row["granted"]} for name, row in tenants.items()}
    history = make_history(make_reading(tenants), make_reading(later))
    rows, found = list_tenants(history)
    assert (len(rows), found) == (50, 20_000)
    assert [row["tenant"] for row in rows[:2]] == ["Tenant-19999", "Tenant-19998"]
    rows, found = list_tenants(history, find="nant-0001")
    assert found == 10 and rows[0]["tenant"] == "Tenant-00019"
    assert list_tenants(history, find="nobody") == ([], 0)


def test_tenants_are_sorted_by_refusals_waits_and_name_too() -> None:
    rows = {
        "a": {"granted": 0, "refused": 0, "waiting": 2},
        "b": {"granted": 0, "refused": 0, "waiting": 3},
        "c": {"granted": 0, "refused": 0, "waiting": 0},
    }
    later = {**rows, "a": {**rows["a"], "refused": 1}, "c": {**rows["c"], "granted": 5, "refused": 2}}
    history = make_history(make_reading(rows), make_reading(later))
    orders = {
        sort: "".join(row["tenant"] for row in list_tenants(history, sort=sort)[0])
        for sort in ("use", "refusals", "waits", "name")
    }
    assert orders == {"use": "cab", "refusals": "cab", "waits": "bac", "name": "abc"}


def test_who_waits_for_a_claim_is_counted_from_its_queue() -> None:
    queue = {"1": {"tenant": "ops"}, "2": {"tenant": "ops"}}
    history = make_history(make_reading({"ops": {"granted": 1, "refused": 0}}, queue=queue))
    ((row,), _) = list_tenants(history)
    assert row["waiting"] == 2 and row["granted_s"] is None, "there is one sample only"


def test_each_node_has_its_part_and_one_that_began_again_is_not_negative() -> None:
    def read(a: int, b: int) -> Reading:
        totals = {"a": {"x": Total(True, 1, a, 0)}, "b": {"x": Total(False, 0, b, 0)}}
        return Reading({"x": "rate"}, {"x": {"tenants": {}}}, totals=totals)

    history = make_history(read(10, 100), read(17, 3))
    assert [(row["node"], row["granted_s"], row["ready"]) for row in list_parts(history)] == [
        ("a", 7.0, True),
        ("b", None, False),
    ]
    assert list_resources(history)[0]["ready"] == "1 of 2"


def test_before_the_first_sample_the_tables_are_empty() -> None:
    history = History()
    assert (list_nodes(history), list_resources(history), list_parts(history)) == ([], [], [])
    assert list_tenants(history) == ([], 0)
