"""Which window it is, and when it ends: a table of dates, and every hour of some years."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from quota_town import Town

from bursar.errors import PolicyError
from bursar.policy import parse
from bursar.quotas.windows import Window, window_of
from bursar.world import SECOND_NS

BERLIN, NEW_YORK, HAVANA = "Europe/Berlin", "America/New_York", "America/Havana"

TABLE = """
UTC               hour   2026-11-18T14:59:59  2026-11-18T14  2026-11-18T15:00
UTC               hour   2026-12-31T23:00:00  2026-12-31T23  2027-01-01T00:00
UTC               day    2026-11-18T00:00:00  2026-11-18     2026-11-19T00:00
UTC               day    2028-02-28T12:00:00  2028-02-28     2028-02-29T00:00
UTC               day    2028-02-29T12:00:00  2028-02-29     2028-03-01T00:00
UTC               day    2027-02-28T23:59:59  2027-02-28     2027-03-01T00:00
UTC               week   2026-11-15T23:59:59  2026-W46       2026-11-16T00:00
UTC               week   2026-11-16T00:00:00  2026-W47       2026-11-23T00:00
UTC               week   2027-01-03T12:00:00  2026-W53       2027-01-04T00:00
UTC               week   2024-12-30T00:00:00  2025-W01       2025-01-06T00:00
UTC               month  2026-01-31T23:59:59  2026-01        2026-02-01T00:00
UTC               month  2028-02-29T23:59:59  2028-02        2028-03-01T00:00
UTC               month  2100-02-28T23:59:59  2100-02        2100-03-01T00:00
UTC               month  2026-12-31T23:59:59  2026-12        2027-01-01T00:00
UTC               year   2026-01-01T00:00:00  2026           2027-01-01T00:00
UTC               year   2028-12-31T23:59:59  2028           2029-01-01T00:00
Europe/Berlin     hour   2026-10-25T00:30:00  2026-10-25T00  2026-10-25T01:00
Europe/Berlin     hour   2026-10-25T01:30:00  2026-10-25T01  2026-10-25T02:00
Europe/Berlin     hour   2026-03-29T00:59:59  2026-03-29T00  2026-03-29T01:00
Europe/Berlin     day    2026-01-15T22:59:59  2026-01-15     2026-01-15T23:00
Europe/Berlin     day    2026-01-15T23:00:00  2026-01-16     2026-01-16T23:00
Europe/Berlin     day    2026-03-28T23:00:00  2026-03-29     2026-03-29T22:00
Europe/Berlin     day    2026-03-29T21:59:59  2026-03-29     2026-03-29T22:00
Europe/Berlin     day    2026-10-24T22:00:00  2026-10-25     2026-10-25T23:00
Europe/Berlin     day    2026-10-25T22:59:59  2026-10-25     2026-10-25T23:00
Europe/Berlin     week   2026-03-29T21:59:59  2026-W13       2026-03-29T22:00
Europe/Berlin     week   2026-03-29T22:00:00  2026-W14       2026-04-05T22:00
Europe/Berlin     week   2026-10-25T22:30:00  2026-W43       2026-10-25T23:00
Europe/Berlin     month  2026-03-01T00:00:00  2026-03        2026-03-31T22:00
Europe/Berlin     month  2026-10-31T22:59:59  2026-10        2026-10-31T23:00
Europe/Berlin     month  2026-06-30T22:00:00  2026-07        2026-07-31T22:00
Europe/Berlin     month  2028-02-29T23:00:00  2028-03        2028-03-31T22:00
Europe/Berlin     year   2026-12-31T22:59:59  2026           2026-12-31T23:00
Europe/Berlin     year   2026-12-31T23:00:00  2027           2027-12-31T23:00
America/New_York  day    2026-03-08T05:00:00  2026-03-08     2026-03-09T04:00
America/New_York  day    2026-11-01T04:00:00  2026-11-01     2026-11-02T05:00
America/New_York  day    2026-11-18T03:00:00  2026-11-17     2026-11-18T05:00
America/New_York  week   2026-11-02T04:59:59  2026-W44       2026-11-02T05:00
America/New_York  month  2026-11-01T03:59:59  2026-10        2026-11-01T04:00
America/New_York  month  2026-11-01T04:00:00  2026-11        2026-12-01T05:00
America/New_York  month  2026-03-31T12:00:00  2026-03        2026-04-01T04:00
America/New_York  year   2027-01-01T04:59:59  2026           2027-01-01T05:00
America/Havana    day    2026-03-08T04:59:59  2026-03-07     2026-03-08T05:00
America/Havana    day    2026-03-08T05:00:00  2026-03-08     2026-03-09T04:00
America/Havana    day    2026-11-01T04:00:00  2026-11-01     2026-11-02T05:00
America/Havana    day    2026-11-01T05:30:00  2026-11-01     2026-11-02T05:00
America/Havana    month  2026-11-01T03:59:59  2026-10        2026-11-01T04:00
America/Sao_Paulo day    2018-11-04T02:59:59  2018-11-03     2018-11-04T03:00
America/Sao_Paulo day    2018-11-04T03:00:00  2018-11-04     2018-11-05T02:00
America/Sao_Paulo day    2018-02-18T02:30:00  2018-02-17     2018-02-18T03:00
Africa/Cairo      day    2024-04-25T21:59:59  2024-04-25     2024-04-25T22:00
Africa/Cairo      day    2024-04-25T22:00:00  2024-04-26     2024-04-26T21:00
Asia/Kolkata      day    2026-11-17T18:29:59  2026-11-17     2026-11-17T18:30
Asia/Kolkata      month  2026-11-30T18:30:00  2026-12        2026-12-31T18:30
Asia/Kathmandu    day    2026-11-17T18:15:00  2026-11-18     2026-11-18T18:15
Asia/Kathmandu    hour   2026-11-17T18:15:00  2026-11-17T18  2026-11-17T19:00
Australia/Lord_Howe day  2026-04-04T13:00:00  2026-04-05     2026-04-05T13:30
Pacific/Auckland  month  2026-12-31T10:59:59  2026-12        2026-12-31T11:00
Pacific/Kiritimati year  2026-12-31T10:00:00  2027           2027-12-31T10:00
Pacific/Apia      day    2011-12-30T09:59:59  2011-12-29     2011-12-30T10:00
Pacific/Apia      day    2011-12-30T10:00:00  2011-12-31     2011-12-31T10:00
Pacific/Apia      month  2011-12-30T10:00:00  2011-12        2011-12-31T10:00
Europe/Dublin     month  2026-03-31T22:59:59  2026-03        2026-03-31T23:00
Africa/Casablanca month  2026-11-30T22:59:59  2026-11        2026-11-30T23:00
"""
ROWS = [tuple(line.split()) for line in TABLE.strip().splitlines()]


def wall(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


@pytest.mark.parametrize(("zone", "kind", "now", "name", "end"), ROWS)
def test_a_moment_is_in_the_window_that_the_calendar_of_the_zone_says(
    zone: str, kind: Window, now: str, name: str, end: str
) -> None:
    assert window_of(kind, wall(now), zone) == (name, wall(end))


def test_the_table_has_sixty_dates() -> None:
    assert len(ROWS) >= 60


@pytest.mark.parametrize("zone", ["UTC", BERLIN, NEW_YORK, HAVANA, "Africa/Cairo", "Australia/Lord_Howe"])
@pytest.mark.parametrize("kind", ["hour", "day", "week", "month", "year"])
def test_windows_follow_one_another_without_a_gap_and_their_names_rise(kind: Window, zone: str) -> None:
    """Whatever the wall clock says, a moment belongs to one window, and no name comes twice."""
    now, before, seen = wall("2026-02-01T00:00:00"), "", 0
    until = wall("2026-05-20T00:00:00" if kind in ("hour", "day") else "2031-01-01T00:00:00")
    while now < until:
        name, end = window_of(kind, now, zone)
        assert end is not None and end > now and name > before and (not before or len(name) == len(before))
        assert window_of(kind, end - 1, zone) == window_of(kind, (now + end) // 2, zone) == (name, end)
        now, before, seen = end, name, seen + 1
    assert seen >= 4


def write(keys: str) -> str:
    return f'[resource.llm]\nkind = "quota"\n{keys}\n[resource.llm.tenant]\nacme = {{ limit = 10 }}\n'


def test_a_policy_names_its_zone() -> None:
    policy = parse(write('window = "year"\nzone = "Europe/Berlin"')).resource("llm")
    assert (policy.window, policy.zone) == ("year", BERLIN)
    with pytest.raises(PolicyError, match=re.escape('knows no time zone "Europe/Berln"')):
        parse(write('window = "day"\nzone = "Europe/Berln"'))
    with pytest.raises(PolicyError, match="time zone"):
        parse(write('window = "day"\nzone = "../../etc/passwd"'))


async def test_a_node_charges_the_window_of_its_zone(tmp_path: Path) -> None:
    town = Town(tmp_path)
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):  # a day and an hour apart
        llm = await town.open("a", window="day", zone=zone)
        await llm.acquire("acme", 10, wait=5.0)
        account = f"acme@{window_of('day', llm.courier.world.clock.wall(), zone)[0]}"
        assert llm.courier.book.ledger.accounts[account].held == 10
        await town.close("a")
