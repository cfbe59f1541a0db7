"""Four nodes, nested tenants, holds that are settled, kept and forgotten, limits that are raised and
cut, under every fault."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bursar.errors import Refused, StoreError, Unknown, UsageError
from bursar.quotas import accounts
from bursar.quotas.balances import Hold, Lot
from bursar.quotas.book import NodeBook
from bursar.quotas.layout import Layout, Mints, read_tenant
from bursar.quotas.operations import ANY_NODE
from bursar.quotas.overdrafts import overdraft_of
from bursar.quotas.resource import QuotaDecider
from bursar.quotas.rules import BURSAR, Rules
from bursar.quotas.settling import make_id, read_id
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.sim.chance import draw_ns
from bursar.sim.operators import look_often
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.scenarios.quota.policies import GUEST_LIMIT, LIMITS, OVERDRAFTS, QuotaPolicies
from bursar.sim.scenarios.quota.small import in_flight
from bursar.sim.scenarios.quota.truth import Job, Truth
from bursar.world import MILLISECOND_NS, SECOND_NS, World

NODES = ("a", "b", "c", "d")
AMOUNT_MAX = 9
LARGE_MAX = 60
BEYOND = 1.5
FAR_BEYOND = 0.1
"""So often what is settled is far more than what was acquired."""

LONG_S = 3600
"""Beyond the end of every run."""

PAUSE_NS = 120 * MILLISECOND_NS
IMPATIENT = 0.1
TOPPING_UP = 0.3
TOP_UP_MAX = 10
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
    fixed: Mapping[str, Any] = {}
    """Terms that the scenario needs as they are, whatever the seed draws."""

    anchors: Mapping[str, str] = {}
    """The days that tenants' windows are counted from."""

    policies: QuotaPolicies
    rules: Rules = RULES
    decider_class: type[QuotaDecider] = QuotaDecider
    job_ns = 10 * SECOND_NS
    large = 0.0
    long_s = LONG_S
    briefly = 0.7
    """How many grants are used at once; the others are held for long, and used in parts."""

    def __init__(self) -> None:
        self.truth = Truth()
        self.highest = dict(LIMITS)
        self.refused = 0
        self.unknown = 0
        self.granted = 0
        self.replayed = 0
        self.settled_elsewhere = 0
        self.unpaid = 0
        self.heard = 0
        self.final: dict[str, str] = {}
        self._resources: dict[str, Resource] = {}
        self._deciders: dict[str, QuotaDecider] = {}
        self._jobs: list[Job] = []
        self.lost: set[str] = set()
        """Ledgers that were written off because their disk was lost."""
        self._left: list[tuple[str, int]] = []
        self._open: list[tuple[str, int]] = []
        self._troubled_ns = 0
        self._calm = False
        self._gone: list[tuple[int, int]] = []

    def nodes(self) -> Mapping[str, Boot]:
        self.policies = QuotaPolicies(self.sim.chance.stream("policy"), self.fixed, self.anchors)
        self.highest |= dict.fromkeys(self.policies.guests, GUEST_LIMIT)
        self.highest |= {overdraft_of(tenant): OVERDRAFTS.get(tenant, 0) for tenant in LIMITS}
        return dict.fromkeys(NODES, self._boot)

    @property
    def tenants(self) -> tuple[str, ...]:
        return (*LIMITS, *self.policies.guests)

    async def _boot(self, world: World) -> None:
        policy = self.policies.first
        decider = self.decider_class(world, "llm", policy, self.rules)
        resource = Resource(world, decider, policy)
        await resource.start()
        self._resources[world.name], self._deciders[world.name] = resource, decider
        for tenant in self.tenants:
            world.spawn(self._live(world, resource, tenant), f"tenant.{tenant}")
        world.spawn(self._change_limits(world, resource), "operator")
        world.spawn(self._retry_jobs(world, resource), "jobs")
        world.spawn(self._say_again(world, resource), "settles")
        self._operate(world, resource)

    def _operate(self, world: World, resource: Resource) -> None:
        """What people do besides: by chance of its own, so that it changes no other choice."""
        draw = self.sim.chance.stream(f"operator/{world.name}")
        world.spawn(look_often(world, resource, self.tenants, draw), "looks")
        world.spawn(self._survey(world, resource, draw), "survey")

    async def _survey(self, world: World, resource: Resource, draw: random.Random) -> None:
        """Every node is asked what it has, and a changed policy is read: not its limits, which have an
        operator of their own."""
        while not self._calm:
            await world.clock.sleep(draw_ns(draw, 0, CHANGE_NS))
            try:
                await resource.verb("survey")
                await resource.reconfigure(self.policies.change())
            except (StoreError, Unknown):
                continue

    async def _change_limits(self, world: World, resource: Resource) -> None:
        """Of `acme` and what is below it; that `plain` only falls is what its refusals are held to."""
        while True:
            await world.clock.sleep(world.random.randrange(0, CHANGE_NS))
            tenant = world.random.choice(("acme", "acme/search"))
            limit = LIMITS[tenant] * world.random.randrange(1, 16) // 10
            more = world.random.randrange(-20, TOP_UP_MAX + 1) if world.random.random() < TOPPING_UP else 0
            if self._calm:
                return
            self.highest[tenant] = max(self.highest[tenant], limit) if not more else self.highest[tenant]
            self.highest[tenant] += max(0, more)
            layout = self._deciders[world.name].courier.layout
            before = self._read_mints(layout, tenant)
            try:
                if more:
                    said = await resource.verb("top_up", account=tenant, amount=more)
                else:
                    said = await resource.verb("set_limit", tenant=tenant, limit=limit)
                self._check_heard(layout, said, before)
            except (StoreError, Refused, UsageError):
                continue  # done or not: the account in the store knows

    def _read_mints(self, layout: Layout, tenant: str) -> dict[str, Mints]:
        """Of the tenant's windows, as the store has them at this moment."""
        path = layout.tenant(tenant)
        if self.sim.tree.exists(path) is None:
            return {}
        record = read_tenant(self.sim.tree.get(path)[0])
        return {name: window.mints for name, window in record.windows.items()}

    def _check_heard(self, layout: Layout, said: Mapping[str, Any], before: Mapping[str, Mints]) -> None:
        """Whoever was told that a limit was changed was told of every node that has not carried it out."""
        account = said["account"]
        known = before.get(account.partition("@")[2], [])
        if accounts.total(known) == said["limit"] or ANY_NODE in said["unheard"]:
            return
        for name, decider in self._deciders.items():
            courier = decider.courier
            if courier.layout.root == layout.root and courier.book.identity not in said["unheard"]:
                mints = courier.mints.get(account)
                heard = mints is None or len(mints) > len(known)
                require(heard, f"{name} has not heard that {account} was changed, and nobody was told")
                self.heard += heard

    async def _live(self, world: World, resource: Resource, tenant: str) -> None:
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
            most = LARGE_MAX if world.random.random() < self.large else AMOUNT_MAX
            amount = world.random.randrange(1, most + 1)
            if tenant != "plain" and world.random.random() < IMPATIENT:
                caller = world.spawn(self._ask(world, resource, tenant, amount), f"impatient.{tenant}")
                await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
                caller.cancel()
            else:
                await self._ask(world, resource, tenant, amount)

    async def _ask(self, world: World, resource: Resource, tenant: str, amount: int) -> None:
        grant = await self._acquire(world, resource, tenant, amount, None)
        if grant is not None:
            await self._use(world, resource, grant)

    async def _acquire(
        self, world: World, resource: Resource, tenant: str, amount: int, key: str | None
    ) -> Grant | None:
        waits = world.random.choice((0.0, 0.5))
        before = self._free("plain")
        hold = self.long_s if world.random.random() < 0.1 else None
        try:
            grant = await resource.acquire(tenant, amount, wait=waits, key=key, hold=hold)
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
        if hold is not None and not grant.replayed:
            self._note_extended(grant)
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
        if chance > self.briefly and grant.id:
            await self._use_long(world, grant)
        if chance < 0.3 and grant.id:
            self._left.append((grant.id, grant.amount))
            return
        await self._settle(grant, self._draw_used(world, grant.used or 0, grant.amount))

    def _draw_used(self, world: World, least: int, amount: int) -> int:
        """Mostly less than was acquired, now and then more, and sometimes far more."""
        most = int(amount * BEYOND) + (LARGE_MAX if world.random.random() < FAR_BEYOND else 0)
        return world.random.randrange(least, max(least, most) + 1)

    async def _use_long(self, world: World, grant: Grant) -> None:
        """In parts, which may be more than was acquired; some say that it takes longer."""
        try:
            if world.random.random() < 0.5:
                await grant.extend(self.long_s)
                self._note_extended(grant)
            for _ in range(world.random.randrange(1, 4)):
                await grant.spend(world.random.randrange(1, AMOUNT_MAX))
                self._tell_more(grant.id, grant.amount)
                await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
        except Refused:
            self.refused += 1
        except (UsageError, Unknown):
            return  # it expired; or nobody knows yet

    def _note_extended(self, grant: Grant) -> None:
        if grant.id and self.long_s == LONG_S:
            self.truth.extended[grant.id] = None

    async def _settle(self, grant: Grant, used: int) -> None:
        if grant.id:
            self.truth.lower(grant.id, used)
        elif not self.policies.shadow:
            used = min(used, grant.amount)
            self.truth.add(_accounts_of_lot(grant), used - grant.amount)
        try:
            grant.settle(used)
        except UsageError:
            pass  # more than was acquired, where the policy says no
        try:
            await grant.release()
        except UsageError:
            return  # it expired and was charged in full
        except Unknown:
            self._open.append((grant.id, used))
            return
        except Refused:
            self.unpaid += 1
        self._note_settled(grant.id, used)

    async def _say_again(self, world: World, resource: Resource) -> None:
        """What was settled and not decided is said again, at any node, until it is: also after the calm."""
        while True:
            await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
            if not self._open:
                continue
            id, used = told = self._open[0]
            try:
                await resource.settle(id, used)
            except (UsageError, Unknown) as error:
                if told in self._open and (isinstance(error, UsageError) or len(self._open) > 1):
                    self._open.remove(told)
                    self._open += [told] if isinstance(error, Unknown) else []
                continue
            except Refused:
                self.unpaid += 1
            if told in self._open:
                self._open.remove(told)
            self._note_settled(id, used)

    def _note_settled(self, id: str, used: int) -> None:
        if id and not self.policies.shadow:
            self.truth.settled[id] = used
            self._tell_more(id, used)

    def _tell_more(self, id: str, amount: int) -> None:
        """So many were charged, as whoever asked was told; as far as it is known what was unpaid of them."""
        hold = self._find_hold(id)
        if hold is not None and not self.policies.shadow:
            charged = amount if hold.used is None else min(amount, hold.used)
            self.truth.grow(id, hold.parts(), charged)

    def _find_hold(self, id: str) -> Hold | None:
        ledger, number = read_id(id)
        home = self._books().get(ledger)
        return home.ledger.find_hold(number) if home is not None else None

    def _tell(self, grant: Grant) -> None:
        if self.policies.shadow:
            return  # nobody is refused, so what callers were told is not what was charged
        if not grant.id:
            self.truth.add(_accounts_of_lot(grant), grant.amount)
            return
        hold = self._find_hold(grant.id)
        if hold is not None:
            told = hold.size if hold.used is None else hold.used
            self.truth.tell(grant.id, hold.parts(), told)

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
        used = self._draw_used(world, 0, amount)
        self.truth.lower(id, used)
        try:
            whose = await resource.whose(id)
            require(whose.startswith("acme") or whose in self.tenants, f"{id} is of {whose}")
            await resource.settle(id, used)
            self.settled_elsewhere += 1
        except UsageError:
            return  # it expired
        except Unknown:
            self._open.append((id, used))  # its node is away, or not everybody could be asked
            return
        except Refused:
            self.unpaid += 1
        self._note_settled(id, used)

    async def _do(self, world: World, resource: Resource, job: Job) -> None:
        """Some jobs fail, some are left by a client that died, and are retried."""
        grant = await self._acquire(world, resource, job.tenant, job.amount, job.key)
        if grant is None:
            return
        if self.policies.shadow:
            await grant.release()
            return
        job.see(grant.id, grant.used, self.lost)
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
        for ledger, book in self._books().items():
            require(not book.stopped, f"{ledger}: {'; '.join(book.stopped.values())}")
        for account in self.tenants:
            self._audit_account(account)
            if any(overdraft_of(account) in each.courier.mints for each in self._deciders.values()):
                self._audit_account(overdraft_of(account))
        self._audit_keys()
        for ledger, book in self._books().items():
            self._audit_holds(ledger, book)

    def _audit_holds(self, ledger: str, book: NodeBook) -> None:
        """What clients counted is what is charged or unpaid, grant by grant, and so in the sum."""
        unpaid: Counter[str] = Counter()
        for hold in [*book.ledger.holds.values(), *book.ledger.closed.values()]:
            self.truth.check_hold(make_id(ledger, hold.number), hold)
            for account in hold.accounts:
                unpaid[account] += hold.unpaid
        for name, line in book.ledger.accounts.items():
            known = unpaid[name]
            require(known == line.unpaid, f"{line.unpaid} of {name} are unpaid, {known} by grants")

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
