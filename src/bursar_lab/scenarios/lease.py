"""The lease under every fault, with clocks as far apart as the bound allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from bursar.book import Book, Effects
from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.search import Budget, Move, SmallWorld, State
from bursar.world import MILLISECOND_NS, SECOND_NS, World
from bursar_lab.leases.book import HolderBook, OwnerBook
from bursar_lab.leases.courier import HolderNode, OwnerNode

TOTAL = 2_000
TOKENS = 10
DURATION_NS = 400 * MILLISECOND_NS
DRIFT_PPM = 10_000
PAUSE_MAX_NS = 60 * MILLISECOND_NS
END_EARLY = 0.05


class LeaseScenario(Scenario):
    """Two nodes; the truth is what was spent, and what a crash of the holder may have lost."""

    duration_ns = 10 * SECOND_NS
    settle_ns = 5 * SECOND_NS
    drift_ppm = DRIFT_PPM
    owner_book: type[OwnerBook] = OwnerBook
    holder_book: type[HolderBook] = HolderBook

    def __init__(self) -> None:
        self.spent = 0
        self.lost_at_most = 0
        self._spent_of: dict[int, int] = {}
        self._owner_number = 0
        self._owner_unspent = TOTAL
        self._owner: OwnerBook | None = None
        self._holder: HolderBook | None = None
        self._looked_at: int | None = None
        self._granted_when_healed = 0

    def faults(self) -> Faults:
        # Most that can go wrong here goes wrong at a crash, while something is being synced.
        return replace(Faults.everything(), crashes=1.0, disk_slow=0.3, disk_errors=0.02)

    def nodes(self) -> Mapping[str, Boot]:
        return {"owner": self._boot_owner, "holder": self._boot_holder}

    def _boot_owner(self, world: World) -> None:
        node = OwnerNode(world, self.owner_book(TOTAL, TOKENS, "holder", DURATION_NS, DRIFT_PPM))
        node.start()
        self._owner = node.book

    async def _boot_holder(self, world: World) -> None:
        node = HolderNode(world, self.holder_book(world.incarnation, "owner", DURATION_NS))
        node.start()
        self._holder = node.book
        while True:
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
            if node.spend():
                self.spent += 1
                self._spent_of[node.book.number] = self._spent_of.get(node.book.number, 0) + 1
            elif world.random.random() < END_EARLY:
                node.end()

    def crashed(self, name: str) -> None:
        if name == "owner":
            self._owner = None
        elif self._holder is not None:
            self.lost_at_most += self._holder.at_risk()
            self._holder = None

    def check(self) -> None:
        owner, holder = self._owner, self._holder
        known = self.spent + (owner.unspent if owner else 0) + (holder.unspent if holder else 0)
        require(known <= TOTAL, f"{known} tokens are known of, {TOTAL} exist")
        if owner is None:
            return
        if owner.unspent != self._owner_unspent:
            self._check_return(owner)
        if holder is None:
            return
        together = owner.uses(self._time("owner")) and holder.uses(self._time("holder"))
        require(not together, "owner and holder use the thing at the same time")
        if owner.leased_until != self._looked_at and owner.leased_until is not None:
            # The owner begins to use it when time passes, without any event: look right then.
            self._looked_at = owner.leased_until
            self.sim.wake_at(self.sim.node("owner").clock.true_ns(owner.leased_until))

    def _check_return(self, owner: OwnerBook) -> None:
        """What comes back of a lease and what was spent of it are no more than its tokens. (The
        sum of all tokens alone would not tell, once a crash has lost some.)"""
        returned = owner.unspent - self._owner_unspent
        spent = self._spent_of.get(self._owner_number, 0)
        require(
            returned <= 0 or spent + returned <= TOKENS,
            f"{spent} tokens of lease {self._owner_number} were spent and {returned} came back, of {TOKENS}",
        )
        self._owner_unspent, self._owner_number = owner.unspent, owner.number

    def _time(self, name: str) -> int:
        return self.sim.node(name).clock.read()

    def healed(self) -> None:
        self._granted_when_healed = self._owner.number if self._owner else 0

    def audit(self) -> None:
        owner, holder = self._owner, self._holder
        assert owner is not None and holder is not None, "every node is up when a run is healed"
        known = self.spent + owner.unspent + holder.unspent + in_transit(owner, holder)
        require(
            known + self.lost_at_most >= TOTAL,
            f"{known} tokens are known of, crashes lost at most {self.lost_at_most}, {TOTAL} existed",
        )
        require(
            owner.number > self._granted_when_healed or owner.unspent < TOKENS,
            "no lease was granted since all faults were healed",
        )


def in_transit(owner: OwnerBook, holder: HolderBook) -> int:
    """Tokens that the owner has debited, and the holder not yet or no longer counts."""
    if owner.out is None:
        return 0
    return owner.out.tokens if holder.number < owner.out.number else holder.between()


class Ground(NamedTuple):
    """What is true, whatever the nodes believe."""

    spent: int = 0
    lost_at_most: int = 0


class SmallLease(SmallWorld):
    """Two leases' worth of tokens, the owner's clock the fastest and the holder's the slowest."""

    total = 4
    tokens = 2
    duration_ns = 50 * MILLISECOND_NS
    horizon_ns = 60 * MILLISECOND_NS
    budget = Budget(crashes=1, duplicates=1, moves=1)
    drift_ppm = MappingProxyType({"owner": DRIFT_PPM, "holder": -DRIFT_PPM})
    ground = Ground()
    owner_book: type[OwnerBook] = OwnerBook
    holder_book: type[HolderBook] = HolderBook

    def nodes(self) -> Mapping[str, Callable[[int], Book]]:
        return {
            "owner": lambda life: self.owner_book(
                self.total, self.tokens, "holder", self.duration_ns, DRIFT_PPM
            ),
            "holder": lambda life: self.holder_book(life, "owner", self.duration_ns),
        }

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        if name == "holder" and book.uses(now_ns):
            if book.unspent:
                yield Move("spends 1", _spend)
            yield Move("ends its lease", _end)

    def crashed(self, name: str, book: Any, ground: Ground) -> Ground:
        if name == "owner":
            return ground
        return ground._replace(lost_at_most=ground.lost_at_most + book.at_risk())

    def moments(self, state: State) -> Iterable[int]:
        owner: OwnerBook = state.nodes[0].book  # type: ignore[assignment]
        if owner.leased_until is not None:
            yield self.true_ns(state, 0, owner.leased_until)

    def check(self, state: State) -> None:
        owner, holder = state.books
        known = state.ground.spent + owner.unspent + holder.unspent
        require(known <= self.total, f"{known} tokens are known of, {self.total} exist")
        lost = self.total - known - in_transit(owner, holder)
        require(lost <= state.ground.lost_at_most, f"{lost} tokens vanished")
        together = owner.uses(self.local_ns(state, 0)) and holder.uses(self.local_ns(state, 1))
        require(not together, "owner and holder use the thing at the same time")


def _spend(book: HolderBook, now_ns: int, ground: Ground) -> tuple[Effects, Ground]:
    spent = book.spend(now_ns, 1)
    return [], ground._replace(spent=ground.spent + spent)


def _end(book: HolderBook, now_ns: int, ground: Ground) -> tuple[Effects, Ground]:
    return book.end(now_ns), ground


SCENARIO = LeaseScenario
SMALL_WORLD = SmallLease
