"""What else can be asked of a quota, at any of its nodes: plain values in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bursar.errors import Unknown, UsageError
from bursar.fleet import audit
from bursar.fleet.layout import AUDIT
from bursar.quotas import accounts, operations
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.overdrafts import owner_of
from bursar.quotas.statistics import write_total
from bursar.quotas.usage import FOREVER_S, Usage
from bursar.quotas.watch import Watch
from bursar.quotas.windows import read_moment, split_account
from bursar.resource import AMOUNT_MAX, check_name
from bursar.resource.decider import Verb

REASON_MAX = 500


class Verbs:
    """`by`: who does it, for the audit. Whoever asks over the wire does not say it: the daemon knows."""

    def __init__(self, courier: QuotaCourier, chains: Chains, watch: Watch, usage: Usage) -> None:
        self._courier = courier
        self._usage = usage
        self._chains = chains
        self._watch = watch

    def by_name(self) -> dict[str, Verb]:
        return {
            "top_up": self.top_up,
            "set_limit": self.set_limit,
            "fence": self.fence,
            "accept": self.accept,
            "survey": self.survey,
            "usage": self.list_usage,
            "balance": self.list_balances,
            "adjust": self.adjust,
        }

    async def top_up(self, account: str, amount: int, by: str = audit.HERE) -> Mapping[str, Any]:
        """Add units to an account, or take unspent ones out. `account` is a tenant (then its present
        window is meant) or an account that `survey` names. Doing it twice adds twice. When it returns,
        all nodes go by it, but for those in `unheard`."""
        check_name("account", account)
        if not isinstance(amount, int) or isinstance(amount, bool):
            raise UsageError(f"amount must be a whole number, not {amount!r}")
        store, layout = self._courier.world.store, self._courier.layout
        name, mints, asleep = await operations.top_up(
            store, layout, account, amount, by=by, at_ns=self._wall()
        )
        unheard = await self._wait_heard()
        return {"account": name, "limit": accounts.total(mints), "asleep": asleep, "unheard": unheard}

    async def set_limit(self, tenant: str, limit: int, by: str = audit.HERE) -> Mapping[str, Any]:
        """Top up or cut the tenant's account of this window, for every node. A cut takes what is
        unspent; what was used already stays used."""
        self._chains.find(tenant)  # raises for a tenant that the policy does not list
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= AMOUNT_MAX:
            raise UsageError(f"limit must be a whole number from 0 to 2^63 - 1, not {limit!r}")
        await self._chains.try_open(tenant)  # with the policy's limit, so that this is a change of it
        account = self._chains.account(tenant)
        await self._courier.world.store.ensure(AUDIT)
        name = self._courier.layout.resource
        line = audit.record(by, self._wall(), "limit", name, f"{account}: {limit}")
        try:
            await self._courier.set_limit(
                account, limit, self._courier.world.fleet.guards(), [line], once=True
            )
        except accounts.OldTermsError as error:
            raise Unknown(str(error)) from error
        unheard = await self._wait_heard()
        return {"account": account, "limit": self._chains.limit(account), "unheard": unheard}

    async def _wait_heard(self) -> list[str]:
        """The nodes that may still grant by what was before."""
        world = self._courier.world
        return await operations.wait_heard(world.store, self._courier.layout, world.clock)

    async def fence(self, node: str, by: str = audit.HERE) -> Mapping[str, Any]:
        """Write off what a node that is gone has left."""
        check_name("node", node)
        store, layout = self._courier.world.store, self._courier.layout
        return {"fenced": await operations.fence(store, layout, node, by=by, at_ns=self._wall())}

    async def accept(self, account: str, by: str = audit.HERE) -> Mapping[str, Any]:
        """Go on with an account that the audit fenced: what there is of it, beyond all that was minted, is
        let stand."""
        check_name("account", account)
        store, layout = self._courier.world.store, self._courier.layout
        if not self._courier.book.stopped.get(account):
            raise UsageError(f"{account} is not fenced: `bursar quota show` says which are")
        total = (await self._watch.look_at([split_account(account)[0]])).get(account)
        if total is None or total.missing is None:
            raise Unknown(f"not every ledger of {account} answered: try again when they are up or fenced")
        excess = max(0, -total.missing)
        await store.ensure(AUDIT)
        line = audit.record(by, self._wall(), "accept", layout.resource, f"{account}: {excess} let stand")
        await accounts.let_stand(store, layout, account, excess, [line])
        return {"account": account, "accepted": excess}

    def _wall(self) -> int:
        return self._courier.world.clock.wall()

    async def survey(self, after: int = 0, most: int = 1_000) -> Mapping[str, Any]:
        """Ask every node what it has of some tenants, in the order of their names; the audit of their
        accounts. `next`: after how many to go on; None for the last of them."""
        tenants = self._courier.registry.list_tenants()
        upto = after + min(most, 1_000)
        totals = await self._watch.survey(tenants[after:upto])
        stopped = self._courier.book.stopped
        rows = [
            {
                "tenant": owner_of(split_account(account)[0]) or split_account(account)[0],
                "account": account,
                **msgspec.to_builtins(write_total(total, stopped.get(account, ""))),
            }
            for account, total in totals.items()
        ]
        return {"rows": rows, "next": upto if upto < len(tenants) else None}

    async def list_usage(
        self, tenant: str = "", since: str = "", until: str = "", after: int = 0, most: int = 1_000
    ) -> Mapping[str, Any]:
        """What was used, by tenant and window; of windows that began from `since` on, and before `until`."""
        since_s = _read_day("since", since) if since else 0
        until_s = _read_day("until", until) if until else FOREVER_S
        return await self._usage.list_usage(tenant, since_s, until_s, after, most)

    async def list_balances(self, tenant: str = "", after: int = 0, most: int = 1_000) -> Mapping[str, Any]:
        """What each has, over all nodes that answer."""
        return await self._usage.list_balances(tenant, after, most)

    async def adjust(self, account: str, amount: int, reason: str, by: str = audit.HERE) -> Mapping[str, Any]:
        """Correct what a tenant is to pay for (a credit note is negative). It moves no units: that does
        `top_up`."""
        if not isinstance(amount, int) or isinstance(amount, bool) or not 0 < abs(amount) <= AMOUNT_MAX:
            raise UsageError(f"amount must be a whole number other than 0 within 2^63, not {amount!r}")
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= REASON_MAX:
            raise UsageError(f"say why, in at most {REASON_MAX} characters: whoever reads the bill will ask")
        check_name("account", account)
        return await self._usage.adjust(account, amount, reason.strip(), by)


def _read_day(name: str, text: str) -> int:
    moment_s = read_moment(text) if isinstance(text, str) else None
    if moment_s is None:
        raise UsageError(
            f"{name} must be a date, or a date with a time in UTC (2026-11-01T12:00), not {text!r}"
        )
    return moment_s
