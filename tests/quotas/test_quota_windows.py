"""Which window it is, and when it ends: a table of dates, and every hour of some years."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from quota_town import Quota, Town

from bursar.errors import PolicyError, Refused
from bursar.policy import parse
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas.windows import Kind, Window, fit, split_account, window_of
from bursar.world import SECOND_NS

BERLIN, NEW_YORK, HAVANA = "Europe/Berlin", "America/New_York", "America/Havana"

TABLE = """
UTC                 hour  -           2026-11-18T14:59:59  2026-11-18T14:00  2026-11-18T15:00
UTC                 hour  -           2026-12-31T23:00:00  2026-12-31T23:00  2027-01-01T00:00
UTC                 day   -           2026-11-18T00:00:00  2026-11-18T00:00  2026-11-19T00:00
UTC                 day   -           2028-02-28T12:00:00  2028-02-28T00:00  2028-02-29T00:00
UTC                 day   -           2028-02-29T12:00:00  2028-02-29T00:00  2028-03-01T00:00
UTC                 day   -           2027-02-28T23:59:59  2027-02-28T00:00  2027-03-01T00:00
UTC                 week  -           2026-11-15T23:59:59  2026-11-09T00:00  2026-11-16T00:00
UTC                 week  -           2026-11-16T00:00:00  2026-11-16T00:00  2026-11-23T00:00
UTC                 week  -           2027-01-03T12:00:00  2026-12-28T00:00  2027-01-04T00:00
UTC                 week  -           2024-12-30T00:00:00  2024-12-30T00:00  2025-01-06T00:00
UTC                 month -           2026-01-31T23:59:59  2026-01-01T00:00  2026-02-01T00:00
UTC                 month -           2028-02-29T23:59:59  2028-02-01T00:00  2028-03-01T00:00
UTC                 month -           2100-02-28T23:59:59  2100-02-01T00:00  2100-03-01T00:00
UTC                 month -           2026-12-31T23:59:59  2026-12-01T00:00  2027-01-01T00:00
UTC                 year  -           2026-01-01T00:00:00  2026-01-01T00:00  2027-01-01T00:00
UTC                 year  -           2028-12-31T23:59:59  2028-01-01T00:00  2029-01-01T00:00
Europe/Berlin       hour  -           2026-10-25T00:30:00  2026-10-25T00:00  2026-10-25T01:00
Europe/Berlin       hour  -           2026-10-25T01:30:00  2026-10-25T01:00  2026-10-25T02:00
Europe/Berlin       hour  -           2026-03-29T00:59:59  2026-03-29T00:00  2026-03-29T01:00
Europe/Berlin       day   -           2026-01-15T22:59:59  2026-01-14T23:00  2026-01-15T23:00
Europe/Berlin       day   -           2026-01-15T23:00:00  2026-01-15T23:00  2026-01-16T23:00
Europe/Berlin       day   -           2026-03-28T23:00:00  2026-03-28T23:00  2026-03-29T22:00
Europe/Berlin       day   -           2026-03-29T21:59:59  2026-03-28T23:00  2026-03-29T22:00
Europe/Berlin       day   -           2026-10-24T22:00:00  2026-10-24T22:00  2026-10-25T23:00
Europe/Berlin       day   -           2026-10-25T22:59:59  2026-10-24T22:00  2026-10-25T23:00
Europe/Berlin       week  -           2026-03-29T21:59:59  2026-03-22T23:00  2026-03-29T22:00
Europe/Berlin       week  -           2026-03-29T22:00:00  2026-03-29T22:00  2026-04-05T22:00
Europe/Berlin       week  -           2026-10-25T22:30:00  2026-10-18T22:00  2026-10-25T23:00
Europe/Berlin       month -           2026-03-01T00:00:00  2026-02-28T23:00  2026-03-31T22:00
Europe/Berlin       month -           2026-10-31T22:59:59  2026-09-30T22:00  2026-10-31T23:00
Europe/Berlin       month -           2026-06-30T22:00:00  2026-06-30T22:00  2026-07-31T22:00
Europe/Berlin       month -           2028-02-29T23:00:00  2028-02-29T23:00  2028-03-31T22:00
Europe/Berlin       year  -           2026-12-31T22:59:59  2025-12-31T23:00  2026-12-31T23:00
Europe/Berlin       year  -           2026-12-31T23:00:00  2026-12-31T23:00  2027-12-31T23:00
America/New_York    day   -           2026-03-08T05:00:00  2026-03-08T05:00  2026-03-09T04:00
America/New_York    day   -           2026-11-01T04:00:00  2026-11-01T04:00  2026-11-02T05:00
America/New_York    day   -           2026-11-18T03:00:00  2026-11-17T05:00  2026-11-18T05:00
America/New_York    week  -           2026-11-02T04:59:59  2026-10-26T04:00  2026-11-02T05:00
America/New_York    month -           2026-11-01T03:59:59  2026-10-01T04:00  2026-11-01T04:00
America/New_York    month -           2026-11-01T04:00:00  2026-11-01T04:00  2026-12-01T05:00
America/New_York    month -           2026-03-31T12:00:00  2026-03-01T05:00  2026-04-01T04:00
America/New_York    year  -           2027-01-01T04:59:59  2026-01-01T05:00  2027-01-01T05:00
America/Havana      day   -           2026-03-08T04:59:59  2026-03-07T05:00  2026-03-08T05:00
America/Havana      day   -           2026-03-08T05:00:00  2026-03-08T05:00  2026-03-09T04:00
America/Havana      day   -           2026-11-01T04:00:00  2026-11-01T04:00  2026-11-02T05:00
America/Havana      day   -           2026-11-01T05:30:00  2026-11-01T04:00  2026-11-02T05:00
America/Havana      month -           2026-11-01T03:59:59  2026-10-01T04:00  2026-11-01T04:00
America/Sao_Paulo   day   -           2018-11-04T02:59:59  2018-11-03T03:00  2018-11-04T03:00
America/Sao_Paulo   day   -           2018-11-04T03:00:00  2018-11-04T03:00  2018-11-05T02:00
America/Sao_Paulo   day   -           2018-02-18T02:30:00  2018-02-17T02:00  2018-02-18T03:00
Africa/Cairo        day   -           2024-04-25T21:59:59  2024-04-24T22:00  2024-04-25T22:00
Africa/Cairo        day   -           2024-04-25T22:00:00  2024-04-25T22:00  2024-04-26T21:00
Asia/Kolkata        day   -           2026-11-17T18:29:59  2026-11-16T18:30  2026-11-17T18:30
Asia/Kolkata        month -           2026-11-30T18:30:00  2026-11-30T18:30  2026-12-31T18:30
Asia/Kathmandu      day   -           2026-11-17T18:15:00  2026-11-17T18:15  2026-11-18T18:15
Asia/Kathmandu      hour  -           2026-11-17T18:15:00  2026-11-17T18:00  2026-11-17T19:00
Australia/Lord_Howe day   -           2026-04-04T13:00:00  2026-04-04T13:00  2026-04-05T13:30
Pacific/Auckland    month -           2026-12-31T10:59:59  2026-11-30T11:00  2026-12-31T11:00
Pacific/Kiritimati  year  -           2026-12-31T10:00:00  2026-12-31T10:00  2027-12-31T10:00
Pacific/Apia        day   -           2011-12-30T09:59:59  2011-12-29T10:00  2011-12-30T10:00
Pacific/Apia        day   -           2011-12-30T10:00:00  2011-12-30T10:00  2011-12-31T10:00
Pacific/Apia        month -           2011-12-30T10:00:00  2011-12-01T10:00  2011-12-31T10:00
Europe/Dublin       month -           2026-03-31T22:59:59  2026-03-01T00:00  2026-03-31T23:00
Africa/Casablanca   month -           2026-11-30T22:59:59  2026-10-31T23:00  2026-11-30T23:00
UTC                 month 2026-03-17  2026-03-17T00:00:00  2026-03-17T00:00  2026-04-17T00:00
UTC                 month 2026-03-17  2026-03-16T23:59:59  2026-02-17T00:00  2026-03-17T00:00
UTC                 month 2026-03-17  2026-03-02T12:00:00  2026-02-17T00:00  2026-03-17T00:00
UTC                 month 2026-03-17  2026-12-31T23:59:59  2026-12-17T00:00  2027-01-17T00:00
UTC                 month 2026-01-31  2026-02-27T23:59:59  2026-01-31T00:00  2026-02-28T00:00
UTC                 month 2026-01-31  2026-02-28T00:00:00  2026-02-28T00:00  2026-03-31T00:00
UTC                 month 2026-01-31  2026-03-30T12:00:00  2026-02-28T00:00  2026-03-31T00:00
UTC                 month 2026-01-31  2026-04-30T00:00:00  2026-04-30T00:00  2026-05-31T00:00
UTC                 month 2026-01-31  2028-02-29T12:00:00  2028-02-29T00:00  2028-03-31T00:00
UTC                 month 2026-01-30  2027-02-28T12:00:00  2027-02-28T00:00  2027-03-30T00:00
UTC                 month 2024-02-29  2026-02-28T12:00:00  2026-02-28T00:00  2026-03-29T00:00
UTC                 year  2024-02-29  2026-02-28T00:00:00  2026-02-28T00:00  2027-02-28T00:00
UTC                 year  2024-02-29  2027-12-31T00:00:00  2027-02-28T00:00  2028-02-29T00:00
UTC                 year  2024-02-29  2028-02-29T00:00:00  2028-02-29T00:00  2029-02-28T00:00
UTC                 year  2026-03-17  2026-03-16T23:59:59  2025-03-17T00:00  2026-03-17T00:00
UTC                 week  2026-03-18  2026-11-18T12:00:00  2026-11-18T00:00  2026-11-25T00:00
UTC                 week  2026-03-18  2026-11-17T23:59:59  2026-11-11T00:00  2026-11-18T00:00
Europe/Berlin       month 2026-03-29  2026-03-29T12:00:00  2026-03-28T23:00  2026-04-28T22:00
Europe/Berlin       month 2026-10-25  2026-10-25T12:00:00  2026-10-24T22:00  2026-11-24T23:00
Europe/Berlin       month 2026-08-31  2026-09-29T22:00:00  2026-09-29T22:00  2026-10-30T23:00
Europe/Berlin       week  2026-10-25  2026-10-25T22:59:59  2026-10-24T22:00  2026-10-31T23:00
America/New_York    month 2026-03-08  2026-03-08T06:00:00  2026-03-08T05:00  2026-04-08T04:00
America/Havana      month 2026-11-01  2026-11-01T04:30:00  2026-11-01T04:00  2026-12-01T05:00
Africa/Cairo        month 2024-01-26  2024-04-26T12:00:00  2024-04-25T22:00  2024-05-25T21:00
Pacific/Apia        month 2011-11-30  2011-12-30T10:00:00  2011-12-30T10:00  2012-01-29T10:00
"""
"""Zone, kind, anchor, now; begin and end of the window."""

ROWS = [tuple(line.split()) for line in TABLE.strip().splitlines()]


def wall(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


@pytest.mark.parametrize(("zone", "kind", "anchor", "now", "begin", "end"), ROWS)
def test_a_moment_is_in_the_window_that_the_calendar_of_the_zone_says(
    zone: str, kind: Kind, anchor: str, now: str, begin: str, end: str
) -> None:
    day = None if anchor == "-" else date.fromisoformat(anchor)
    window = window_of(kind, wall(now), zone, day)
    assert window == (wall(begin) // SECOND_NS, wall(end) // SECOND_NS)
    assert split_account(f"joe@163.com@{window}") == ("joe@163.com", window)


def test_the_table_has_sixty_dates_and_anchors() -> None:
    assert len(ROWS) >= 60 and sum(row[2] != "-" for row in ROWS) >= 20


@pytest.mark.parametrize("anchor", [None, date(2024, 2, 29), date(2026, 3, 31)])
@pytest.mark.parametrize("zone", ["UTC", BERLIN, NEW_YORK, HAVANA, "Africa/Cairo", "Australia/Lord_Howe"])
@pytest.mark.parametrize("kind", ["hour", "day", "week", "month", "year"])
def test_windows_follow_one_another_without_a_gap(kind: Kind, zone: str, anchor: date | None) -> None:
    """Whatever the wall clock says, a moment belongs to one window."""
    now, seen = wall("2026-02-01T00:00:00"), 0
    until = wall("2026-05-20T00:00:00" if kind in ("hour", "day") else "2031-01-01T00:00:00")
    before = None
    while now < until:
        window = window_of(kind, now, zone, anchor)
        assert window is not None and window.holds(now)
        assert before is None or window.begin_s == before.end_s
        end = window.end_s * SECOND_NS
        assert window_of(kind, end - 1, zone, anchor) == window_of(kind, (now + end) // 2, zone, anchor)
        now, before, seen = end, window, seen + 1
    assert seen >= 4


JANUARY = Window(wall("2026-01-01T00:00:00") // SECOND_NS, wall("2026-02-01T00:00:00") // SECOND_NS)
HOUR_S = 3600


@pytest.mark.parametrize(
    ("shift_s", "now_s", "begin_s", "end_s"),
    [
        (0, 5, 0, 0),  # what is recorded is what it is
        (HOUR_S, HOUR_S, 0, 0),  # by other zone data it began an hour later: it is the recorded one
        (-HOUR_S, -5, -HOUR_S, None),  # by other zone data it has begun an hour before: until the recorded
    ],
)
def test_what_the_store_has_counts_and_not_what_a_calendar_says(
    shift_s: int, now_s: int, begin_s: int, end_s: int | None
) -> None:
    mine = Window(JANUARY.begin_s + shift_s, JANUARY.end_s + shift_s)
    found = fit(mine, [JANUARY], (JANUARY.begin_s + now_s) * SECOND_NS)
    last = JANUARY.begin_s if end_s is None else JANUARY.end_s + end_s
    assert found == (JANUARY.begin_s + begin_s, last)


def test_a_window_begins_where_the_recorded_one_before_it_ends() -> None:
    """A zone or an anchor that was changed counts from there."""
    now = JANUARY.end_s + 5
    assert fit(Window(now - 10 * HOUR_S, now + HOUR_S), [JANUARY], now * SECOND_NS) == (
        JANUARY.end_s,
        now + HOUR_S,
    )


def write(keys: str) -> str:
    return f'[resource.llm]\nkind = "quota"\n{keys}\n[resource.llm.tenant]\nacme = {{ limit = 10 }}\n'


def test_a_policy_names_its_zone() -> None:
    policy = parse(write('window = "year"\nzone = "Europe/Berlin"')).resource("llm")
    assert (policy.window, policy.zone) == ("year", BERLIN)
    with pytest.raises(PolicyError, match=re.escape('knows no time zone "Europe/Berln"')):
        parse(write('window = "day"\nzone = "Europe/Berln"'))
    with pytest.raises(PolicyError, match="time zone"):
        parse(write('window = "day"\nzone = "../../etc/passwd"'))


def test_a_tenant_names_the_day_that_its_windows_are_counted_from() -> None:
    text = write('window = "month"').replace("limit = 10", "limit = 10, from = 2026-03-31")
    policy = parse(text).resource("llm")
    assert policy.tenants["acme"].anchor == date(2026, 3, 31)
    assert parse(text.replace("2026-03-31", '"2026-03-31"')).resource("llm") == policy
    with pytest.raises(PolicyError, match=r'(?s)tenant.acme.from.*window = "day" does not begin on a day'):
        parse(text.replace('"month"', '"day"'))
    with pytest.raises(PolicyError, match="is no date"):
        parse(text.replace("2026-03-31", '"2026-02-30"'))
    with pytest.raises(PolicyError, match="is not a date"):
        parse(text.replace("2026-03-31", "2026-03-31T10:00:00"))


def set_wall(llm: Quota, moment: str) -> None:
    llm.courier.world.clock.wall = lambda: wall(moment)  # type: ignore[method-assign]


async def use(llm: Quota, moment: str) -> str:
    """Everything the tenant has at that moment; the account."""
    set_wall(llm, moment)
    await (await llm.acquire("acme", 10, wait=5.0)).release()
    return llm.decider.chains.account("acme")


async def refuse(llm: Quota, moment: str) -> None:
    set_wall(llm, moment)
    with pytest.raises(Refused):
        await llm.acquire("acme", 1, wait=5.0)


async def test_a_changed_zone_counts_from_the_end_of_the_window_that_runs(tmp_path: Path) -> None:
    town = Town(tmp_path)
    tenants = {"acme": QuotaTenant(limit=10)}
    llm = await town.open("a", window="day", zone=BERLIN, tenants=tenants)
    assert await use(llm, "2026-11-18T12:00:00") == "acme@2026-11-17T23:00..2026-11-18T23:00"
    await llm.reconfigure(QuotaPolicy(name="llm", window="day", zone=NEW_YORK, tenants=tenants))
    await refuse(llm, "2026-11-18T22:59:59")
    assert await use(llm, "2026-11-18T23:00:00") == "acme@2026-11-18T23:00..2026-11-19T05:00"
    await refuse(llm, "2026-11-19T04:59:59")
    assert await use(llm, "2026-11-19T05:00:00") == "acme@2026-11-19T05:00..2026-11-20T05:00"
    await town.close("a")


async def test_an_anchor_that_is_set_counts_from_the_end_of_the_window_that_runs(tmp_path: Path) -> None:
    town = Town(tmp_path)
    llm = await town.open("a", window="month", tenants={"acme": QuotaTenant(limit=10)})
    assert await use(llm, "2026-11-18T12:00:00") == "acme@2026-11-01..2026-12-01"
    anchored = {"acme": QuotaTenant(limit=10, anchor=date(2026, 3, 31))}
    await llm.reconfigure(QuotaPolicy(name="llm", window="month", tenants=anchored))
    await refuse(llm, "2026-11-30T12:00:00")
    assert await use(llm, "2026-12-01T00:00:00") == "acme@2026-12-01..2026-12-31"
    assert await use(llm, "2026-12-31T00:00:00") == "acme@2026-12-31..2027-01-31"
    await town.close("a")


async def test_nodes_with_zone_data_of_two_versions_charge_one_window(tmp_path: Path) -> None:
    """A zone that moved its clocks, at one node, and has not heard of it, at the other."""
    town = Town(tmp_path)
    settings: dict[str, Any] = {"window": "day", "tenants": {"acme": QuotaTenant(limit=10)}}
    one = await town.open("a", zone=BERLIN, **settings)
    two = await town.open("b", zone="Europe/London", **settings)  # stands for Berlin by the other version
    account = await use(one, "2026-11-17T23:30:00")
    await refuse(two, "2026-11-17T23:30:00")
    assert two.decider.chains.account("acme") == account
    for moment in ("2026-11-18T22:59:59", "2026-11-18T00:00:01"):
        await refuse(two, moment)
    later = await use(two, "2026-11-18T23:00:00")
    assert later == "acme@2026-11-18T23:00..2026-11-19", "by its own calendar, after what was recorded"
    await refuse(one, "2026-11-18T23:59:59")
    for name in ("a", "b"):
        await town.close(name)


async def test_a_wall_clock_that_jumps_never_doubles_a_window(tmp_path: Path) -> None:
    town = Town(tmp_path)
    settings: dict[str, Any] = {"window": "day", "zone": BERLIN, "tenants": {"acme": QuotaTenant(limit=10)}}
    llm = await town.open("a", **settings)
    opened = [await use(llm, f"2026-10-{day}T12:00:00") for day in (24, 26, 25, 23)]
    assert len(set(opened)) == 4
    for _ in range(2):
        for moment in ("25T22:59:59", "24T21:59:59", "22T22:00:00", "26T22:59:59", "24T22:00:00"):
            await refuse(llm, f"2026-10-{moment}")
        await town.close("a")
        llm = await town.open("a", **settings)
    await town.close("a")


async def test_a_hold_belongs_to_the_window_that_it_was_taken_in(tmp_path: Path) -> None:
    town = Town(tmp_path)
    llm = await town.open("a", window="day", tenants={"acme": QuotaTenant(limit=10)})
    set_wall(llm, "2026-11-18T23:59:59")
    grant = await llm.acquire("acme", 10, wait=5.0)
    set_wall(llm, "2026-11-19T00:00:01")
    await (await llm.acquire("acme", 10, wait=5.0)).release()
    await llm.settle(grant.id, 4)
    spent = {name: each.spent for name, each in llm.courier.book.ledger.accounts.items()}
    assert spent == {"acme@2026-11-18..2026-11-19": 4, "acme@2026-11-19..2026-11-20": 10}
    await town.close("a")


async def test_a_node_charges_the_window_of_its_zone(tmp_path: Path) -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):  # a day and an hour apart
        town = Town(tmp_path / zone)
        llm = await town.open("a", window="day", zone=zone)
        await llm.acquire("acme", 10, wait=5.0)
        account = f"acme@{window_of('day', llm.courier.world.clock.wall(), zone)}"
        assert llm.courier.book.ledger.accounts[account].held == 10
        await town.close("a")
