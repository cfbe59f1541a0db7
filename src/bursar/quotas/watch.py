"""Looks at the whole of a quota, a page of tenants at a time: for whoever asks, to warn when much of an
account is used, and to forget windows that are over."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

from bursar.errors import StoreError
from bursar.policy.values import QuotaPolicy
from bursar.quotas import accounts, survey
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.history import History, Used
from bursar.quotas.survey import Report, Total
from bursar.quotas.windows import Window, find_horizon, is_over, split_account
from bursar.resource.decider import WarningTaker
from bursar.world import MILLISECOND_NS, SECOND_NS, Message, World

SURVEY_NS = 2 * SECOND_NS
SURVEY_FRESH_NS = SECOND_NS // 2

PAGE = 100
"""Tenants that are asked about at once: a few milliseconds' work for each node."""

PAUSE_NS = 100 * MILLISECOND_NS
"""Between pages, so that looking takes a small part of a node's time however many tenants there are."""

SHOWN_MAX = 1_000
"""Accounts in statistics: those of which most is used. (`bursar quota show` goes through all.)"""

STEP_S = 10
"""What the clocks say is noted so often."""

GRACE_NS = 3600 * SECOND_NS
"""A window is written down, and forgotten one window later, when it has been over for so long by a clock that
cannot be set: a wall clock that visits the future and returns within it finds everything as it was."""


