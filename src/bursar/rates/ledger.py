"""Who may hold how much of the period, as its leader knows it: the bounds, and who is named in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from bursar.rates.columns import EMPTY, Whole, list_rows
from bursar.rates.granting import Holding, Round, count_bounds
from bursar.rates.messages import Part, Row
from bursar.rates.roll import NO_TERMS, ROOM, Roll, renew, tabulate
from bursar.rates.terms import Terms
from bursar.rates.views import NO_TARGETS, Held, Picture, ServerView, Targets

Flags = npt.NDArray[np.bool_]
Narrow = Callable[[Mapping[str, Terms]], Mapping[str, Terms]]
Promised = tuple[Whole, Whole, Whole]
"""Limits, reservations and paces, by number."""


class Ledger:
    """Everything in it is by number in `roll`.

    views    servers that were heard
    buried   what lives that are over may have had, which counts as spent
    movable  what may be moved while it is not known what everybody holds
    targets  where the tokens of the named should be
    """

    def __init__(self, terms: Mapping[str, Terms]) -> None:
        self.roll = Roll(0, terms)
        self.views: dict[str, ServerView] = {}
        self.buried: list[ServerView | Held] = []
        self.movable: list[Held] = []
        self.targets: Targets = NO_TARGETS
        self._named: Flags = np.zeros(0, np.bool_)

    def begin_leading(self, terms: Mapping[str, Terms], *, opened: bool) -> None:
        """Nothing is known yet. `opened`: whether the period was opened with these terms."""
        self.views = {}
        self.roll = Roll(self.roll.key + 1, terms)
        self.roll.opened = opened
        self._forget_period()

    def begin_period(self, terms: Mapping[str, Terms], *, opened: bool) -> None:
        """With another roll where the most of those in this one were idle."""
        kept = self._find_kept()
        if len(self.roll) > ROOM and 2 * int(kept.sum()) < len(self.roll):
            self.roll, numbers = renew(self.roll, kept, self.roll.key + 1, terms)
            for view in self.views.values():
                view.renumber(numbers)
        self.roll.set_terms(terms)
        self.roll.opened = opened
        self._forget_period()

    def _find_kept(self) -> Flags:
        kept = self._find_named()
        for view in self.views.values():
            kept[view.seen.list_asking()] = True
        return kept

    def _forget_period(self) -> None:
        self.buried, self.movable, self.targets = [], [], NO_TARGETS
        self._named = np.zeros(0, np.bool_)

    # -- bounds -----------------------------------------------------------------------------

    def count(self, tenants: Iterable[str], holdings: Iterable[Holding] | None = None) -> dict[str, int]:
        """What all of them together may have, or only these, by tenant."""
        numbers = {tenant: self.roll.number(tenant) for tenant in tenants}
        bounds = count_bounds(self.roll, self._list_all() if holdings is None else holdings)
        return {tenant: int(bounds[number]) for tenant, number in numbers.items()}

    def _list_all(self) -> list[Holding]:
        return [*self.views.values(), *self.buried]

    def find_headroom(self, made: Round, *, mints: bool) -> Whole:
        """How far the bounds of those that have a limit may rise, all servers together."""
        drafted = {id(draft.view) for draft in made.drafts}
        others = [each for each in self._list_all() if id(each) not in drafted]
        most = (
            made.limits
            if mints
            else np.minimum(made.limits, count_bounds(self.roll, self.movable)[: made.size])
        )
        headroom: Whole = np.maximum(most - made.count_bounds(others), 0)
        return headroom

    def hold(self, server: str, rows: Mapping[str, int]) -> Held:
        """What is held as it is told, by name; of others there is nothing."""
        numbers = self.roll.number_all(rows)
        levels = np.zeros(len(self.roll), np.int64)
        levels[numbers] = list(rows.values())
        return Held(server, levels)

    def hold_seen(self, view: ServerView, part: Part) -> Held:
        """What the server said that it holds, in a whole report; and of others that part."""
        levels = self.roll.widen(EMPTY).copy()
        levels[view.seen.numbers] = view.seen.allowance
        return Held(view.name, levels, part)

    # -- who is named -----------------------------------------------------------------------

    def note_named(self, views: Collection[ServerView], period: int, above: Iterable[str]) -> None:
        """Whoever asked for something, or has other than its part somewhere, is placed for by name from
        here on until the period ends; and whoever is named from above."""
        numbers = self.roll.number_all(above)
        named = self._find_named()
        named[numbers] = True
        for view in views:
            present = view.report.period == period
            named[view.seen.numbers if present else view.seen.list_asking()] = True
        self._named = named

    def _find_named(self) -> Flags:
        named = np.zeros(len(self.roll), np.bool_)
        named[: self._named.size] = self._named
        return named

    def promise(self, narrow: Narrow | None) -> Promised:
        """What there is to place of those that are named: by the terms, or as one above narrows them."""
        roll = self.roll
        if narrow is None:
            return roll.limits, roll.reservations, roll.paces
        columns = np.stack([roll.limits, roll.reservations, roll.paces])
        for tenant, terms in narrow(roll.find_terms(np.flatnonzero(self._named).tolist())).items():
            columns[:, roll.number(tenant)] = tabulate(terms)
        return columns[0], columns[1], columns[2]

    def draw(
        self,
        now: int,
        time_left_ns: int,
        period_ns: int,
        interval_ns: int,
        views: Collection[ServerView],
        period: int,
        promised: Promised,
    ) -> Picture:
        """What is known now, with these servers in it."""
        seen = {view.name for view in views}
        others = [view for view in self.views.values() if view.name not in seen]
        limits, reservations, paces = promised
        return Picture(
            now=now,
            time_left_ns=time_left_ns,
            period_ns=period_ns,
            interval_ns=interval_ns,
            servers=tuple(views),
            period=period,
            names=self.roll.names,
            named=self._find_named() & (limits != NO_TERMS),
            limits=limits,
            reservations=reservations,
            paces=paces,
            bound={number: terms.servers or () for number, terms in self.roll.bound.items()},
            held=count_bounds(self.roll, [*self.buried, *others]),
            before=self.roll.widen(self.targets.levels),
        )

    def list_rows(self, view: ServerView) -> list[Row]:
        """What the server last said, one by one."""
        return list_rows((self.roll.names[number] for number in view.seen.numbers.tolist()), view.seen)
