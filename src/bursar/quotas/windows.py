"""Windows: a quota a month is an account a month ("llm/acme@2026-11-01..2026-12-01").

A window is a begin and an end in UTC, which are its name. The first node that opens a tenant's account works
them out from its own wall clock, the policy's time zone and the tenant's anchor, and writes them into the
tenant's record in the store; the others read them there. So nodes whose zone data are of two versions charge
the same window, and no two windows of a tenant overlap: one that was worked out is cut off where a recorded
one begins or ends (`fit`). A zone or an anchor that changes therefore counts from the end of the window that
runs, and a wall clock that jumps finds the windows that there are.

Days, weeks, months and years begin at midnight in the zone; from an anchor ("2026-03-31") weeks begin on its
day of the week, months and years on its day, or on the last where a month has fewer. Hours, of which a zone
repeats one each autumn, are those of UTC.

Accounts of windows that are over everywhere are forgotten, but for the last one's, and not before some
time has passed by a clock that cannot be set (`watch`): those that ended by the *horizon*, a wall time that
the store keeps. None of them is opened again, so a wrong clock can at worst make a node refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from bursar.world import SECOND_NS

Kind = Literal["none", "hour", "day", "week", "month", "year"]

CALENDAR = date(2001, 1, 1)
"""The anchor of who has none: a Monday, the first of a month and of a year."""


class Window(NamedTuple):
    """From a moment to another, in seconds since 1970."""

    begin_s: int
    end_s: int

    def holds(self, wall_ns: int) -> bool:
        return self.begin_s <= wall_ns // SECOND_NS < self.end_s

    def __str__(self) -> str:
        return _write(self.begin_s, self.end_s)


@lru_cache(maxsize=4096)
def _write(begin_s: int, end_s: int) -> str:
    return f"{write_moment(begin_s)}..{write_moment(end_s)}"


def write_moment(moment_s: int) -> str:
    """ "2026-11-01", or with a time where it is not midnight in UTC."""
    text = datetime.fromtimestamp(moment_s, UTC).isoformat()[:19]
    return text.removesuffix("T00:00:00").removesuffix(":00")


# -- the calendar


def window_of(kind: Kind, wall_ns: int, zone: str = "UTC", anchor: date | None = None) -> Window | None:
    """The one that it is by the calendar; None where there are none."""
    if kind == "none":
        return None
    place = ZoneInfo("UTC" if kind == "hour" else zone)
    now = datetime.fromtimestamp(wall_ns // SECOND_NS, place).replace(tzinfo=None)
    begin, end = _WINDOWS[kind](now, anchor or CALENDAR)
    return Window(_find_moment(begin, place), _find_moment(end, place))


def _find_moment(local: datetime, place: ZoneInfo) -> int:
    """A midnight that the zone leaves out is the moment at which it does so; of two, the first counts."""
    return int(local.replace(tzinfo=place, fold=0).timestamp())


def _hour(now: datetime, anchor: date) -> tuple[datetime, datetime]:
    begin = now.replace(minute=0, second=0, microsecond=0)
    return begin, begin + timedelta(hours=1)


def _day(now: datetime, anchor: date) -> tuple[datetime, datetime]:
    begin = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return begin, begin + timedelta(days=1)


def _week(now: datetime, anchor: date) -> tuple[datetime, datetime]:
    begin = _day(now, anchor)[0] - timedelta(days=(now.weekday() - anchor.weekday()) % 7)
    return begin, begin + timedelta(weeks=1)


def _month(now: datetime, anchor: date) -> tuple[datetime, datetime]:
    number = now.year * 12 + now.month - 1
    if now < _clamp(number, anchor.day):
        number -= 1
    return _clamp(number, anchor.day), _clamp(number + 1, anchor.day)


def _year(now: datetime, anchor: date) -> tuple[datetime, datetime]:
    number = now.year * 12 + anchor.month - 1
    if now < _clamp(number, anchor.day):
        number -= 12
    return _clamp(number, anchor.day), _clamp(number + 12, anchor.day)


def _clamp(month: int, day: int) -> datetime:
    """That day of a month, counted from the year 0; the last where it has fewer."""
    first = datetime(month // 12, month % 12 + 1, 1)
    days = (first + timedelta(days=31)).replace(day=1) - first
    return first + min(timedelta(days=day), days) - timedelta(days=1)


_WINDOWS: dict[Kind, Callable[[datetime, date], tuple[datetime, datetime]]] = {
    "hour": _hour,
    "day": _day,
    "week": _week,
    "month": _month,
    "year": _year,
}


def fit(window: Window, known: Iterable[Window], wall_ns: int) -> Window:
    """The window that it is, where the tenant has the known ones: the one of them that runs, else what they
    leave of the calendar's."""
    now_s = wall_ns // SECOND_NS
    begin_s, end_s = window
    for each in known:
        if each.begin_s <= now_s < each.end_s:
            return each
        if each.end_s <= now_s:
            begin_s = max(begin_s, each.end_s)
        else:
            end_s = min(end_s, each.begin_s)
    return Window(begin_s, end_s)


# -- accounts

_NAMED = re.compile(r"@(\d{4}-[\dT:-]+\.\.\d{4}-[\dT:-]+)$")
_BEGUN = re.compile(r"@(\d{4}-\d\d-\d\d[\dT:]*)$")


def account_name(tenant: str, window: Window | None) -> str:
    """The account of a tenant in a window: "acme/search@2026-11-01..2026-12-01"."""
    return tenant if window is None else f"{tenant}@{window}"


def split_account(account: str) -> tuple[str, Window | None]:
    """(tenant, window) of an account; tenants' names may have a "@" too."""
    found = _NAMED.search(account)
    window = _read(found[1]) if found else None
    return (account, None) if window is None or found is None else (account[: found.start()], window)


def split_begin(given: str) -> tuple[str, int | None]:
    """(tenant, begin) where only the begin of the window was said: "acme@2026-11-01"."""
    found = _BEGUN.search(given)
    begin_s = read_moment(found[1]) if found else None
    return (given, None) if begin_s is None or found is None else (given[: found.start()], begin_s)


def is_over(account: str, horizon_s: int) -> bool:
    """Whether the account is of a window that was forgotten: it ended by the horizon."""
    if not horizon_s:  # as long as no window was forgotten; every message is asked about
        return False
    window = split_account(account)[1]
    return window is not None and window.end_s <= horizon_s


def find_horizon(find: Callable[[int], Window | None], wall_ns: int) -> int:
    """Windows that ended by then may be forgotten: the one that runs (`find` tells it) and the last stay."""
    window = find(wall_ns)
    before = find((window.begin_s - 1) * SECOND_NS) if window is not None else None
    return wall_ns // SECOND_NS if before is None else before.begin_s  # (the policy had windows once)


@lru_cache(maxsize=4096)
def _read(name: str) -> Window | None:
    begin, _, end = name.partition("..")
    begin_s, end_s = read_moment(begin), read_moment(end)
    return None if begin_s is None or end_s is None or begin_s >= end_s else Window(begin_s, end_s)


def read_moment(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None