class Watch:
    """One node's view of the whole. `totals` is what the last survey found; `surveys` counts them, and
    `warned` the warnings that this node told."""

    def __init__(
        self,
        world: World,
        courier: QuotaCourier,
        policy: QuotaPolicy,
        history: History,
        find_window: Callable[[int], Window | None],
    ) -> None:
        """`find_window`: the one that it is at a wall time, of tenants without an anchor."""
        self.totals: dict[str, Total] = {}
        self.surveys = 0
        self.warned = 0
        self.takers: list[WarningTaker] = []
        self.grace_ns = GRACE_NS
        self.policy = policy
        self._history = history
        self._find_window = find_window
        self._world = world
        self._courier = courier
        self._ending: int | None = 0  # what an earlier root may have begun
        self._passed: dict[int, int] = {}
        self._ripe_s = 0
        self._read_up_to_s = 0
        self._open_still: dict[str, None] = {}
        self._present_ns: int | None = None
        self._warned: dict[str, int] = {}
        self._suspected: dict[str, None] = {}
        self._began_at: int | None = None
        self._topic = f"{courier.topic}/survey"

    def start(self) -> None:
        self._world.network.serve(self._topic, survey.Ask, self._report)
        self._world.spawn(self._keep_watch(), f"{self._topic}.warnings")

    async def _report(self, sender: str, message: Message) -> Message:
        assert isinstance(message, survey.Ask), "the network passes nothing else"
        return self._make_report(message.tenants)

    def _make_report(self, tenants: Sequence[str]) -> Report:
        accounts = self._courier.registry.list_accounts(tenants)
        return survey.make_report(self._courier.book, self._world, accounts)

    # -- looking

    def refresh(self) -> None:
        """Begin a survey if the last is old."""
        now = self._world.clock.now()
        if self._began_at is None or now - self._began_at > SURVEY_FRESH_NS:
            self._began_at = now
            self._world.spawn(self._look_at_most_used(), f"{self._topic}.ask")

    async def _look_at_most_used(self) -> None:
        ledger = self._courier.book.ledger.accounts.values()
        used = heapq.nlargest(SHOWN_MAX, ledger, key=lambda account: account.used)
        tenants = dict.fromkeys(split_account(account.name)[0] for account in used)
        rest = SHOWN_MAX - len(tenants)
        tenants |= dict.fromkeys(self._courier.registry.list_tenants()[: max(0, rest)])
        self._show(await self.survey(list(tenants)[:SHOWN_MAX]))

    async def take_survey(self) -> Mapping[str, Total]:
        """Ask every node what it has of every account; the audit of them."""
        self._began_at = self._world.clock.now()
        found = await self.survey(self._courier.registry.list_tenants())
        self._show(found)
        return found

    async def survey(self, tenants: Sequence[str], *, anew: bool = False) -> dict[str, Total]:
        """The accounts of these, page by page."""
        found: dict[str, Total] = {}
        for page in _turn_pages(tenants):
            found |= await self.look_at(page, anew=anew)
        return found

    async def look_at(self, tenants: Sequence[str], *, anew: bool = False) -> dict[str, Total]:
        """All accounts of some tenants, over all ledgers. `anew`: by what the store says now, so that none is
        missed of which no ledger tells. Raises StoreError then."""
        courier = self._courier
        if anew:
            await self._read(tenants, anew=True)
        else:
            await self._try_to_read(tenants, anew=False)
        reports = await self._collect(tenants)
        reported = {account for report in reports.values() for account in report.accounts}
        if unknown := sorted({split_account(account)[0] for account in reported - courier.mints.keys()}):
            await self._try_to_read(unknown, anew=True)  # another node has opened them since
            reports = await self._collect(tenants)
        book = courier.book
        members = book.members or frozenset()
        walls = [report.wall_ns for report in reports.values()]
        self._present_ns = min(walls) if members <= reports.keys() else None
        mints = courier.mints
        return {
            account: survey.add_up(account, mints[account], reports, members, book.fenced)
            for account in courier.registry.list_accounts(tenants)
        }

    async def _read(self, tenants: Sequence[str], *, anew: bool) -> None:
        if anew:
            await self._world.store.sync()
        await self._courier.registry.read_all(tenants, anew=anew)

    async def _try_to_read(self, tenants: Sequence[str], *, anew: bool) -> None:
        try:
            await self._read(tenants, anew=anew)
        except StoreError as error:
            self._world.trace("quota.unread", why=str(error))  # what was read is looked at

    async def _collect(self, tenants: Sequence[str]) -> dict[str, Report]:
        book = self._courier.book
        own = self._make_report(tenants)
        return {book.identity: own} | await survey.collect(self._world, self._topic, book, tenants)

    def _show(self, found: Mapping[str, Total]) -> None:
        self.totals = dict(found) if len(found) <= SHOWN_MAX else self._keep_most_used(found)
        self.surveys += 1

    def _keep_most_used(self, totals: Mapping[str, Total]) -> dict[str, Total]:
        """And those that are fenced."""
        stopped = self._courier.book.stopped
        most = heapq.nlargest(SHOWN_MAX, totals, key=lambda name: (name in stopped, totals[name].used))
        return {name: totals[name] for name in sorted(most)}

    # -- the root's part

    async def _keep_watch(self) -> None:
        """The root looks at the whole from time to time: it tells when much of it is used, and fences an
        account of which there is more than was ever minted."""
        while True:
            await self._world.clock.sleep(SURVEY_NS)
            if self._courier.book.parent is None:
                try:
                    await self.go_round()
                except StoreError as error:  # it goes round again, and forgets nothing before
                    self._world.trace("quota.unread", why=str(error))

    async def go_round(self) -> None:
        """All pages once."""
        self._began_at = self._world.clock.now()
        found: dict[str, Total] = {}
        present: list[int | None] = []
        self._open_still = {}
        horizon_s = find_horizon(self._find_window, self._ripe_s * SECOND_NS) if self._ripe_s else 0
        anew = horizon_s > self._read_up_to_s  # of what is forgotten next, nothing was missed
        for number, page in enumerate(_turn_pages(self._courier.registry.list_tenants())):
            if number:
                await self._world.clock.sleep(PAUSE_NS)
            totals = await self.look_at(page, anew=anew)
            present.append(self._present_ns)
            await self._write_down(totals)
            for account, total in totals.items():
                await self._audit(account, total)
                await self._warn(account, total)
            found |= totals
            if len(found) > 2 * SHOWN_MAX:
                found = self._keep_most_used(found)
        self._show(found)
        self._read_up_to_s = max(self._read_up_to_s, horizon_s)
        await self._end_windows(horizon_s)
        heard = [each for each in present if each is not None]
        self._ripen(min(heard, default=None) if len(heard) == len(present) else None)

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

    async def _warn(self, account: str, total: Total) -> None:
        reached = [percent for percent in self.policy.warnings if total.used * 100 >= percent * total.limit]
        if not total.limit or not reached or self._warned.get(account, 0) >= max(reached):
            return
        for percent in sorted(reached):
            if percent > self._warned.get(account, 0) and await self._is_first(account, percent):
                self._world.trace("quota.warning", account=account, percent=percent)
                self.warned += 1
                for taker in self.takers:
                    taker(account, percent)
        self._warned[account] = max(reached)

    async def _is_first(self, account: str, percent: int) -> bool:
        """Whether no other node has told it."""
        try:
            return await accounts.mark_warned(self._world.store, self._courier.layout, account, percent)
        except StoreError:
            return True  # told perhaps twice rather than never

    # -- windows that are over

    async def _write_down(self, totals: Mapping[str, Total]) -> None:
        """What was used of the windows that are over, at every node; of those of which all is known."""
        lines: dict[str, Used] = {}
        for account, total in totals.items():
            tenant, window = split_account(account)
            if window is not None and window.end_s <= self._ripe_s:
                line = Used(tenant, *window, total.limit, total.spent, total.written_off)
                if total.held or total.missing != 0 or not self._history.has(line):
                    self._open_still[account] = None
                if not total.held and total.missing == 0 and not self._history.has(line):
                    lines[account] = line
        if lines and not await self._history.keep_everywhere(list(lines.values())):
            for account in lines:
                del self._open_still[account]

    async def _end_windows(self, horizon_s: int) -> None:
        """Forget accounts of windows that are over at every node, but for the last before. They are written
        down by then."""
        over = [account for account in self._courier.mints if is_over(account, horizon_s)]
        if over and not any(is_over(account, horizon_s) for account in self._open_still):
            self._ending = horizon_s
        if self._ending is None:
            return
        try:
            await accounts.forget(self._world.store, self._courier.layout, self._ending)
        except StoreError:
            return  # after the next survey it is tried again
        self._world.trace("quota.forgotten", horizon=self._ending)
        self._warned = {
            name: percent for name, percent in self._warned.items() if not is_over(name, self._ending or 0)
        }
        self._ending = None

    def _ripen(self, present_ns: int | None) -> None:
        """What has been past at every node (the earliest says `present_ns`) for long enough."""
        if present_ns is None:
            return
        now, present_s = self._world.clock.now(), present_ns // SECOND_NS
        # Where the clock has gone back, what it said before is not so.
        self._passed = {each: since for each, since in self._passed.items() if each <= present_s}
        if present_s - max(self._passed, default=0) >= STEP_S or not self.grace_ns:
            self._passed[present_s] = now
        ripe = [each for each, since in self._passed.items() if now - since >= self.grace_ns]
        self._ripe_s = max(ripe, default=0)
        self._passed = {each: since for each, since in self._passed.items() if each >= self._ripe_s}


def _turn_pages(tenants: Sequence[str]) -> Iterator[Sequence[str]]:
    return (tenants[at : at + PAGE] for at in range(0, len(tenants), PAGE))
