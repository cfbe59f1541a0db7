"""Metrics: what statistics declare becomes Prometheus text, however many tenants there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import pytest

from bursar.errors import UsageError
from bursar.resource.statistics import (
    Statistics,
    Tally,
    WaitCounter,
    Waited,
    counter,
    gauge,
    histogram,
    labelled,
)
from bursar.runtime.exposition import Exposition
from bursar.runtime.metrics import ROWS, ResourceMetrics
from bursar.runtime.outlines import outline

from .promtool import check_with_promtool
from .watched import Figures, PlaceFigures, ServerFigures, TenantFigures, rows


class Inner(msgspec.Struct):
    wait_ms: Annotated[float, gauge("how long")]


class Outer(msgspec.Struct):
    rounds_total: Annotated[int, counter("rounds")]
    inner: Inner
    waited: Annotated[Waited, histogram("waits", "seconds")]


class Account(msgspec.Struct):
    spent: Annotated[int, gauge("spent")]


class Whole(msgspec.Struct):
    whole: Annotated[Mapping[str, Account], labelled("account")]


def make_statistics(tenants: dict[str, Tally] | None = None, part: Any = None, **changes: Any) -> Statistics:
    settings: dict[str, Any] = {
        "resource": "cache",
        "kind": "rate",
        "shadow": False,
        "without_bursar": "keep",
        "ready": True,
        "waiting": 3,
        "ahead": 0,
        "tenants": tenants or {},
        "waited": Waited(),
        "part": part,
    }
    return Statistics(**settings | changes)


def scrape(metrics: ResourceMetrics, statistics: Statistics) -> str:
    text = Exposition()
    for _ in metrics.export(text, statistics):
        pass
    return b"".join(text.write()).decode()


def export(statistics: Statistics, tenants_most: int = 1000) -> str:
    return scrape(ResourceMetrics(tenants_most), statistics)


def read(text: str, name: str) -> dict[str, float]:
    """The samples of a metric by the value of their last label."""
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return {line.rpartition('="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_what_the_door_counts_is_named_and_labelled() -> None:
    text = export(make_statistics({"acme": Tally(granted=5, granted_requests=2)}))
    both = 'resource="cache",kind="rate"'
    for line in (
        "# HELP bursar_tenant_granted_total tokens granted",
        "# TYPE bursar_tenant_granted_total counter",
        f'bursar_tenant_granted_total{{{both},tenant="acme"}} 5',
        f'bursar_tenant_granted_requests_total{{{both},tenant="acme"}} 2',
        f'bursar_tenant_refused_total{{{both},tenant="acme"}} 0',
        "# TYPE bursar_waiting gauge",
        f"bursar_waiting{{{both}}} 3",
        f"bursar_ready{{{both}}} 1",
        f"bursar_shadow{{{both}}} 0",
        f'bursar_policy_info{{{both},without_bursar="keep"}} 1',
    ):
        assert line in text.splitlines()


def test_what_the_kind_says_is_named_after_it_in_base_units() -> None:
    cell = PlaceFigures(used=4)
    part = Figures(
        moved=7,
        steps={"solve": 3},
        tenants=rows({"acme": TenantFigures(limit=100, lasts_s=1.5), "globex": TenantFigures(served=2)}),
        servers={"a": ServerFigures(backend="memcached://a", tenants=rows({"acme": cell}))},
        problems=("not a number",),
    )
    lines = export(make_statistics(part=part)).splitlines()
    both = 'resource="cache",kind="rate"'
    for line in (
        f"bursar_rate_leading{{{both}}} 1",
        f"bursar_rate_interval_seconds{{{both}}} 0.2",
        f"bursar_rate_moved_bytes_total{{{both}}} 7",
        f'bursar_rate_info{{{both},window="2026-11"}} 1',
        f'bursar_rate_steps_total{{{both},step="solve"}} 3',
        f'bursar_rate_tenant_limit{{{both},tenant="acme"}} 100',
        f'bursar_rate_tenant_served_total{{{both},tenant="globex"}} 2',
        f'bursar_rate_tenant_lasts_seconds{{{both},tenant="acme"}} 1.5',
        f'bursar_rate_server_alone{{{both},server="a"}} 0',
        f'bursar_rate_server_info{{{both},server="a",backend="memcached://a"}} 1',
        f'bursar_rate_server_tenant_used_total{{{both},server="a",tenant="acme"}} 4',
    ):
        assert line in lines
    assert not any("limit" in line and "globex" in line for line in lines), "none is no number"
    assert not any("problem" in line for line in lines)


def test_no_name_has_a_tenant_or_a_window_in_it() -> None:
    part = Figures(tenants={"acme": TenantFigures()}, servers={"srv": ServerFigures()})
    text = export(make_statistics({"acme": Tally()}, part))
    names = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert not any(word in name for name in names for word in ("acme", "srv", "cache", "2026"))


def test_waits_are_a_histogram_that_adds_up() -> None:
    counted = WaitCounter()
    counted.add(0.0005, requests=4)
    counted.add(0.2)
    counted.add(60)
    text = export(make_statistics(waited=counted.read()))
    assert "# TYPE bursar_waited_seconds histogram" in text
    found = read(text, "bursar_waited_seconds_bucket")
    assert (found["0.001"], found["0.1"], found["0.25"], found["10.0"], found["+Inf"]) == (4, 4, 5, 5, 6)
    assert 'bursar_waited_seconds_count{resource="cache",kind="rate"} 6' in text
    assert 'bursar_waited_seconds_sum{resource="cache",kind="rate"} 60.202' in text


def test_a_name_cannot_break_out_of_its_label() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    odd = 'a"} 1\nbursar_forged_total 9\\'
    text = export(make_statistics({odd: Tally(granted=5), "straße 🪙": Tally(granted=6)}))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert "bursar_forged" not in families
    found = {sample.labels["tenant"]: sample.value for sample in families["bursar_tenant_granted"].samples}
    assert found == {odd: 5, "straße 🪙": 6}


def test_every_line_of_a_metric_stands_with_the_others() -> None:
    part = Figures(tenants=rows({f"t{n}": TenantFigures() for n in range(3 * ROWS)}))
    text = export(make_statistics({f"t{n}": Tally() for n in range(3 * ROWS)}, part))
    names = [line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")]
    changes = [after for before, after in zip(["", *names], names, strict=False) if after != before]
    assert len(changes) == len(set(changes))


def test_numbers_are_written_as_prometheus_reads_them() -> None:
    text = Exposition()
    for value in (True, 2**63, 0.1, float("inf"), float("-inf"), float("nan")):
        text.add("x", "gauge", "x", {}, value)
    lines = b"".join(text.write()).decode().splitlines()[2:]
    assert lines == ["x 1", "x 9223372036854775808", "x 0.1", "x +Inf", "x -Inf", "x NaN"]


def test_a_field_that_does_not_say_what_it_is_is_a_mistake() -> None:
    class Undeclared(msgspec.Struct):
        count: int

    with pytest.raises(UsageError, match=r"Undeclared\.count"):
        outline(Undeclared)


def test_any_struct_can_be_exported() -> None:
    text = Exposition()
    outer = Outer(3, Inner(5.0), Waited())
    for _ in ResourceMetrics(10).export_struct(text, "bursar_envoy", {"resource": "cache"}, outer, {}):
        pass
    lines = b"".join(text.write()).decode().splitlines()
    assert 'bursar_envoy_rounds_total{resource="cache"} 3' in lines
    assert 'bursar_envoy_inner_wait_seconds{resource="cache"} 0.005' in lines


# -- very many tenants


def granted(text: str) -> dict[str, float]:
    return read(text, "bursar_tenant_granted_total")


def test_the_largest_tenants_have_labels_and_the_rest_are_summed() -> None:
    tenants = {f"t{n}": Tally(granted=n, refused=1) for n in range(10)}
    part = Figures(tenants=rows({name: TenantFigures(limit=10, served=2, lasts_s=9.0) for name in tenants}))
    text = export(make_statistics(tenants, part), tenants_most=3)
    assert granted(text) == {"t9": 9, "t8": 8, "t7": 7, "other": 21}
    assert read(text, "bursar_tenant_refused_total")["other"] == 7
    assert read(text, "bursar_rate_tenant_served_total") == {"t9": 2, "t8": 2, "t7": 2, "other": 14}
    assert read(text, "bursar_rate_tenant_limit")["other"] == 70
    assert "other" not in read(text, "bursar_rate_tenant_lasts_seconds"), "times do not add up"


def test_who_has_a_label_keeps_it() -> None:
    metrics = ResourceMetrics(2)
    first = {"a": Tally(granted=5), "b": Tally(granted=4), "c": Tally(granted=3)}
    assert granted(scrape(metrics, make_statistics(first))) == {"a": 5, "b": 4, "other": 3}
    later = first | {"c": Tally(granted=1000), "d": Tally(granted=7)}
    assert granted(scrape(metrics, make_statistics(later))) == {"a": 5, "b": 4, "other": 1007}


def test_labels_wait_for_those_who_use_something() -> None:
    """At the start nobody has been granted anything: nobody idle takes a label for good."""
    metrics = ResourceMetrics(1)
    idle = {"a": Tally(), "b": Tally()}
    assert granted(scrape(metrics, make_statistics(idle))) == {"other": 0}
    assert granted(scrape(metrics, make_statistics(idle | {"b": Tally(granted=9)}))) == {"other": 0, "b": 9}


@pytest.mark.parametrize("gone", ["away", "begun anew", "given a label"])
def test_the_sum_of_the_rest_never_falls(gone: str) -> None:
    metrics = ResourceMetrics(1)
    tenants = {"big": Tally(granted=100), "b": Tally(granted=40), "c": Tally(granted=3)}
    assert granted(scrape(metrics, make_statistics(tenants)))["other"] == 43
    match gone:
        case "away":
            del tenants["b"]
        case "begun anew":
            tenants["b"] = Tally(granted=1)
        case "given a label":
            del tenants["big"]
    tenants["c"] = Tally(granted=5)
    found = granted(scrape(metrics, make_statistics(tenants)))
    assert found["other"] == {"away": 45, "begun anew": 46, "given a label": 45}[gone]
    assert granted(scrape(metrics, make_statistics(tenants))) == found, "nothing happened since"


def test_a_tenant_called_other_is_part_of_the_sum() -> None:
    tenants = {"other": Tally(granted=20), "a": Tally(granted=5), "b": Tally(granted=1)}
    text = export(make_statistics(tenants), tenants_most=1)
    assert text.count('tenant="other"') == len(Tally.__struct_fields__)
    assert granted(text) == {"a": 5, "other": 21}


def test_accounts_are_as_many_as_the_tenants_that_have_labels() -> None:
    tenants = {"a": Tally(granted=9), "me@home": Tally(granted=8), "c": Tally(granted=1)}
    accounts = {"a@2026-11": Account(1), "me@home": Account(2), "c@2026-11": Account(4), "d": Account(8)}
    text = export(make_statistics(tenants, Whole(accounts), kind="quota"), tenants_most=2)
    assert read(text, "bursar_quota_account_spent") == {"a@2026-11": 1, "me@home": 2, "other": 12}


@pytest.mark.needs("promtool")
def test_promtool_finds_nothing_to_complain_about() -> None:
    part = Figures(
        steps={"solve": 3},
        tenants=rows({f"t{n}": TenantFigures(limit=n or None) for n in range(20)}),
        servers={"a": ServerFigures(tenants=rows({"t1": PlaceFigures(used=1)}))},
    )
    tenants = {f't{n} "\\': Tally(granted=n) for n in range(20)}
    check_with_promtool(export(make_statistics(tenants, part), tenants_most=5))


def test_ten_thousand_tenants_are_exported_in_small_steps() -> None:
    """What bounds the time of a step is how much is done in it: a few rows, whatever there is."""
    names = [f"tenant-{n}" for n in range(10_000)]
    made = 0

    class Counted(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            nonlocal made
            made += 1
            return super().__getitem__(name)

    part = Figures(tenants=rows(Counted({name: TenantFigures() for name in names})))
    text = Exposition()
    most = before = 0
    for _ in ResourceMetrics(10_000).export(text, make_statistics({name: Tally() for name in names}, part)):
        most, before = max(most, made - before), made
    assert made == len(names)
    assert most <= ROWS
    assert len(granted(b"".join(text.write()).decode())) == len(names)
