"""A quota as the front door sees it: what is decided, settled, explained and counted at one node."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial

from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.live import LIVE
from bursar.policy.values import QuotaPolicy
from bursar.quotas.balances import Account, Hold
from bursar.quotas.blocks import AUTO
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.expiring import Expiry
from bursar.quotas.explaining import explain
from bursar.quotas.growing import Growth
from bursar.quotas.history import History
from bursar.quotas.issuing import LotsOut
from bursar.quotas.keys import Home
from bursar.quotas.limits import Limits
from bursar.quotas.overdrafts import overdraft_of
from bursar.quotas.repeats import Attempt, Repeats
from bursar.quotas.requests import Refusal, Taken
from bursar.quotas.rules import BURSAR, Rules
from bursar.quotas.settling import Settling, make_id
from bursar.quotas.statistics import AccountStatistics, QuotaStatistics, TenantStatistics, write_total
from bursar.quotas.usage import Usage
from bursar.quotas.verbs import Verbs
from bursar.quotas.watch import Watch
from bursar.quotas.windows import split_account, window_of
from bursar.resource import Decider, Explanation, Granted, Offers, Seen, Strangers, Ticket, check_change
from bursar.resource.checks import check_used
from bursar.resource.decider import WarningTaker
from bursar.resource.door import Resource
from bursar.resource.rows import Rows
from bursar.world import MILLISECOND_NS, SECOND_NS, World

ANSWER_NS = 200 * MILLISECOND_NS
"""To find out whether there are units anywhere may take this long, beyond what a caller waits."""

COARSE_NS = SECOND_NS // 2
RETRY_NS = 10 * MILLISECOND_NS


def open_resource(world: World, name: str, policy: QuotaPolicy) -> Resource:
    """This node's part of the quota."""
    return Resource(world, QuotaDecider(world, name, policy), policy)


