"""Usage and balances: what is asked of the history and of all nodes, as rows for people and for bills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bursar.errors import UsageError
from bursar.fleet import audit
from bursar.fleet.layout import AUDIT
from bursar.policy.values import QuotaPolicy
from bursar.quotas.history import Adjusted, History, Used, walk
from bursar.quotas.registry import Registry
from bursar.quotas.survey import Total
from bursar.quotas.watch import Watch
from bursar.quotas.windows import Window, split_account, split_begin, write_moment
from bursar.world import SECOND_NS, World

ROWS_MAX = 1_000
"""Tenants on a page."""

FOREVER_S = 2**62

Row = dict[str, Any]


class Usage:
    """One node's answers. Pages are of tenants, in the order of their names; `next` says after how many of
    them to go on, None after the last."""

    def __init__(
        self, world: World, registry: Registry, watch: Watch, history: History, policy: QuotaPolicy
    ) -> None:
        self.policy = policy
        self._world = world
        self._registry = registry
        self._watch = watch
        self._history = history

    async def list_usage(
        self, tenant: str, since_s: int, until_s: int, after: int, most: int
    ) -> dict[str, Any]:
        """A row for each tenant and window that began in that time."""
        names, upto = self._turn(tenant, after, most)
        totals = await self._watch.survey([name for name in names if self._is_listed(name)], anew=True)
        rows: list[Row] = []
        for name in names:
            found = [*self._list_over(name), *self._list_running(name, totals)]
            rows += [row for begin_s, row in sorted(found, key=_begin) if since_s <= begin_s < until_s]
        return {"rows": rows, "next": upto}

    async def list_balances(self, tenant: str, after: int, most: int) -> dict[str, Any]:
        """A row for each tenant with an account of the present window."""
        names, upto = self._turn(tenant, after, most)
        totals = await self._watch.survey([name for name in names if self._is_listed(name)])
        rows = [
            self._write_balance(account, total)
            for account, total in totals.items()
            if (window := split_account(account)[1]) is None or window.holds(self._world.clock.wall())
        ]
        return {"rows": rows, "next": upto}

    async def adjust(self, given: str, amount: int, reason: str, by: str) -> dict[str, Any]:
        """A line of the history; `silent` are those that have not got it yet, and will ask for it."""
        tenant, begin_s, end_s = self._find_window(given)
        at_ns = self._world.clock.wall()
        await self._world.store.ensure(AUDIT)
        text = f"{given}: {amount:+} ({reason})"
        await self._world.store.transact([audit.record(by, at_ns, "adjust", self.policy.name, text)])
        line = Adjusted(tenant, begin_s, end_s, amount, reason, by, at_ns)
        silent = await self._history.keep_everywhere([line])
        adjusted = self._history.count_adjusted(tenant, begin_s)
        return {"account": given, "adjusted": adjusted, "silent": silent}

    def _find_window(self, given: str) -> tuple[str, int, int]:
        """A tenant's, of which something was used: the present one, by its name, or by its begin."""
        (whole, named), (tenant, begin_s) = split_account(given), split_begin(given)
        wall_ns = self._world.clock.wall()
        for name in (given, whole, tenant):
            over = (Window(each.begin_s, each.end_s) for each in walk(self._history, name))
            for window in dict.fromkeys((*self._registry.windows.get(name, ()), *over)):
                is_said = window == named or window.begin_s == begin_s
                if window.holds(wall_ns) if name == given else is_said:
                    return name, *window
        if given in self._registry.mints:
            return given, 0, 0
        raise UsageError(f"nothing was used of {given}: `bursar quota usage` lists what was")

    def _turn(self, tenant: str, after: int, most: int) -> tuple[list[str], int | None]:
        if tenant:
            return [tenant], None
        names = sorted({*self._registry.list_tenants(), *self._history.used, *self._history.adjusted})
        upto = after + max(1, min(most, ROWS_MAX))
        return names[after:upto], upto if upto < len(names) else None

    def _is_listed(self, tenant: str) -> bool:
        return tenant in self._registry.names.get(self._registry.find_shard(tenant), ())

    def _list_over(self, tenant: str) -> Iterator[tuple[int, Row]]:
        for line in walk(self._history, tenant):
            yield line.begin_s, self._write(line, held=0, complete=True, final=True)

    def _list_running(self, tenant: str, totals: Mapping[str, Total]) -> Iterator[tuple[int, Row]]:
        """Those of which nothing is written down yet."""
        known = self._history.used.get(tenant, {})
        for account, total in totals.items():
            whose, window = split_account(account)
            begin_s, end_s = window or (0, 0)
            if whose == tenant and begin_s not in known:
                line = Used(tenant, begin_s, end_s, total.limit, total.spent, total.written_off)
                complete = total.missing is not None
                yield begin_s, self._write(line, held=total.held, complete=complete, final=False)

    def _write(self, line: Used, *, held: int, complete: bool, final: bool) -> Row:
        adjusted = self._history.count_adjusted(line.tenant, line.begin_s)
        return {
            "tenant": line.tenant,
            "begin": write_moment(line.begin_s) if line.begin_s else "",
            "end": write_moment(line.end_s) if line.end_s else "",
            "unit": self.policy.unit,
            "limit": line.limit,
            "used": line.used,
            "adjusted": adjusted,
            "billed": line.used + adjusted,
            "held": held,
            "written_off": line.written_off,
            "complete": complete,
            "final": final,
        }

    def _write_balance(self, account: str, total: Total) -> Row:
        tenant, window = split_account(account)
        ends_s = None if window is None else window.end_s - self._world.clock.wall() // SECOND_NS
        forecast = None if ends_s is None else min(total.limit, total.used + round(total.rate * ends_s))
        return {
            "tenant": tenant,
            "account": account,
            "unit": self.policy.unit,
            "limit": total.limit,
            "used": total.spent,
            "held": total.held,
            "remaining": total.unspent + total.in_flight,
            "rate": total.rate,
            "ends_in_s": ends_s,
            "runs_out_in_s": total.lasts_s,
            "forecast": forecast,
            "complete": total.missing is not None,
        }


def _begin(found: tuple[int, Row]) -> int:
    return found[0]
