"""What happens when, told as it happens. Every figure is one that was measured meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from bursar.demo.cluster import CLAIM, SERVERS, SHARE, SPENDERS, TENANTS, Cluster
from bursar.demo.load import LENDER, Load
from bursar.errors import Refused
from bursar.runtime.figures import read_figures
from bursar.units import read_rate

SHORTEST_S = 10.0
"""Less would leave a chapter shorter than two periods: nothing to see."""

CHAPTER_S = 10.0
SETTLE_PART = 0.35
"""The first part of a chapter is not measured: queues are as the chapter before left them."""

VICTIM = "d"
GUARANTEED = "acme"
MET_PART = 0.95
LEND_PART = 0.5
"""Of a chapter; paying back takes longer than lending, and has the rest of two."""

Say = Callable[[str], None]
"""Told a text; one that begins a chapter begins with a new line."""


class Story:
    """Six chapters, again and again until the time is over. `outcome` keeps what was measured."""

    def __init__(self, cluster: Cluster, load: Load, say: Say) -> None:
        self._cluster = cluster
        self._load = load
        self._say = say
        self._told: set[str] = set()
        self.outcome: dict[str, Any] = {}

    async def run(self, seconds: float) -> None:
        """Tell it once, whole, in about `seconds`; when there is more time, again until then."""
        chapter_s = min(CHAPTER_S, seconds / len(self._chapters()))
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        watching = loop.create_task(self._watch_others())
        try:
            for chapter in self._chapters():
                await chapter(chapter_s)
            for chapter in itertools.cycle(self._chapters()):
                if loop.time() + chapter_s / 2 >= ends_at:
                    break
                await chapter(chapter_s)
            await asyncio.sleep(max(0.0, ends_at - loop.time()))
        finally:
            watching.cancel()

    def _chapters(self) -> list[Any]:
        return [self._before, self._after, self._kill, self._restart, self._lend, self._pay_back]

    # -- the rate ---------------------------------------------------------------------------

    async def _before(self, chapter_s: float) -> None:
        await self._cluster.set_shadow(True)
        self._say(
            "\nShadow mode: bursar decides and counts, and lets everyone through. "
            f"{len(TENANTS)} tenants send to {len(SERVERS)} servers; greedy keeps ten times as many "
            "requests waiting as the others."
        )
        rates = await self._measure(chapter_s)
        self.outcome["before"] = rates
        self._say_rates(rates)
        self._say_greedy(rates)

    async def _after(self, chapter_s: float) -> None:
        await self._cluster.set_shadow(False)
        self._say("\nShadow mode off, the load as before: now the policy holds.")
        rates = await self._measure(chapter_s)
        self.outcome["after"] = rates
        self._say_rates(rates)
        self._say_greedy(rates)
        self._say_reservation(rates)

    def _say_greedy(self, rates: Mapping[str, float]) -> None:
        total = sum(rates.values())
        part = rates["greedy"] / total if total else 0.0
        self._say(
            f"greedy gets {rates['greedy']:.0f} a second, {part:.0%} of all; its limit is {_limit('greedy')}."
        )

    def _say_reservation(self, rates: Mapping[str, float]) -> None:
        reserved = _reservation(GUARANTEED)
        met = "met" if rates[GUARANTEED] >= MET_PART * reserved else "NOT met"
        self._say(
            f"{GUARANTEED}'s reservation of {reserved} a second is {met}: it gets {rates[GUARANTEED]:.0f}."
        )

    async def _kill(self, chapter_s: float) -> None:
        held = self._tokens_of(GUARANTEED)
        self._load.leave(VICTIM)
        await self._cluster.kill(VICTIM)
        self._say(
            f"\nServer {VICTIM} is killed; {held.get(VICTIM, 0)} tokens of {GUARANTEED} are lost with it, "
            "and count as spent until the period ends."
        )
        rates = await self._measure(chapter_s)
        moved = self._tokens_of(GUARANTEED)
        self.outcome["killed"] = {"rates": rates, "held": held, "moved": moved}
        others = ", ".join(f"{name} {held.get(name, 0)} to {tokens}" for name, tokens in moved.items())
        self._say(f"Its tokens are where its requests went: {GUARANTEED} has on {others}.")
        self._say_reservation(rates)

    async def _restart(self, chapter_s: float) -> None:
        await self._cluster.start(VICTIM)
        self._load.come_back(VICTIM)
        self._say(f"\nServer {VICTIM} is started again, with nothing; it gets tokens as requests come.")
        rates = await self._measure(chapter_s)
        held = self._tokens_of(GUARANTEED)
        self.outcome["restarted"] = {"rates": rates, "held": held}
        self._say(f"{GUARANTEED} has {held.get(VICTIM, 0)} tokens on {VICTIM} in this period.")

    def _tokens_of(self, tenant: str) -> dict[str, int]:
        return {name: int(rows[tenant]["allowance"] or 0) for name, rows in self._cluster.tokens().items()}

    async def _measure(self, chapter_s: float) -> dict[str, float]:
        return await self._count(self._load.served, list(TENANTS), chapter_s)

    async def _count(self, counter: Counter[str], names: list[str], chapter_s: float) -> dict[str, float]:
        """Requests a second, over what is left of the chapter once it has settled."""
        await asyncio.sleep(SETTLE_PART * chapter_s)
        loop = asyncio.get_running_loop()
        before, began = dict(counter), loop.time()
        await asyncio.sleep((1 - SETTLE_PART) * chapter_s)
        passed_s = loop.time() - began
        return {name: (counter[name] - before.get(name, 0)) / passed_s for name in names}

    def _say_rates(self, rates: Mapping[str, float]) -> None:
        for tenant, rate in rates.items():
            reserved, limit = _reservation(tenant), _limit(tenant)
            bar = "#" * round(rate / 16)
            promised = f"reserved {reserved or '-':>4}  limit {limit:>4}"
            self._say(f"    {tenant:<9} {rate:4.0f}/s  {promised}  {bar}")

    # -- beside it --------------------------------------------------------------------------

    async def _lend(self, chapter_s: float) -> None:
        if self._cluster.other(SHARE) is None:
            return
        self._load.modest = {LENDER}
        self._say(f"\nOn the disk {LENDER} needs little for a while; what it leaves is lent to the others.")
        rates = await self._count(self._load.shared, [LENDER], LEND_PART * chapter_s)
        record = self._record()
        self.outcome["lent"] = record
        self._say(f"{LENDER} uses {rates[LENDER]:.0f} a second and is owed {record} tokens.")

    async def _pay_back(self, chapter_s: float) -> None:
        if self._cluster.other(SHARE) is None:
            return
        before = self._record()
        self._load.modest = set()
        self._say(f"\nNow {LENDER} wants all it can get: the others pay back.")
        rates = await self._count(self._load.shared, [LENDER], (2 - LEND_PART) * chapter_s)
        after = self._record()
        self.outcome["paid_back"] = {"before": before, "after": after}
        self._say(f"{LENDER} gets {rates[LENDER]:.0f} a second; of {before} tokens it is owed {after} still.")

    def _record(self) -> int:
        share = self._cluster.other(SHARE)
        assert share is not None, "asked before"
        return int(read_figures(share.snapshot())["tenants"][LENDER]["record"])

    async def _watch_others(self) -> None:
        """A budget running out, and the first operation done: told when it happens."""
        while True:
            await asyncio.sleep(0.5)
            for tenant in SPENDERS:
                error = self._load.refused.get(tenant)
                if isinstance(error, Refused):
                    spent = self._load.spent[tenant]
                    self._say_once(tenant, f"The budget of {tenant} is spent ({spent:,} tokens): {error}.")
            done = self._load.finished["ops"]
            if done >= 10:
                text = f"{done} operations done on {CLAIM}, each alone on its machine."
                self._say_once(CLAIM, text)

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self.outcome[what] = text
            self._say(text)


def _reservation(tenant: str) -> int:
    text = TENANTS[tenant].get("reservation")
    return int(read_rate(text).per_second) if text else 0


def _limit(tenant: str) -> int:
    return int(read_rate(TENANTS[tenant]["limit"]).per_second)
