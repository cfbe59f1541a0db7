"""Keys: the same key is one acquisition, wherever it is asked.

A key has one *home*: the ledger whose hold stands for it, named in the store. Everybody else asks
that ledger, which answers from its own lines. At one node a key goes through these states:

    (none)    nothing is known of it here
    ASKED     units are held for it, durably, and the store is asked to make this ledger its home
    OURS      this ledger is its home: the hold may be told, and told again
    FREEING   the hold is over and the key is to be free again: the store is asked to forget it

**Invariants.** A hold is told only while its key is OURS, and a key is OURS only while the store names
this very hold; the store names one hold for a key. So no two holds of one key are ever told, unless the
first was given back unused before the second was made. A home in the store always has a durable hold
behind it (the hold comes first), so what a crash leaves behind is found in the ledger: an open hold is
ASKED again, one that was given back is FREEING again. A hold whose key turns out to have another home was
told to nobody, and is given back.

**A ledger that is written off** takes its keys along: they are forgotten, and who asks with one again is
charged again, within the limits. If the ledger comes back after all, all of its keys are ASKED again before
it tells anybody of them, and those that have another home by now are that one's.

**Why a record for each key, and not partitions of all keys with an owner each?** With partitions nobody has
to be asked but the owner, and a store that is away is not missed. But every keyed request is then charged at
the owner: units go there instead of to where the work is, and while one owner of n is down an n-th of all
*new* keys cannot be used anywhere, though nothing of them was ever granted; a partition may not move before
its ledger is fenced. With records a request is charged where it is asked, hold and key are one line there
too, a home never moves, and a node that is down takes along only the keys that it granted itself. The price
is one change of the store for each new key, which is made while the grant waits: many that are asked for at
once share a transaction, and where the store does not answer a keyed request is `Unknown`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from bursar.quotas.balances import Hold
from bursar.quotas.ledger import Ledger
from bursar.quotas.windows import is_over
from bursar.world import SECOND_NS

KEY_MEMORY_NS = 24 * 3600 * SECOND_NS
"""A key is remembered so long after its settlement, or until its window is forgotten."""

KEYS_MAX = 1_000_000
"""Keys remembered by one node; beyond it the oldest that are settled are forgotten first."""


class Home(Enum):
    ASKED = "asked"
    OURS = "ours"
    FREEING = "freeing"


class Entry:
    """A key that is known here. `request` is answered when its home is known; 0 for none. `over`: that the
    hold ended is durable."""

    __slots__ = ("hold", "home", "over", "request")

    def __init__(self, hold: Hold, home: Home, request: int = 0) -> None:
        self.hold = hold
        self.home = home
        self.request = request
        self.over = False


class Keys:
    """The keys of one ledger. The courier takes `asking` (keys whose home is to be asked for) and works
    through `freeing` (key -> number of the hold), and tells the book what the store said."""

    def __init__(self) -> None:
        self.asking: list[tuple[str, int]] = []
        self.freeing: dict[str, int] = {}
        self._doubted: list[tuple[str, int]] = []
        self._entries: dict[str, Entry] = {}
        self._settled: deque[tuple[int, str, int]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def open(self, now: int, ledger: Ledger) -> None:
        """Take up what earlier lives left. How long ago they settled is not known: time begins anew."""
        for key, hold in ledger.keys.items():
            if hold.used is None:
                self.add(hold)
                self.ask(hold)
            else:
                self._entries[key] = Entry(hold, Home.OURS)
                self.settle(now, hold)

    def doubt(self) -> None:
        """The ledger was written off and is back: its keys may have other homes by now. Until the store has
        said so nobody is told of any."""
        for key, entry in self._entries.items():
            if entry.home is Home.OURS:
                entry.home = Home.ASKED
                self._doubted.append((key, entry.hold.number))

    def take_doubted(self) -> list[tuple[str, int]]:
        doubted, self._doubted = self._doubted, []
        return doubted

    def add(self, hold: Hold, request: int = 0) -> None:
        """Units are held for the key."""
        assert hold.key is not None and hold.key not in self._entries, "one hold at a time for a key"
        self._entries[hold.key] = Entry(hold, Home.ASKED, request)

    def ask(self, hold: Hold) -> None:
        """The hold is durable: ask the store for the key's home."""
        assert hold.key is not None
        self.asking.append((hold.key, hold.number))

    def win(self, key: str, number: int) -> int:
        """The store says that this hold stands for the key; the request to be answered."""
        entry = self._entries.get(key)
        if entry is None or entry.hold.number != number or entry.home is not Home.ASKED:
            return 0
        entry.home = Home.OURS
        self.close(entry.hold)
        return entry.request

    def lose(self, key: str, number: int) -> Entry | None:
        """The store says that another ledger is the key's home: nothing was told here."""
        entry = self._entries.get(key)
        if entry is None or entry.hold.number != number or entry.home is not Home.ASKED:
            return None
        return self._entries.pop(key)

    def close(self, hold: Hold) -> None:
        """The hold is over: from now on nobody is told of one that was given back. (A key whose home is
        being asked for is freed when that is known.)"""
        if hold.used == 0:
            self._free(hold)

    def settle(self, now: int, hold: Hold) -> None:
        """That it is over is durable: it is remembered for a time, or free if nothing was used."""
        entry = self._entries.get(hold.key or "")
        if entry is None or entry.hold is not hold or hold.key is None:
            return
        entry.over = True
        if hold.used:
            self._settled.append((now + KEY_MEMORY_NS, hold.key, hold.number))
        else:
            self._free(hold)

    def _free(self, hold: Hold) -> None:
        entry = self._entries.get(hold.key or "")
        if entry is not None and entry.hold is hold and entry.home is not Home.ASKED:
            entry.home = Home.FREEING
            if entry.over:
                self.freeing[hold.key or ""] = hold.number

    def end(self, key: str, number: int) -> bool:
        """The store has forgotten the key; False for old news."""
        if self.freeing.get(key) != number:
            return False
        del self.freeing[key], self._entries[key]
        return True

    def sweep(self, now: int) -> None:
        """Free the keys whose time is over, and the oldest where there are too many."""
        over = len(self._entries) - len(self.freeing) - KEYS_MAX
        while self._settled and (self._settled[0][0] <= now or over > 0):
            _, key, number = self._settled.popleft()
            over -= self._free_number(key, number)

    def _free_number(self, key: str, number: int) -> int:
        entry = self._entries.get(key)
        if entry is None or entry.hold.number != number:
            return 0
        self._free(entry.hold)
        return 1

    def forget_windows(self, horizon_s: int) -> None:
        """Keys go with their windows."""
        for entry in self._entries.values():
            if entry.over and is_over(entry.hold.accounts[0], horizon_s):
                self._free(entry.hold)
