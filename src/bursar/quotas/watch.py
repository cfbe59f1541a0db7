"""Looks at the whole of a quota: for whoever asks, and to warn when much of it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bursar.errors import NodeExistsError, StoreError
from bursar.quotas import accounts, survey
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.survey import Total
from bursar.quotas.windows import find_horizon, is_later, is_over
from bursar.resource.decider import WarningTaker
from bursar.world import SECOND_NS, Message, World

SURVEY_NS = 2 * SECOND_NS
SURVEY_FRESH_NS = SECOND_NS // 2

GRACE_NS = 3600 * SECOND_NS
"""A window is forgotten when it has been over for so long by a clock that cannot be set: a wall clock that
visits the future and returns within it finds everything as it was."""


class Watch:
    """One node's view of the whole. `totals` is what the last survey found; `surveys` counts them, and
    `warned` the warnings that this node told."""

    def __init__(
        self,
        world: World,
        courier: QuotaCourier,
        warnings: Sequence[int],
        window: Callable[[], str],
        zone: str = "UTC",
    ) -> None:
        """`window` tells the one that it is by this node's clock, in that time zone."""
        self.totals: dict[str, Total] = {}
        self.surveys = 0
        self.warned = 0
        self.takers: list[WarningTaker] = []
        self._world = world
        self._courier = courier
        self._window = window
        self._zone = zone
        self._present: str | None = None
        self._ending: str | None = ""  # what an earlier root may have begun
        self._over: dict[str, int] = {}
        self.grace_ns = GRACE_NS
        self.warnings = warnings
        self._warned: dict[tuple[str, int], None] = {}
        self._suspected: dict[str, None] = {}
        self._began_at: int | None = None
        self._topic = f"{courier.topic}/survey"

    def start(self) -> None:
        self._world.network.serve(self._topic, survey.Ask, self._report)
        self._world.spawn(self._keep_watch(), f"{self._topic}.warnings")

    async def _report(self, sender: str, message: Message) -> Message:
        return survey.make_report(self._courier.book, self._world.clock.now(), self._window())

    def refresh(self) -> None:
        """Begin a survey if the last is old."""
        now = self._world.clock.now()
        if self._began_at is None or now - self._began_at > SURVEY_FRESH_NS:
            self._began_at = now
            self._world.spawn(self.take_survey(), f"{self._topic}.ask")

    async def take_survey(self) -> Mapping[str, Total]:
        """Ask every node what it has; the audit of every account."""
        self._began_at = self._world.clock.now()
        book = self._courier.book
        reports = await survey.collect(self._world, self._topic, book, self._window())
        members = book.members or frozenset()
        everybody = members <= reports.keys()
        self._present = min(report.window for report in reports.values()) if everybody else None
        self.totals = {
            account: survey.add_up(account, mints, reports, members, book.fenced)
            for account, mints in self._courier.mints.items()
        }
        self.surveys += 1
        return self.totals

    async def _keep_watch(self) -> None:
        """The root looks at the whole from time to time: it tells when much of it is used, and fences an
        account of which there is more than was ever minted."""
        while True:
            await self._world.clock.sleep(SURVEY_NS)
            if self._courier.book.parent is None:
                for account, total in (await self.take_survey()).items():
                    await self._audit(account, total)
                    await self._warn(account, total)
                await self._end_windows()

    async def _audit(self, account: str, total: Total) -> None:
        """Once could be a survey that asked at a bad moment."""
        if total.missing is None or total.missing >= 0 or account in self._courier.book.stopped:
            self._suspected.pop(account, None)
            return
        if account not in self._suspected:
            self._suspected[account] = None
            return
        why = (
            f"the audit of {account} finds {-total.missing} more than was ever minted, so nothing is granted "
            f"of it: find out which ledger counts twice, then `bursar quota accept {account}`"
        )
        try:
            await accounts.fence(self._world.store, self._courier.layout, account, why)
        except StoreError:
            return  # after the next survey it is tried again

    async def _end_windows(self) -> None:
        """Forget accounts of windows that are over at every node, but for the last before."""
        horizon = self._find_ripe() if self._present and self._courier.book.members else ""
        if horizon:
            over = [total for account, total in self.totals.items() if is_over(account, horizon)]
            if over and not any(total.held for total in over):
                self._ending = horizon
        if self._ending is None:
            return
        try:
            await accounts.forget(self._world.store, self._courier.layout, self._ending)
        except StoreError:
            return  # after the next survey it is tried again
        self._world.trace("quota.forgotten", horizon=self._ending)
        kept = {key: None for key in self._warned if not is_over(key[0], self._ending)}
        self._warned, self._ending = kept, None

    def _find_ripe(self) -> str:
        """The latest horizon that has been passed for long enough; "" for none."""
        present, now = self._present or "", self._world.clock.now()
        horizon = find_horizon(self.totals, present, self._world.clock.wall(), self._zone)
        self._over.setdefault(horizon, now)
        # Where the clock has gone back, what it said before is not so.
        self._over = {each: since for each, since in self._over.items() if not is_later(each, horizon)}
        ripe = [each for each, since in self._over.items() if now - since >= self.grace_ns]
        newest = max(ripe, default="")
        self._over = {each: since for each, since in self._over.items() if each >= newest}
        return newest

    async def _warn(self, account: str, total: Total) -> None:
        for percent in self.warnings:
            if (account, percent) in self._warned or not total.limit:
                continue
            if total.used * 100 >= percent * total.limit:
                if await self._is_first(account, percent):
                    self._world.trace("quota.warning", account=account, percent=percent)
                    self.warned += 1
                    for taker in self.takers:
                        taker(account, percent)
                self._warned[account, percent] = None

    async def _is_first(self, account: str, percent: int) -> bool:
        """Whether no other node has told it."""
        try:
            await self._world.store.create(self._courier.layout.warning(account, percent))
        except NodeExistsError:
            return False
        except StoreError:
            return True  # told perhaps twice rather than never
        return True
