"""Windows: a quota a month is an account a month ("llm/acme@2026-11").

Which window it is, each node reads off its own wall clock, in the time zone of the policy. A node whose
clock is off, or whose zone data are of another version, charges the neighbouring window for as long; neither
window's account can be overspent by that. Days, weeks, months and years are named by the local date at which
they begin, which no two share; hours, of which a zone repeats one each autumn, are those of UTC.

Accounts of windows that are over everywhere are forgotten, but for the last one's, and not before some
time has passed by a clock that cannot be set (`watch`). The names of one kind of window sort by time and
have one length, which no other kind's have; the oldest that is kept is that kind's *horizon*, in the store.
No account before it is opened again, so a wrong clock can at worst make a node refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from bursar.world import SECOND_NS

Window = Literal["none", "hour", "day", "week", "month", "year"]


def window_of(window: Window, wall_ns: int, zone: str = "UTC") -> tuple[str, int | None]:
    """The window's name ("" for none), and the wall time at which it ends."""
    if window == "none":
        return "", None
    place = ZoneInfo("UTC" if window == "hour" else zone)
    now = datetime.fromtimestamp(wall_ns // SECOND_NS, place).replace(tzinfo=None)
    name, end = _WINDOWS[window](now)
    # A midnight that the zone leaves out is the moment at which it does so; of two, the first counts.
    return name, int(end.replace(tzinfo=place, fold=0).timestamp()) * SECOND_NS


def _hour(now: datetime) -> tuple[str, datetime]:
    begin = now.replace(minute=0, second=0, microsecond=0)
    return begin.strftime("%Y-%m-%dT%H"), begin + timedelta(hours=1)


def _day(now: datetime) -> tuple[str, datetime]:
    begin = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return begin.strftime("%Y-%m-%d"), begin + timedelta(days=1)


def _week(now: datetime) -> tuple[str, datetime]:
    """ISO weeks, from Monday."""
    begin = _day(now)[1] - timedelta(days=now.isoweekday())
    return begin.strftime("%G-W%V"), begin + timedelta(weeks=1)


def _month(now: datetime) -> tuple[str, datetime]:
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return begin.strftime("%Y-%m"), (begin + timedelta(days=32)).replace(day=1)


def _year(now: datetime) -> tuple[str, datetime]:
    begin = now.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    return begin.strftime("%Y"), begin.replace(year=begin.year + 1)


_NAMED = re.compile(r"@(\d{4}(?:-(?:W\d\d|\d\d(?:-\d\d(?:T\d\d)?)?))?)$")

_WINDOWS: dict[Window, Callable[[datetime], tuple[str, datetime]]] = {
    "hour": _hour,
    "day": _day,
    "week": _week,
    "month": _month,
    "year": _year,
}


def is_over(account: str, horizons: str) -> bool:
    """Whether the account is of a window that was forgotten: before the horizon of its kind."""
    if not horizons:  # as long as no window was forgotten; every message is asked about
        return False
    window = _find_window(account)
    return any(len(window) == len(horizon) and window < horizon for horizon in horizons.split())


def _find_window(account: str) -> str:
    """ "" for an account without one: tenants' names may have a "@" too."""
    found = _NAMED.search(account)
    return found[1] if found else ""


def find_horizon(accounts: Iterable[str], present: str, wall_ns: int, zone: str = "UTC") -> str:
    """The window before the present one of which there are accounts, or else the present one; and, where
    there are accounts of other kinds of window (the policy had them once), what those would be in now."""
    windows = {_find_window(account) for account in accounts} - {""}
    own = max((window for window in windows if is_over(f"@{window}", present)), default=present)
    lengths = {len(window) for window in windows} - {len(present)}
    others = [window_of(kind, wall_ns, zone)[0] for kind in _WINDOWS]
    return " ".join([own, *(other for other in others if len(other) in lengths)])


def is_later(horizon: str, other: str) -> bool:
    """Whether one of its windows begins after the other's of that kind."""
    return any(is_over(f"@{window}", horizon) for window in other.split())


def name_account(given: str, window: str) -> str:
    """The account that is meant by a tenant, or by the account's own name."""
    return given if window and _find_window(given) else account_name(given, window)


def add_horizon(horizons: str, more: str) -> str:
    """The latest of each kind of window."""
    latest = {len(horizon): horizon for horizon in sorted([*horizons.split(), *more.split()])}
    return " ".join(latest.values())


def account_name(tenant: str, window: str) -> str:
    """The account of a tenant in a window: "acme/search@2026-11"."""
    return f"{tenant}@{window}" if window else tenant


def tenant_of(account: str, window: str) -> str:
    """Whose account it is, if it is of that window; else ""."""
    if window:
        tenant, _, found = account.rpartition("@")
        return tenant if found == window else ""
    return "" if _find_window(account) else account
