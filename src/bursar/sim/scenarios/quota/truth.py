"""What tenants of a quota were told, kept outside of all nodes: it must have been charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bursar.sim.scenario import require


class Truth:
    """`told` counts units by account: of grants that are open all of them, of others at most what they
    were settled with. A grant that may have been settled for less counts as the less."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self._grants: dict[str, tuple[tuple[str, ...], int]] = {}

    def tell(self, id: str, accounts: tuple[str, ...], amount: int) -> None:
        """A grant was told, perhaps again."""
        if id not in self._grants:
            self._grants[id] = accounts, amount
            self.add(accounts, amount)

    def lower(self, id: str, used: int) -> None:
        """Somebody is about to settle it."""
        accounts, told = self._grants.get(id, ((), 0))
        if used < told:
            self._grants[id] = accounts, used
            self.add(accounts, used - told)

    def add(self, accounts: Iterable[str], amount: int) -> None:
        for account in accounts:
            self.told[account] += amount


class Job:
    """Work that is retried with one key, at any node, until it is settled."""

    def __init__(self, key: str, tenant: str, amount: int, began_ns: int) -> None:
        self.key = key
        self.tenant = tenant
        self.amount = amount
        self.began_ns = began_ns
        self.done = False
        self._settled: dict[str, set[int]] = {}

    def see(self, id: str, used: int | None) -> None:
        """A grant was told for the key: the same as before, unless that was given back."""
        for former, numbers in self._settled.items():
            if former != id and 0 not in numbers:
                require(False, f"the key {self.key} was charged twice: {former} and {id}")
        numbers = self._settled.setdefault(id, set())
        if used is not None:
            self.done = True
            said = used in numbers or used == self.amount
            require(said, f"the key {self.key} was settled with {sorted(numbers)}, and said {used}")

    def settle(self, id: str, used: int) -> None:
        """Somebody is about to settle it so."""
        self._settled[id].add(used)