class QuotaDecider(Decider):
    kind = "quota"
    strangers: Strangers
    courier_class: type[QuotaCourier] = QuotaCourier
    window_of = staticmethod(window_of)

    def __init__(self, world: World, name: str, policy: QuotaPolicy, rules: Rules = BURSAR) -> None:
        self.name = name
        self._world = world
        self._policy = policy
        self.offers = _offer(policy)
        self.strangers = Strangers(lambda tenant: self.forget(tenant))
        self.courier = self.courier_class(world, name, block=_choose_block(policy), rules=rules)
        self.courier.met = self._meet
        self.chains = Chains(world, self.courier, policy, self.window_of)
        self.history = History(self.courier)
        self.watch = Watch(world, self.courier, policy, self.history, self.chains.find_common)
        self.usage = Usage(world, self.courier.registry, self.watch, self.history, policy)
        self.verbs = Verbs(self.courier, self.chains, self.watch, self.usage).by_name()
        self._expiry = Expiry(policy.hold_expiry_ns)
        self._growth = Growth(self.courier, self.chains, policy)
        self._settling = Settling(self.courier, self._growth, self._expiry)
        self._repeats = Repeats(self.courier, self.chains, self._grant, self._refuse)
        self._lots = LotsOut(self.courier, self.chains, lambda: self.recall)
        self._limits = Limits(world, self.courier, self.chains, policy)
        self._opening: dict[str, list[Ticket]] = {}
        self._running = False
        self._window = self.chains.name_window()

    async def start(self) -> None:
        self.courier.homes.hold_expiry_ns = self._policy.hold_expiry_ns
        self._growth.start()
        self.history.open()
        await self.courier.open()
        self._renew_holds()
        self.history.lasts_ns = self._policy.history_ns
        self.history.start()
        self._settling.start()
        self._repeats.start()
        self._limits.start()
        self._running = True
        self._world.spawn(self._keep_time(), f"{self.courier.topic}.time")
        self.watch.start()

    async def stop(self) -> None:
        self._running = False
        await self._lots.recall_all()
        await self.courier.close()

    async def reconfigure(self, policy: QuotaPolicy) -> None:
        """New limits become top-ups and cuts, of templates too."""
        check_change(self._policy, policy, LIVE["quota"])
        old, self._policy = self._policy, policy
        self.watch.policy = self.usage.policy = policy
        self.history.lasts_ns = policy.history_ns
        self.courier.homes.hold_expiry_ns = self._expiry.hold_ns = policy.hold_expiry_ns
        self.chains.set_policy(policy)
        self._growth.policy = policy
        self.strangers.part(policy.tenants)
        await self._set_mode(policy)
        if policy.hold_expiry_ns != old.hold_expiry_ns:
            self._renew_holds()
        await self._limits.set_policy(policy)

    async def _set_mode(self, policy: QuotaPolicy) -> None:
        """Lots come back by themselves when a policy is taken; what comes back late is unspent."""
        self.offers = _offer(policy)
        block = _choose_block(policy)
        if block != self.courier.book.block:
            await self.courier.set_block(block)

    def is_ready(self) -> bool:
        return self._running and self.courier.book.members is not None and not self.courier.deposed

    # -- deciding

    def most(self, ticket: Ticket) -> int | None:
        """What a key was used for before may be more than the limit is now."""
        return None if ticket.key is not None else self.chains.most(ticket.tenant)

    def patience_ns(self, ticket: Ticket) -> int:
        return ANSWER_NS

    def decide(self, ticket: Ticket) -> None:
        if not self._running:
            ticket.give(Unknown(f"{self.name} is being stopped at this node: ask another"))
            return
        if stopped := self.courier.deposed or self.courier.book.is_stopped(self.chains.find(ticket.tenant)):
            ticket.give(Unknown(stopped))
            return
        if ticket.key is not None:
            self._repeats.decide(ticket)
        elif self.chains.is_open(ticket.tenant):
            chain = self.chains.find(ticket.tenant)
            hear = partial(self._hear, ticket)
            ticket.place = self.courier.reserve(
                ticket.tenant, chain, ticket.amount, None, hear, ticket.hold_ns
            )
        else:
            self._open_first(ticket)

    def _open_first(self, ticket: Ticket) -> None:
        waiting = self._opening.get(ticket.tenant)
        if waiting is None:
            waiting = self._opening[ticket.tenant] = []
            self._world.spawn(self._open(ticket.tenant), f"{self.courier.topic}.open")
        waiting.append(ticket)

    async def _open(self, tenant: str) -> None:
        try:
            while not await self.chains.try_open(tenant) and self._opening[tenant]:
                await self._world.clock.sleep(RETRY_NS)
        except UsageError as error:  # the tenant was just removed
            for ticket in self._opening.pop(tenant):
                ticket.give(error)
            return
        for ticket in self._opening.pop(tenant):
            self.decide(ticket)

    def withdraw(self, ticket: Ticket) -> Unknown | None:
        if isinstance(ticket.place, Attempt):
            return self._repeats.withdraw(ticket)
        if ticket.place is None:
            self._opening[ticket.tenant].remove(ticket)
            return Unknown(f"the account of {ticket.tenant} could not be opened: {self.chains.why}")
        if not self.courier.cancel(ticket.place):
            return None  # the hold is made: its answer is on its way from the disk
        account = self.chains.account(ticket.tenant)
        return Unknown(f"{ticket.amount} of {account} are not here, and not everybody answered in time")

    def _hear(self, ticket: Ticket, said: Hold | Refusal | Taken) -> None:
        assert not isinstance(said, Taken), "only keys are taken"
        ticket.give(self._refuse(said) if isinstance(said, Refusal) else self._grant(ticket, said))

    def _grant(self, ticket: Ticket, hold: Hold) -> Granted:
        self._expiry.put_off(self._world.clock.now(), hold)
        lot = self._lots.issue(ticket, hold) if ticket.ahead and ticket.late is None else None
        return Granted(
            hold.amount,
            ahead=lot.size if lot is not None else 0,
            until=lot.until if lot is not None else 0,
            id=make_id(self.courier.book.identity, hold.number),
            limit=self.chains.limit(hold.accounts[0]),
            remaining=self._find_left(hold.accounts),
            reset_ns=self.chains.left_ns(ticket.tenant),
            data=lot,
        )

    def _find_left(self, chain: Iterable[str]) -> int | None:
        """What the tenant can still have, where that is known here: at a node that has all of it."""
        book = self.courier.book
        if book.members is None or len(book.members) > 1:
            return None
        return min(book.demand(account).here() for account in book.chain(chain))

    def _refuse(self, refusal: Refusal) -> Refused:
        limit, left_ns = self.chains.limit(refusal.account), self._find_left_ns(refusal.account)
        asked = f"{refusal.account}: {refusal.asked} asked for"
        if refusal.left is None or refusal.asked > limit:
            remedy = ": ask for less" if limit else ""
            why = f"{asked}, and {limit} is all that there ever is{remedy}"
            return Refused(why, limit=limit, remaining=refusal.left)
        # The next window has it. (A little later: clocks are read one after the other.)
        retry_after = None if left_ns is None else (left_ns + MILLISECOND_NS) / SECOND_NS
        why = f"{asked}, {refusal.left} of {limit} left"
        return Refused(why, limit=limit, remaining=refusal.left, retry_after=retry_after)

    def _find_left_ns(self, account: str) -> int | None:
        window = split_account(account)[1]
        if window is None:
            return None
        return max(0, window.end_s * SECOND_NS - self._world.clock.wall())

    # -- lots: what was granted to a request itself is settled by its id

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        if granted.data is not None:
            self._lots.take_back(granted.data, unused)

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        if granted is not None and granted.data is not None and seen.arrived:
            self._lots.spend(granted.data, seen.arrived)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        self._lots.end(granted.data, unspent)

    # -- settling

    async def settle(self, id: str, used: int | None) -> None:
        await self._settling.settle(id, None if used is None else check_used(used))

    async def grow(self, id: str, size: int) -> int:
        return await self._settling.grow(id, size)

    async def extend(self, id: str, hold_ns: int) -> None:
        await self._settling.extend(id, hold_ns)

    def undo(self, tenant: str, granted: Granted) -> Awaitable[None]:
        return self._settling.undo(granted.id)

    async def whose(self, id: str) -> str:
        return await self._settling.whose(id)

    def _renew_holds(self) -> None:
        """Holds of an earlier life, of which nobody knows since when, or of another expiry: their time
        begins anew."""
        self._expiry.renew(self._world.clock.now(), self.courier.book.ledger.holds.values())

    async def _keep_time(self) -> None:
        """Charge what expired, forget old keys, and go over to the next window."""
        while True:
            await self._world.clock.sleep(COARSE_NS)
            now = self._world.clock.now()
            self.collect()
            self._expire_holds(now)
            self._lots.prune()
            self.courier.book.keys.sweep(now)
            self.courier.homes.look()
            if (window := self.chains.name_window()) != self._window:
                self._window = window
                self._world.trace("quota.window", window=window)
                self._forget_strangers()

    def _expire_holds(self, now: int) -> None:
        """A hold that nobody ended: what became of its units is unknown, so they are spent."""
        for hold in self._expiry.find_due(now, self.courier.book.ledger):
            if self._is_asked(hold):
                self._expiry.put_off(now, hold)  # granted, and not told yet
                continue
            hold.expired = True
            self.courier.settle(hold, hold.size)

    def _meet(self, tenant: str) -> None:
        """It has an account, opened here or at another node: it is one of those that the resource has."""
        if tenant not in self._policy.tenants and self._policy.find(tenant) is not None:
            self.strangers.admit(tenant, self._policy.max_tenants)

    def _forget_strangers(self) -> None:
        """The window is over, and with it what they used: those who come again are new."""
        present = filter(self.chains.is_present, self.courier.mints)
        opened = {split_account(account)[0] for account in present}
        self.strangers.keep(lambda tenant: tenant in opened or tenant in self._opening)

    def _is_asked(self, hold: Hold) -> bool:
        """Whether nobody knows yet if it was told: another ledger may be the home of its key."""
        entry = self.courier.book.keys.find(hold.key) if hold.key is not None else None
        return entry is not None and entry.home is Home.ASKED

    # -- telling

    def on_warning(self, taker: WarningTaker) -> None:
        """`taker` is told (account, percent) when so much of an account is used, once for each by one node
        of all."""
        self.watch.takers.append(taker)

    def explain(self, tenant: str) -> Explanation:
        return explain(self.name, self.courier, self.chains, self._policy, tenant)

    def statistics(self) -> QuotaStatistics:
        """This node's part, and the whole as the last survey found it; asking begins another."""
        book = self.courier.book
        self.watch.refresh()
        return QuotaStatistics(
            ledger=book.identity,
            parent=book.parent or "",
            window=self.chains.name_window(),
            unit=self._policy.unit,
            mode=self._policy.mode,
            problem=self.courier.deposed,
            generation=book.ledger.generation,
            children=len(book.children),
            holds=len(book.ledger.holds),
            keys=len(book.keys),
            keys_forgotten=self._repeats.forgotten,
            lots=len(book.ledger.lots),
            surveys=self.watch.surveys,
            warnings=self.watch.warned,
            tenants=Rows({**self._policy.tenants, **dict.fromkeys(self.strangers)}, self._count),
            whole=Rows(self.watch.totals, self._count_whole),
        )

    def _count(self, tenant: str) -> TenantStatistics:
        name, book = self.chains.account(tenant), self.courier.book
        account = book.ledger.accounts.get(name) or NOTHING
        overdraft = overdraft_of(name)
        owed = book.ledger.accounts.get(overdraft) or NOTHING
        charging = self._find_charging(name)
        return TenantStatistics(
            limit=self.chains.limit(name) or self._find_limit(tenant),
            unspent=account.unspent + account.block + charging,
            ahead=account.ahead,
            held=account.held - account.ahead,
            spent=account.spent - charging,
            overdrawn=owed.held + owed.spent - self._find_charging(overdraft),
            unpaid=account.unpaid,
        )

    def _find_charging(self, account: str) -> int:
        demands = self.courier.book.demands
        return demands[account].charging if account in demands else 0

    def _find_limit(self, tenant: str) -> int:
        terms = self._policy.find(tenant)
        if terms is None:
            raise KeyError(tenant)  # it was removed since
        return terms.limit

    def _count_whole(self, account: str) -> AccountStatistics:
        return write_total(self.watch.totals[account], self.courier.book.stopped.get(account, ""))


def _offer(policy: QuotaPolicy) -> Offers:
    return Offers(
        keys=True, settles=True, refunds=True, lots=policy.mode == "fast", holds=True, over=policy.over
    )


def _choose_block(policy: QuotaPolicy) -> int:
    if policy.mode == "exact":
        return 0
    return AUTO if policy.block is None else policy.block


NOTHING = Account("")
"""Stands for an account that nobody has used at this node."""
