"""What tenants of a quota were told, kept outside of all nodes: it must have been charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from bursar.quotas.balances import Hold, Part
from bursar.quotas.settling import read_id
from bursar.sim.scenario import require


class Truth:
    """`told` counts units by account: of grants that are open all of them, of others at most what they
    were settled with. A grant that may have been settled for less counts as the less. `settled` are those of
    which the settlement was decided, `extended` those that have time until long after the run."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.settled: dict[str, int] = {}
        self.extended: dict[str, None] = {}
        self.grown = 0
        self._grants: dict[str, tuple[tuple[Part, ...], int]] = {}

    def tell(self, id: str, parts: tuple[Part, ...], amount: int) -> None:
        """A grant was told, perhaps again."""
        if id not in self._grants:
            self._set(id, parts, amount)

    def grow(self, id: str, parts: tuple[Part, ...], amount: int) -> None:
        """It was told that so many of it are charged, which may be more than before."""
        if amount > self._grants.get(id, ((), 0))[1]:
            self.grown += 1
            self._set(id, parts, amount)

    def told_of(self, id: str) -> int:
        """So many of it are charged, as far as anybody was told."""
        return self._grants.get(id, ((), 0))[1]

    def lower(self, id: str, used: int) -> None:
        """Somebody is about to settle it."""
        parts, told = self._grants.get(id, ((), 0))
        if used < told:
            self._set(id, parts, used)

    def _set(self, id: str, parts: tuple[Part, ...], amount: int) -> None:
        before, told = self._grants.get(id, ((), 0))
        self._add_parts(before, told, -1)
        self._add_parts(parts, amount, 1)
        self._grants[id] = parts, amount

    def _add_parts(self, parts: tuple[Part, ...], amount: int, sign: int) -> None:
        for accounts, size in parts:
            used = min(size, amount)
            amount -= used
            self.add(accounts, sign * used)

    def add(self, accounts: Iterable[str], amount: int) -> None:
        for account in accounts:
            self.told[account] += amount

    def check_hold(self, id: str, hold: Hold) -> None:
        """What whoever settled was told is what the ledger says for good: so is whatever is made of it."""
        used = self.settled.get(id)
        if used is not None and not hold.expired:
            require(hold.claimed == used, f"{id} was settled with {used}, and its ledger says {hold.claimed}")
        require(not (hold.expired and id in self.extended), f"{id} was extended, and expired all the same")


class Job:
    """Work that is retried with one key, at any node, until it is settled."""

    def __init__(self, key: str, tenant: str, amount: int, began_ns: int) -> None:
        self.key = key
        self.tenant = tenant
        self.amount = amount
        self.began_ns = began_ns
        self.done = False
        self._settled: dict[str, set[int]] = {}

    def see(self, id: str, used: int | None, lost: Collection[str] = ()) -> None:
        """A grant was told for the key: the same as before, unless that was given back, or was in a ledger
        that was lost and written off."""
        for former, numbers in self._settled.items():
            if former != id and 0 not in numbers and read_id(former)[0] not in lost:
                require(False, f"the key {self.key} was charged twice: {former} and {id}")
        numbers = self._settled.setdefault(id, set())
        if used is not None:
            self.done = True
            said = used in numbers or used == self.amount
            require(said, f"the key {self.key} was settled with {sorted(numbers)}, and said {used}")

    def settle(self, id: str, used: int) -> None:
        """Somebody is about to settle it so."""
        self._settled[id].add(used)
