"""Four nodes, nested tenants, holds that are settled, kept and forgotten, limits that are raised and
cut, under every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from bursar.errors import JournalError, Refused, SessionExpiredError, StoreError, Unknown, UsageError
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas import accounts, operations
from bursar.quotas.book import NodeBook
from bursar.quotas.layout import Layout, Mints
from bursar.quotas.ledger import Hold
from bursar.quotas.resource import QuotaResource
from bursar.quotas.rules import BURSAR, Rules
from bursar.quotas.windows import Window, is_over, window_of
from bursar.resource import Grant
from bursar.sim.clock import WALL_START_NS
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.scenarios.quota.small import in_flight
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
PAUSE_NS = 120 * MILLISECOND_NS
CHANGE_NS = 8 * SECOND_NS
"""Each node changes a limit about twice in so long."""
CALM_NS = 3 * SECOND_NS
RULES = replace(BURSAR, resend_max_ns=SECOND_NS, retry_max_ns=500 * MILLISECOND_NS)


class QuotaScenario(Scenario):
    """The truth is what tenants were told: units of open grants, and what was used of closed ones."""

    duration_ns = 10 * SECOND_NS
    settle_ns = 12 * SECOND_NS
    mode: Literal["exact", "fast"] = "exact"
    window: Window = "none"
    rules: Rules = RULES
    resource_class: type[QuotaResource] = QuotaResource

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.highest = dict(LIMITS)
        self.refused = 0
        self.unknown = 0
        self.granted = 0
        self.final: dict[str, str] = {}
        self._resources: dict[str, QuotaResource] = {}
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
            block=10,
            hold_expiry_ns=expiry_ns,
        )

    async def _boot(self, world: World) -> None:
        resource = self.resource_class(world, "llm", self._policy(), self.rules)
        await resource.start()
        self._resources[world.name] = resource
        for tenant in LIMITS:
            world.spawn(self._live(world, resource, tenant), f"tenant.{tenant}")
        world.spawn(self._change_limits(world, resource), "operator")

    async def _change_limits(self, world: World, resource: QuotaResource) -> None:
        """Of `acme` and what is below it; that `plain` only falls is what its refusals are held to."""
        while True:
            await world.clock.sleep(world.random.randrange(0, CHANGE_NS))
            tenant = world.random.choice(("acme", "acme/search"))
            limit = LIMITS[tenant] * world.random.randrange(1, 16) // 10
            if self._calm:
                return
            self.highest[tenant] = max(self.highest[tenant], limit)
            try:
                await resource.set_limit(tenant, limit)
            except StoreError:
                continue  # done or not: the account in the store knows

    async def _live(self, world: World, resource: QuotaResource, tenant: str) -> None:
        number = 0
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
            number += 1
            amount = world.random.randrange(1, AMOUNT_MAX + 1)
            key = f"{world.name}-{world.incarnation}-{number}" if world.random.random() < 0.3 else None
            grant = await self._acquire(world, resource, tenant, amount, key)
            if grant is not None:
                await self._use(world, resource, grant, key)

    async def _acquire(
        self, world: World, resource: QuotaResource, tenant: str, amount: int, key: str | None
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
        self._tell(grant, amount)
        return grant

    async def _use(self, world: World, resource: QuotaResource, grant: Grant, key: str | None) -> None:
        """Most are settled at once, some for less than was held, some never."""
        if key is not None and world.random.random() < 0.5:
            again = await resource.acquire(grant.tenant, grant.amount, key=key)
            require(again.data is grant.data, "the same key was charged twice")
        if grant.tenant != "plain" and world.random.random() < 0.1:
            return
        await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
        used = grant.amount
        if grant.tenant != "plain":
            used = world.random.randrange(0, grant.amount + 1)
            try:
                grant.settle(used)
            except UsageError:
                return  # it expired and was charged in full
        await grant.release()
        self._tell(grant, used - grant.amount)

    def _tell(self, grant: Grant, amount: int) -> None:
        hold: Hold = grant.data
        for account in hold.accounts:
            self.told[account] += amount

    # -- what must hold

    def _books(self) -> dict[str, NodeBook]:
        """By ledger, of the nodes that are up."""
        books = [resource.courier.book for resource in self._resources.values()]
        return {book.identity: book for book in books}

    def _minted(self, account: str) -> int:
        lists: list[Mints] = [each.courier.mints.get(account, []) for each in self._resources.values()]
        return accounts.total(max(lists, key=len))

    def _unspent(self, account: str) -> int:
        """What is unspent at nodes that are up, or on its way between them."""
        books = self._books()
        here = sum(book.ledger.account(account).unspent for book in books.values())
        return here + in_flight(books, account)

    def _free(self, account: str) -> int:
        """What is unspent, less what requests under way are about to get."""
        books = [resource.courier.book for resource in self._resources.values()]
        waiting = [request for book in books for request in book.requests.values()]
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

    def check(self) -> None:
        for account, told in self.told.items():
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
            self._tell(grant, 1)
            await grant.release()
            self.final[name] = "granted"
        except Refused:
            free = self._free("plain")
            self.final[name] = "refused" if free <= 0 else f"refused while {free} were free"
        except Unknown as unknown:
            self.final[name] = f"unknown: {unknown}"

    def audit(self) -> None:
        books = {name: resource.courier.book for name, resource in self._resources.items()}
        require(len(books) == len(NODES), f"only {sorted(books)} are up")
        for name, said in self.final.items():
            require(said in ("granted", "refused"), f"{name} said {said}")
        require(len(self.final) == len(NODES), f"only {sorted(self.final)} answered")
        for account in LIMITS:
            self._audit_account(account)

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
        require(charged >= self.told[account], f"{charged} charged, {self.told[account]} told")


class FastQuotaScenario(QuotaScenario):
    """The same with blocks charged ahead. What a block has left is unspent where its node is up, so
    a refusal may come while another node is returning its own."""

    mode = "fast"


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
                await operations.fence(world.store, Layout("llm"), world.name)
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


class ShortWindows(QuotaResource):
    window_of = staticmethod(short_window_of)


class WindowedQuotaScenario(QuotaScenario):
    """Windows of a few seconds: no account is overspent, and those that are long over are forgotten."""

    window: Window = "hour"
    resource_class = ShortWindows

    def _unspent(self, account: str) -> int:
        return 0  # which accounts there are depends on whose clock is asked

    def _audit_account(self, account: str) -> None:
        now_ns = WALL_START_NS + self.sim.now_ns
        present, _ = short_window_of(self.window, now_ns)
        oldest, _ = short_window_of(self.window, now_ns - WINDOWS_KEPT * WINDOW_NS)
        for name, resource in self._resources.items():
            ledger, mints = resource.courier.book.ledger, resource.courier.mints
            over = [each for each in [*ledger.accounts, *mints] if is_over(each, oldest)]
            require(not over, f"{name} still has {', '.join(over)} in window {present}")
