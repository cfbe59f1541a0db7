"""All that can happen to a quota in one scenario, and the sum of it to the unit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any

from bursar.errors import StoreError, Unknown, UsageError
from bursar.quotas.balances import Hold
from bursar.quotas.book import NodeBook
from bursar.quotas.resource import QuotaDecider
from bursar.quotas.settling import make_id
from bursar.quotas.windows import Kind, Window, split_account
from bursar.resource.door import Resource
from bursar.sim.chance import draw_ns
from bursar.sim.clock import WALL_START_NS
from bursar.sim.scenario import require
from bursar.sim.scenarios.quota.variants import (
    WINDOW_NS,
    WINDOW_S,
    OwingQuotaScenario,
    ShortWindows,
    WorstQuotaScenario,
)
from bursar.world import SECOND_NS, World

ADJUST_NS = 4 * SECOND_NS
ANCHORS = {"acme": "2026-03-02", "acme/search": "2026-03-03"}


def anchored_window_of(
    kind: Kind, wall_ns: int, zone: str = "UTC", anchor: date | None = None
) -> Window | None:
    """Three seconds each, counted from a second that the anchor says."""
    shift_s = anchor.day % WINDOW_S if anchor is not None else 0
    begin_s = (wall_ns - shift_s * SECOND_NS) // WINDOW_NS * WINDOW_S + shift_s
    return Window(begin_s, begin_s + WINDOW_S)


class AnchoredWindows(ShortWindows):
    window_of = staticmethod(anchored_window_of)

    async def start(self) -> None:
        self.watch.grace_ns = 3600 * SECOND_NS  # nothing is forgotten: all of it is added up at the end
        await QuotaDecider.start(self)


class WholeQuotaScenario(WorstQuotaScenario):
    """Lost disks, a lost store, debts, windows that turn at different moments for different tenants, keys,
    holds, credit notes; and at the end every ledger's every account is the sum of its grants: of what callers
    were told, and of what the law takes for spent because nobody knows."""

    fixed: Mapping[str, Any] = {**OwingQuotaScenario.fixed, "window": "month"}
    anchors = ANCHORS
    decider_class = AnchoredWindows

    def __init__(self) -> None:
        super().__init__()
        self.told_units = 0
        self.lost_units = 0
        self.adjusted: Counter[tuple[str, int]] = Counter()
        self._notes = 0

    def _operate(self, world: World, resource: Resource) -> None:
        super()._operate(world, resource)
        draw = self.sim.chance.stream(f"notes/{world.name}")
        world.spawn(self._adjust(world, resource, draw), "notes")

    async def _adjust(self, world: World, resource: Resource, draw: random.Random) -> None:
        """Credit notes: they change what is billed, and no unit."""
        while not self._calm:
            await world.clock.sleep(draw_ns(draw, 0, ADJUST_NS))
            tenant, amount = draw.choice(("plain", "acme")), draw.randrange(1, 9)
            try:
                await resource.verb("adjust", account=tenant, amount=-amount, reason="a note")
            except (StoreError, Unknown, UsageError):
                continue  # nothing was used of it yet, or the note may be there or not
            self._notes += 1

    # -- what must hold

    def _audit_account(self, account: str) -> None:
        """By windows: none has more than its tenant ever had."""
        highest = self.highest[account]
        known: Counter[str] = Counter()
        for book in self._books().values():
            for name, line in book.ledger.accounts.items():
                if split_account(name)[0] == account:
                    known[name] += line.endowment
        for name, units in known.items():
            require(units <= highest, f"the audit finds {units} of {name}'s {highest} units")

    def _audit_holds(self, ledger: str, book: NodeBook) -> None:
        """Charged = told + what the law says is lost, to the unit."""
        super()._audit_holds(ledger, book)
        charged: Counter[str] = Counter()
        for hold in [*book.ledger.holds.values(), *book.ledger.closed.values()]:
            units = hold.size if hold.used is None else hold.used
            for account, reserved, spent in hold.split(units):
                charged[account] += reserved if hold.used is None else spent
            self._add_up(make_id(ledger, hold.number), hold, units)
        for name, line in book.ledger.accounts.items():
            spent = line.held + line.spent
            require(
                charged[name] == spent,
                f"{spent} of {name} are charged at {ledger}, {charged[name]} by grants",
            )

    def _add_up(self, id: str, hold: Hold, charged: int) -> None:
        """What was told of one grant, and what it was charged: these differ only where nobody knows."""
        told = self.truth.told_of(id)
        require(charged >= told, f"{charged} were charged for {id}, {told} told")
        if charged > told:
            lost = told == 0 or hold.used is None or hold.expired or id not in self.truth.settled
            require(lost, f"{charged} were charged for {id}, which was settled with {told}")
        self.told_units += told
        self.lost_units += charged - told

    def audit(self) -> None:
        super().audit()
        now_ns = WALL_START_NS + self.sim.now_ns
        for name, decider in self._deciders.items():
            window: Any = decider.chains.find_window("acme")
            require(window.holds(now_ns), f"{name} has {window} for the present one")
