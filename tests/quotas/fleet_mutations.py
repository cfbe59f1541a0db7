"""Nodes of a fleet that break a rule: the seeds must catch every one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bursar.book import Effects
from bursar.quotas.accounts import Guards, Opening
from bursar.quotas.book import NodeBook
from bursar.quotas.courier import QuotaCourier


class KeepsACopy(NodeBook):
    """Mutation: what a node that leaves hands over is in two places."""

    def hand_over(self, now: int, to: str, names: Iterable[str]) -> Effects:
        names = list(names)
        before = [(account, account.unspent) for account in self.chain(names)]
        effects = super().hand_over(now, to, names)
        for account, units in before:
            account.unspent += units
            account.endowment += units
        return effects


class MintsUnguarded(QuotaCourier):
    """Mutation: an account is opened by the terms that this node runs, whatever the store holds."""

    async def open_account(self, opening: Opening, guards: Guards) -> None:
        await super().open_account(opening, ())


class GuardsLate(QuotaCourier):
    """Mutation: the guards are those of the moment of the transaction, not of the limit that it mints."""

    async def open_account(self, opening: Opening, guards: Guards) -> None:
        await self.tree.live()
        await super().open_account(opening, self.world.fleet.guards())


class ChangesUnguarded(QuotaCourier):
    """Mutation: a limit is carried out whatever the store holds."""

    async def set_limit(self, account: str, limit: int, guards: Guards, *rest: Any, **more: Any) -> None:
        await super().set_limit(account, limit, (), *rest, **more)
