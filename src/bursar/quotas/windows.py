"""Windows: a quota a month is an account a month ("llm/acme@2026-11").

Which window it is, each node reads off its own wall clock, in UTC. A node whose clock is off charges
the neighbouring window for as long; neither window's account can be overspent by that.

Accounts of windows that are over everywhere are forgotten, but for the last one's. The names of one
kind of window sort by time and have one length, which no other kind's have; the oldest that is kept is
the *horizon*, in the store. No account before it is ever opened again, so a wrong clock can at worst
make a node refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

from bursar.world import SECOND_NS

Window = Literal["none", "hour", "day", "week", "month"]


def window_of(window: Window, wall_ns: int) -> tuple[str, int | None]:
    """The window's name ("" for none), and the wall time at which it ends."""
    if window == "none":
        return "", None
    now = datetime.fromtimestamp(wall_ns // SECOND_NS, UTC)
    name, end = _WINDOWS[window](now)
    return name, int(end.timestamp()) * SECOND_NS


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


_WINDOWS = {"hour": _hour, "day": _day, "week": _week, "month": _month}


def is_over(account: str, horizon: str) -> bool:
    """Whether the account is of a window that was forgotten."""
    window = account.rpartition("@")[2] if "@" in account else ""
    return len(window) == len(horizon) and window < horizon


def find_horizon(accounts: Iterable[str], present: str) -> str:
    """The window before the present one of which there are accounts, or else the present one."""
    windows = {account.rpartition("@")[2] for account in accounts if is_over(account, present)}
    return max(windows, default=present)


def account_name(tenant: str, window: str) -> str:
    """The account of a tenant in a window: "acme/search@2026-11"."""
    return f"{tenant}@{window}" if window else tenant
