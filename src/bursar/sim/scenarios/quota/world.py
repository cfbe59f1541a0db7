"""Four nodes, nested tenants, holds that are settled, kept and forgotten, limits that are raised and
cut, under every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from bursar.errors import JournalError, Refused, SessionExpiredError, StoreError, Unknown, UsageError
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas import accounts, operations
from bursar.quotas.balances import Lot
from bursar.quotas.book import NodeBook
from bursar.quotas.layout import Layout, Mints
from bursar.quotas.resource import QuotaDecider
from bursar.quotas.rules import BURSAR, Rules
from bursar.quotas.settling import read_id
from bursar.quotas.windows import Window, is_over, window_of
from bursar.resource import Issue
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.sim.clock import WALL_START_NS
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.scenarios.quota.small import in_flight
from bursar.sim.scenarios.quota.truth import Job, Truth
from bursar.world import MILLISECOND_NS, SECOND_NS, World

NODES = ("a", "b", "c", "d")
LOSES = 0.3
"""How often a node that crashed has lost its disk (`LossyQuotaScenario`)."""

HOUR_NS = 3600 * SECOND_NS
WINDOW_NS = 3 * SECOND_NS
WINDOWS_KEPT = 4
"""The present, the last, and two in which nobody asked for anything."""

LIMITS = {"plain": 240, "acme": 200, "acme/search": 120}
AMOUNT_MAX = 9
LARGE_MAX = 60
SIPPING = ("c", "d")
PAUSE_NS = 120 * MILLISECOND_NS
CHANGE_NS = 8 * SECOND_NS
"""Each node changes a limit about twice in so long."""
CALM_NS = 3 * SECOND_NS
RULES = replace(BURSAR, resend_max_ns=SECOND_NS, retry_max_ns=500 * MILLISECOND_NS)


class QuotaScenario(Scenario):
    """Tenants at every node acquire, settle and forget; jobs are retried with their keys at other nodes,
    fail (and are given back) or are left by clients that died; what one node granted is settled at another.
    """

    duration_ns = 10 * SECOND_NS
    settle_ns = 12 * SECOND_NS
    mode: Literal["exact", "fast"] = "exact"
    window: Window = "none"
    rules: Rules = RULES
    decider_class: type[QuotaDecider] = QuotaDecider
    job_ns = 10 * SECOND_NS
    large = 0.0
    block = 10

    def __init__(self) -> None:
        self.truth = Truth()
        self.highest = dict(LIMITS)
        self.refused = 0
        self.unknown = 0
        self.granted = 0
        self.replayed = 0
        self.settled_elsewhere = 0
        self.final: dict[str, str] = {}
        self._resources: dict[str, Resource] = {}
        self._deciders: dict[str, QuotaDecider] = {}
        self._jobs: list[Job] = []
        self._left: list[tuple[str, int]] = []
        self._troubled_ns = 0
        self._calm = False
        self._gone: list[tuple[int, int]] = []

    def nodes(self) -> Mapping[str, Boot]:
        return dict.fromkeys(NODES, self._boot)

    def _policy(self) -> QuotaPolicy:
        tenants = {
            "plain": QuotaTenant(limit=LIMITS["plain"]),
            "acme": QuotaTenant(limit=LIMITS["acme"]),
            "acme/search": QuotaTenant(limit=LIMITS["acme/search"], parent="acme"),
        }
        expiry_ns = 3 * SECOND_NS
        return QuotaPolicy(
            name="llm",
            tenants=tenants,
            mode=self.mode,
            window=self.window,
            block=self.block,
            hold_expiry_ns=expiry_ns,
        )

    async def _boot(self, world: World) -> None:
        policy = self._policy()
        decider = self.decider_class(world, "llm", policy, self.rules)
        resource = Resource(world, decider, policy)
        await resource.start()
        self._resources[world.name], self._deciders[world.name] = resource, decider
        for tenant in LIMITS:
            world.spawn(self._live(world, resource, tenant), f"tenant.{tenant}")
        world.spawn(self._change_limits(world, resource), "operator")
        world.spawn(self._retry_jobs(world, resource), "jobs")

    async def _change_limits(self, world: World, resource: Resource) -> None:
        """Of `acme` and what is below it; that `plain` only falls is what its refusals are held to."""
        while True:
            await world.clock.sleep(world.random.randrange(0, CHANGE_NS))
            tenant = world.random.choice(("acme", "acme/search"))
            limit = LIMITS[tenant] * world.random.randrange(1, 16) // 10
            if self._calm:
                return
            self.highest[tenant] = max(self.highest[tenant], limit)
            try:
                await resource.verb("set_limit", tenant=tenant, limit=limit)
            except StoreError:
                continue  # done or not: the account in the store knows

    async def _live(self, world: World, resource: Resource, tenant: str) -> None:
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
            most = LARGE_MAX if world.random.random() < self.large else AMOUNT_MAX
            amount = world.random.randrange(1, most + 1)
            grant = await self._acquire(world, resource, tenant, amount, None)
            if grant is not None:
                await self._use(world, resource, grant)

    async def _acquire(
        self, world: World, resource: Resource, tenant: str, amount: int, key: str | None
    ) -> Grant | None:
        waits = world.random.choice((0.0, 0.5))
        before = self._free("plain")
        try:
            grant = await resource.acquire(tenant, amount, wait=waits, key=key)
        except Refused:
            self._check_refusal(tenant, amount, before)
            self.refused += 1
            return None
        except Unknown:
            self.unknown += 1
            if tenant == "plain":
                self._gone.append((self.sim.now_ns, amount))
            return None
        self.granted += 1
        self.replayed += grant.replayed
        self._tell(grant)
        return grant

    async def _use(self, world: World, resource: Resource, grant: Grant) -> None:
        """Most are settled at once, some for less than was held, some never, some at another node."""
        if grant.tenant == "plain":
            await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
            await grant.release()
            return
        chance = world.random.random()
        if chance < 0.1:
            return
        await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
        if chance < 0.3 and grant.id:
            self._left.append((grant.id, grant.amount))
            return
        await self._settle(grant, world.random.randrange(0, grant.amount + 1))

    async def _settle(self, grant: Grant, used: int) -> None:
        if grant.id:
            self.truth.lower(grant.id, used)
        else:
            self.truth.add(_accounts_of_lot(grant), used - grant.amount)
        grant.settle(used)
        try:
            await grant.release()
        except (UsageError, Unknown):
            return  # it expired and was charged in full; or nobody knows yet

    def _tell(self, grant: Grant) -> None:
        if not grant.id:
            self.truth.add(_accounts_of_lot(grant), grant.amount)
            return
        ledger, number = read_id(grant.id)
        home = self._books().get(ledger)
        hold = home.ledger.find_hold(number) if home is not None else None
        if hold is not None:
            told = hold.amount if hold.used is None else hold.used
            self.truth.tell(grant.id, hold.accounts, told)

    # -- jobs

    async def _retry_jobs(self, world: World, resource: Resource) -> None:
        number = 0
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
            if self._left and world.random.random() < 0.5:
                await self._settle_left(world, resource)
            waiting = [job for job in self._jobs if not job.done and self._is_young(job)]
            if waiting and world.random.random() < 0.7:
                job = world.random.choice(waiting)
            else:
                number += 1
                key = f"{world.name}-{world.incarnation}-{number}"
                amount = world.random.randrange(1, AMOUNT_MAX + 1)
                job = Job(key, world.random.choice(("acme", "acme/search")), amount, self.sim.now_ns)
                self._jobs.append(job)
            await self._do(world, resource, job)

    def _is_young(self, job: Job) -> bool:
        return self.sim.now_ns - job.began_ns < self.job_ns

    async def _settle_left(self, world: World, resource: Resource) -> None:
        """What was granted at any node, perhaps in an earlier life, is settled from this one."""
        id, amount = self._left.pop(world.random.randrange(0, len(self._left)))
        used = world.random.randrange(0, amount + 1)
        self.truth.lower(id, used)
        try:
            await resource.settle(id, used)
            self.settled_elsewhere += 1
        except (UsageError, Unknown):
            return  # it expired, or its node is away

    async def _do(self, world: World, resource: Resource, job: Job) -> None:
        """Some jobs fail, some are left by a client that died, and are retried."""
        grant = await self._acquire(world, resource, job.tenant, job.amount, job.key)
        if grant is None:
            return
        job.see(grant.id, grant.used)
        chance = world.random.random()
        if grant.closed or chance < 0.25:
            return
        await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
        used = 0 if chance < 0.55 else world.random.randrange(1, job.amount + 1)
        job.settle(grant.id, used)
        await self._settle(grant, used)

    # -- what must hold

    def _books(self) -> dict[str, NodeBook]:
        """By ledger, of the nodes that are up."""
        books = [decider.courier.book for decider in self._deciders.values()]
        return {book.identity: book for book in books}

    def _minted(self, account: str) -> int:
        lists: list[Mints] = [each.courier.mints.get(account, []) for each in self._deciders.values()]
        return accounts.total(max(lists, key=len))

    def _unspent(self, account: str) -> int:
        """What is unspent at nodes that are up, or on its way between them."""
        books = self._books()
        here = sum(book.ledger.account(account).unspent for book in books.values())
        return here + in_flight(books, account)

    def _free(self, account: str) -> int:
        """What is unspent, less what requests under way are about to get."""
        waiting = [request for book in self._books().values() for request in book.requests.values()]
        return self._unspent(account) - sum(r.amount for r in waiting if account in r.accounts)

    def _check_refusal(self, tenant: str, amount: int, before: int) -> None:
        """`plain` gives nothing back, so what is unspent only falls; but a crash undoes holds that
        nobody was told of, and units may be on their way to a request that has just given up."""
        troubled = self.sim.now_ns - self._troubled_ns < CALM_NS
        if tenant == "plain" and not troubled and len(self._resources) == len(NODES):
            gone = sum(units for when, units in self._gone if when > self.sim.now_ns - SECOND_NS)
            free = min(before, self._free(tenant)) - gone
            require(amount > free, f"{amount} were refused while {free} were free")

    def crashed(self, name: str) -> None:
        self._troubled_ns = self.sim.now_ns
        self._resources.pop(name, None)
        self._deciders.pop(name, None)

    def check(self) -> None:
        for account, told in self.truth.told.items():
            limit = self.highest[account.partition("@")[0]]
            if told > limit:  # asked after every event: the words are made when needed
                require(False, f"{told} of {account}'s {limit} were granted")

    def healed(self) -> None:
        self._calm = True
        self._troubled_ns = self.sim.now_ns
        for name in NODES:
            self.sim.spawn(self._probe(name), f"probe.{name}")

    async def _probe(self, name: str) -> None:
        """Once all is healed every request is granted or refused, never unknown."""
        from bursar.sim.loop import sleep_until

        await sleep_until(self.sim.loop, self.duration_ns + self.settle_ns // 2)
        resource = self._resources.get(name)
        require(resource is not None, f"{name} did not come back")
        assert resource is not None
        try:
            grant = await resource.acquire("plain", 1, wait=4.0)
            self._tell(grant)
            await grant.release()
            self.final[name] = "granted"
        except Refused:
            free = self._free("plain")
            self.final[name] = "refused" if free <= 0 else f"refused while {free} were free"
        except Unknown as unknown:
            self.final[name] = f"unknown: {unknown}"

    def audit(self) -> None:
        require(len(self._deciders) == len(NODES), f"only {sorted(self._deciders)} are up")
        for name, said in self.final.items():
            require(said in ("granted", "refused"), f"{name} said {said}")
        require(len(self.final) == len(NODES), f"only {sorted(self.final)} answered")
        for account in LIMITS:
            self._audit_account(account)
        self._audit_keys()

    def _audit_keys(self) -> None:
        """Of the holds of one key, in all ledgers, at most one is charged."""
        charged: Counter[str] = Counter()
        for book in self._books().values():
            holds = [*book.ledger.holds.values(), *book.ledger.closed.values()]
            charged.update(hold.key for hold in holds if hold.key is not None and hold.used != 0)
        twice = [key for key, count in charged.items() if count > 1]
        require(not twice, f"charged twice: {', '.join(twice)}")

    def _audit_account(self, account: str) -> None:
        books = self._books()
        lines = [book.ledger.account(account) for book in books.values()]
        for line in lines:
            kept = line.unspent + line.block + line.held + line.spent
            require(line.endowment == kept, f"{account}: {line.endowment} units, {kept} accounted for")
        known = sum(line.endowment for line in lines) + in_flight(books, account)
        minted = self._minted(account)
        debt = sum(line.debt for line in lines)
        require(
            known == minted + debt, f"the audit finds {known} of {account}'s {minted} units, {debt} overdrawn"
        )
        left = known - sum(line.held + line.spent for line in lines)
        require(
            not debt or not left, f"{left} of {account} are left, and a cut of {debt} was not carried out"
        )
        charged = sum(line.held + line.spent for line in lines)
        told = self.truth.told[account]
        require(charged >= told, f"{charged} charged, {told} told")


def _accounts_of_lot(grant: Grant) -> tuple[str, ...]:
    lot: Lot = grant._source.data
    return lot.accounts


class FastQuotaScenario(QuotaScenario):
    """The same with blocks charged ahead, and lots out of them. What a block has left is unspent where its
    node is up, so a refusal may come while another node is returning its own; but not while a lot is out."""

    mode = "fast"
    large = 0.2
    block = 40

    async def _boot(self, world: World) -> None:
        await super()._boot(world)
        self._deciders[world.name].recall = partial(self._recall, world, self._resources[world.name])

    async def _live(self, world: World, resource: Resource, tenant: str) -> None:
        if tenant == "plain" and world.name in SIPPING:
            await self._sip(world, resource)
        else:
            await super()._live(world, resource, tenant)

    async def _sip(self, world: World, resource: Resource) -> None:
        """Little at a time, from lots that last long."""
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, 2 * PAUSE_NS))
            grant = resource.try_acquire("plain")
            if grant is not None:
                self.granted += 1
                self._tell(grant)
                await grant.release()

    async def _recall(self, world: World, resource: Resource, issue: Issue) -> int | None:
        """Some holders do not answer."""
        if world.random.random() < 0.3:
            return None
        await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
        return resource.hand.end(issue.tenant)

    def _unspent(self, account: str) -> int:
        out = sum(book.ledger.account(account).ahead for book in self._books().values())
        return super()._unspent(account) + out


class LossyQuotaScenario(QuotaScenario):
    """Nodes that lose their disk come back once they were fenced, with a new ledger. What the old one
    had is gone, and is handed out by nobody."""

    async def _boot(self, world: World) -> None:
        if world.incarnation > 1 and not self._calm and world.random.random() < LOSES:
            await world.journal("quota/llm").rewrite([])
        try:
            await super()._boot(world)
        except JournalError as error:
            if "quota fence" not in str(error):
                raise
            await self._fence(world)
            await super()._boot(world)

    async def _fence(self, world: World) -> None:
        """As an operator: until the store has it."""
        expired = False
        while True:
            try:
                if expired:
                    await world.store.renew()
                    expired = False
                await operations.fence(
                    world.store, Layout("llm"), world.name, by="operator", at_ns=world.clock.wall()
                )
                return
            except (StoreError, UsageError) as error:  # or its last life's session still counts as up
                expired = expired or isinstance(error, SessionExpiredError)
                await world.clock.sleep(PAUSE_NS)

    def _unspent(self, account: str) -> int:
        """What is on its way may be on its way to a lost ledger."""
        return sum(book.ledger.account(account).unspent for book in self._books().values())

    def _audit_account(self, account: str) -> None:
        """A cut that a lost ledger had to take may not have been carried out."""
        known = sum(book.ledger.account(account).endowment for book in self._books().values())
        highest = self.highest[account]
        require(known <= highest, f"the audit finds {known} of {account}'s {highest} units")


def short_window_of(window: Window, wall_ns: int) -> tuple[str, int | None]:
    """As if each were an hour."""
    number = (wall_ns - WALL_START_NS) // WINDOW_NS
    name, _ = window_of("hour", WALL_START_NS + number * HOUR_NS)
    return name, WALL_START_NS + (number + 1) * WINDOW_NS


class ShortWindows(QuotaDecider):
    window_of = staticmethod(short_window_of)


class WindowedQuotaScenario(QuotaScenario):
    """Windows of a few seconds: no account is overspent, and those that are long over are forgotten."""

    window: Window = "hour"
    decider_class = ShortWindows
    job_ns = WINDOW_NS  # a key goes with its window

    def _unspent(self, account: str) -> int:
        return 0  # which accounts there are depends on whose clock is asked

    def _audit_account(self, account: str) -> None:
        now_ns = WALL_START_NS + self.sim.now_ns
        present, _ = short_window_of(self.window, now_ns)
        oldest, _ = short_window_of(self.window, now_ns - WINDOWS_KEPT * WINDOW_NS)
        for name, decider in self._deciders.items():
            ledger, mints = decider.courier.book.ledger, decider.courier.mints
            over = [each for each in [*ledger.accounts, *mints] if is_over(each, oldest)]
            require(not over, f"{name} still has {', '.join(over)} in window {present}")
