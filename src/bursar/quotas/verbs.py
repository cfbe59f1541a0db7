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
from bursar.quotas.statistics import write_total
from bursar.quotas.watch import Watch
from bursar.quotas.windows import name_account
from bursar.resource import AMOUNT_MAX, check_name
from bursar.resource.decider import Verb


class Verbs:
    """`by`: who does it, for the audit. Whoever asks over the wire does not say it: the daemon knows."""

    def __init__(self, courier: QuotaCourier, chains: Chains, watch: Watch) -> None:
        self._courier = courier
        self._chains = chains
        self._watch = watch

    def by_name(self) -> dict[str, Verb]:
        return {
            "top_up": self.top_up,
            "set_limit": self.set_limit,
            "fence": self.fence,
            "accept": self.accept,
            "survey": self.survey,
        }

    async def top_up(self, account: str, amount: int, by: str = audit.HERE) -> Mapping[str, Any]:
        """Add units to an account, or take unspent ones out. `account` is a tenant (then its present
        window is meant) or an account that `survey` names. Doing it twice adds twice."""
        check_name("account", account)
        if not isinstance(amount, int) or isinstance(amount, bool):
            raise UsageError(f"amount must be a whole number, not {amount!r}")
        name = name_account(account, self._chains.window)
        store, layout = self._courier.world.store, self._courier.layout
        mints, asleep = await operations.top_up(store, layout, name, amount, by=by, at_ns=self._wall())
        return {"account": name, "limit": accounts.total(mints), "asleep": asleep}

    async def set_limit(self, tenant: str, limit: int, by: str = audit.HERE) -> Mapping[str, Any]:
        """Top up or cut the tenant's account of this window, for every node. A cut takes what is
        unspent; what was used already stays used."""
        self._chains.find(tenant)  # raises for a tenant that the policy does not list
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= AMOUNT_MAX:
            raise UsageError(f"limit must be a whole number from 0 to 2^63 - 1, not {limit!r}")
        account = self._chains.account(tenant)
        await self._chains.try_open(tenant)  # with the policy's limit, so that this is a change of it
        await self._courier.world.store.ensure(AUDIT)
        name = self._courier.layout.resource
        line = audit.record(by, self._wall(), "limit", name, f"{account}: {limit}")
        try:
            await self._courier.set_limit(account, limit, self._courier.world.fleet.guards(), [line])
        except accounts.OldTermsError as error:
            raise Unknown(str(error)) from error
        return {"account": account, "limit": self._chains.limit(account)}

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
        total = (await self._watch.take_survey()).get(account)
        if total is None or total.missing is None:
            raise Unknown(f"not every ledger of {account} answered: try again when they are up or fenced")
        excess = max(0, -total.missing)
        await store.ensure(AUDIT)
        line = audit.record(by, self._wall(), "accept", layout.resource, f"{account}: {excess} let stand")
        await accounts.let_stand(store, layout, account, excess, [line])
        return {"account": account, "accepted": excess}

    def _wall(self) -> int:
        return self._courier.world.clock.wall()

    async def survey(self) -> Mapping[str, Any]:
        """Ask every node what it has; the audit of every account."""
        totals = await self._watch.take_survey()
        stopped = self._courier.book.stopped
        return {
            account: msgspec.to_builtins(write_total(total, stopped.get(account, "")))
            for account, total in totals.items()
        }
