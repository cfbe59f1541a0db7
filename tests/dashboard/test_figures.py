"""What the pages are made of, without a browser: merging, rates, flows, heat maps, alerts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.watched import Figures, PlaceFigures, ServerFigures, TenantFigures, open_watched, watched

from bursar.dashboard import charts
from bursar.dashboard.alerts import find_alerts, find_recent
from bursar.dashboard.history import History
from bursar.dashboard.source import NodesSource, Reading, Total, merge
from bursar.fleet.layout import NodeRecord
from bursar.resource.alerts import Alert
from bursar.resource.statistics import Statistics, Tally, Waited
from bursar.runtime.figures import read_figures
from bursar.runtime.world import open_world

TOLD = Alert(
    name="shadow", severity="warning", resource="x", tenant="acme", what="it was", remedy="look", at_s=5.0
)


def make_statistics(part: Any) -> Statistics:
    return Statistics(
        resource="x",
        kind="rate",
        shadow=False,
        without_bursar="keep",
        ready=True,
        waiting=3,
        ahead=0,
        tenants={"acme": Tally(granted=5), "idle": Tally()},
        waited=Waited(),
        part=part,
        alerts=(TOLD,),
    )


def test_what_the_door_counted_and_what_the_kind_says_stand_side_by_side() -> None:
    part = Figures(
        tenants={"acme": TenantFigures(limit=9, granted=77), "new": TenantFigures()},
        servers={"a": ServerFigures(tenants={"acme": PlaceFigures(used=4)})},
    )
    near = make_statistics(part)
    far = msgspec.json.decode(msgspec.json.encode(near), type=Statistics)
    assert isinstance(far.part, dict), "as it comes from a daemon"
    for statistics in (near, far):
        figures = read_figures(statistics)
        assert (figures["waiting"], figures["leading"], figures["window"]) == (3, True, "2026-11")
        assert (figures["tenants"]["acme"]["granted"], figures["tenants"]["acme"]["limit"]) == (5, 9)
        assert figures["tenants"]["idle"]["granted"] == 0 and "limit" not in figures["tenants"]["idle"]
        assert figures["tenants"]["new"]["limit"] is None
        assert figures["servers"]["a"]["tenants"] == {"acme": {"used": 4}}
        assert "part" not in figures
        assert msgspec.json.decode(msgspec.json.encode(figures)) == figures, "plain values"
    assert read_figures(near) == read_figures(far)


async def test_nodes_of_this_process_are_read_and_missed() -> None:
    world = await open_world("node")
    resource = open_watched(world)
    watched(resource).figures = Figures(tenants={"acme": TenantFigures(shortfall=2)})
    await (await resource.acquire("acme", 5)).release()
    resource.alerts.append(TOLD)

    record = NodeRecord(name="a", incarnation=1, version=3)
    nodes = {"a": SimpleNamespace(resources={"cache": resource}, nodes=lambda: {"a": record})}
    source = NodesSource(lambda: nodes)
    reading = await source.read()
    row = reading.statistics["cache"]["tenants"]["acme"]
    assert (row["granted"], row["shortfall"]) == (5, 2)
    assert find_recent(reading) == [TOLD]
    assert reading.nodes == {"a": record}
    assert reading.totals == {"a": {"cache": Total(ready=True, waiting=0, granted=5, refused=0)}}
    nodes.clear()
    assert (await source.read()).silent == {"a": "the node is down"}
    await world.close()


def rate(leader: bool, servers: dict[str, Any], **tenants: dict[str, int]) -> dict[str, Any]:
    return {"leading": leader, "epoch": 2 if leader else 0, "servers": servers, "tenants": tenants}


def read(statistics: dict[str, Any], kind: str = "rate") -> Reading:
    return Reading({"x": kind}, {"x": statistics})


def test_nodes_of_a_rate_are_joined_counted_once_and_led_by_the_leader() -> None:
    one = rate(True, {"a": {"good": True}}, acme={"limit": 5, "granted": 3, "shortfall": 7})
    two = rate(False, {"b": {"good": True}}, acme={"limit": 5, "granted": 4, "shortfall": 0})
    for found in ([one, two], [two, one]):
        reading = merge([("x", "rate", row) for row in found], {})
        merged = reading.statistics["x"]
        assert set(merged["servers"]) == {"a", "b"}
        assert merged["tenants"]["acme"] == {"limit": 5, "granted": 7, "shortfall": 7}
        assert (merged["leading"], merged["epoch"]) == (True, 2)


def test_merging_changes_nothing_that_the_nodes_gave() -> None:
    one, two = rate(True, {}, acme={"granted": 1}), rate(False, {}, acme={"granted": 2})
    merge([("x", "rate", one), ("x", "rate", two)], {})
    assert one["tenants"]["acme"] == {"granted": 1} and two["tenants"]["acme"] == {"granted": 2}


def test_what_each_node_counts_is_added_up_and_all_must_be_ready() -> None:
    waits = {"bounds_s": [0.1], "counts": [3, 1], "sum_s": 0.5}
    one = {"ready": True, "waiting": 2, "waited": waits, "alerts": [{"at_s": 3.0}], "tenants": {}}
    two = {"ready": False, "waiting": 1, "waited": waits, "alerts": [{"at_s": 1.0}], "tenants": {}}
    merged = merge([("x", "rate", one), ("x", "rate", two)], {}).statistics["x"]
    assert (merged["ready"], merged["waiting"]) == (False, 3)
    assert merged["waited"] == {"bounds_s": [0.1], "counts": [6, 2], "sum_s": 1.0}
    assert [alert["at_s"] for alert in merged["alerts"]] == [1.0, 3.0]


def test_rates_are_made_of_what_was_counted_and_never_negative() -> None:
    history = History()
    for at, granted in ((10.0, 100), (12.0, 150), (13.0, 20)):
        history.add(at, at, read({"tenants": {"acme": {"granted": granted, "would_refuse": granted}}}))
    assert history.rates("x", ("granted",)) == {"acme": [(12_000, 25.0)]}
    assert history.rates("x", ("granted", "would_refuse"))["acme"][0] == (12_000, 50.0)
    assert history.rates("x", ("granted",), ["nobody"]) == {}
    assert history.latest_rates("x", ("granted",)) == {"acme": 25.0}, "the last that is known"


def test_the_past_is_thin_and_bounded_and_the_newest_samples_are_whole() -> None:
    history = History()
    tenants = {f"t{k}": {"granted": k} for k in range(3000)}
    for at in range(200):
        history.add(float(at), float(at), read({"tenants": tenants, "servers": {"a": {"good": True}}}))
    lines = history.rates("x", ("granted",), ["t7"])
    assert len(lines["t7"]) == 99, "300,000 rows of 3,000 tenants are 100 samples"
    assert history.find(200) is history.latest
    recent = history.find(195)
    assert recent is not None and "servers" in recent.reading.statistics["x"]
    assert history.find(150) is None


def test_a_heat_map_has_each_cell_where_it_belongs() -> None:
    cells = {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 4}}
    options = charts.draw_heat(cells, ["x", "y"], "tokens")
    servers, tenants = options["xAxis"]["data"], options["yAxis"]["data"]
    drawn = {(servers[x], tenants[y]): value for x, y, value in options["series"][0]["data"]}
    assert drawn == {(server, tenant): n for server, row in cells.items() for tenant, n in row.items()}


def test_where_there_is_no_limit_the_tokens_are_those_with_priority() -> None:
    servers = {"a": {"tenants": {"x": {"allowance": None, "priority": 9}, "y": {"allowance": 4}}}}
    assert charts.read_tokens(servers, "allowance") == {"a": {"x": 9, "y": 4}}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6)
)
def test_flows_add_up_to_what_each_gives_and_takes(rows: list[tuple[int, int, int]]) -> None:
    """Only balanced exchanges: whatever the others do, the last tenant evens them out."""
    total = [sum(row[k] for row in rows) for k in range(3)]
    evened = [*rows, *[tuple(max(total) - value for value in total)]]
    tenants = {
        f"t{k}": dict(zip(("initial", "redistributed", "tokens"), row, strict=True))
        for k, row in enumerate(evened)
    }
    lent, paid = charts.find_flows(tenants)
    for flows, first, last in ((lent, "initial", "redistributed"), (paid, "redistributed", "tokens")):
        for name, row in tenants.items():
            given = sum(amount for giver, _, amount in flows if giver == name)
            assert given == max(0, row[first] - row[last])
            assert all(amount > 0 for *_, amount in flows)


def test_alerts_name_the_tenant_the_server_and_the_remedy() -> None:
    servers = {"a": {"good": True, "alone": True}, "b": {"good": False, "alone": False}, "c": {"good": True}}
    reading = read(rate(True, servers, acme={"shortfall": 7}, globex={"shortfall": 0}))
    found = find_alerts(reading)
    assert [(alert.severity, alert.resource) for alert in found] == [
        ("error", "x"),
        ("error", "x"),
        ("warning", "x"),
    ]
    text = " ".join(alert.what for alert in found)
    assert "acme" in text and "7 tokens" in text and "globex" not in text
    assert "server a" in text and "server b" in text and "server c" not in text
    assert all(alert.remedy for alert in found)


def test_a_silent_node_and_a_budget_that_runs_out_are_alerts() -> None:
    whole = {"acme": {"limit": 100, "spent": 85, "held": 0, "unspent": 15, "missing": None}}
    reading = Reading({"x": "quota"}, {"x": {"whole": whole, "tenants": {}}}, {"bursar://b": "no answer"})
    silent, budget = find_alerts(reading)
    assert silent.severity == "error" and "bursar://b" in silent.what
    assert budget.severity == "warning" and "85 of 100" in budget.what
    whole["acme"]["spent"] = 79
    assert len(find_alerts(reading)) == 1
    whole["acme"]["missing"] = 4
    assert "misses 4" in find_alerts(reading)[1].what


def test_a_pool_whose_reservations_do_not_fit_and_tenants_that_reserve_too_much_are_alerts() -> None:
    tenants = {"a": {"reservation": 60}, "b": {"reservation": 50}}
    figures = {"capacity": 100, "tenants": tenants, "overreserving": ["b"]}
    short, idle = find_alerts(read(figures, "pool"))
    assert (short.name, short.severity) == ("reservation", "error") and "110" in short.what
    assert (idle.name, idle.severity) == ("", "warning") and "b reserves more" in idle.what
    figures["capacity"] = 110
    assert find_alerts(read(figures, "pool")) == [idle]
    figures["capacity"] = 0
    assert find_alerts(read(figures, "pool")) == [idle], "not known yet"


def test_shadow_mode_and_problems_are_shown_for_every_kind() -> None:
    found = find_alerts(read({"tenants": {}, "shadow": True, "problems": ["no demand"]}, "share"))
    assert [(alert.name, alert.what) for alert in found] == [
        ("", "shadow mode: nobody is refused"),
        ("", "no demand"),
    ]


def test_what_was_told_lately_is_listed_newest_first() -> None:
    told = [msgspec.to_builtins(msgspec.structs.replace(TOLD, at_s=float(at))) for at in (2, 9, 4)]
    reading = Reading({"x": "rate", "y": "rate"}, {"x": {"alerts": told[:2]}, "y": {"alerts": told[2:]}})
    assert [alert.at_s for alert in find_recent(reading)] == [9.0, 4.0, 2.0]


def test_nothing_wrong_is_no_alert() -> None:
    assert find_alerts(read(rate(True, {"a": {"good": True, "alone": False}}, acme={"shortfall": 0}))) == []
