"""The two books of the lease: all the state that its invariants rest on."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bursar.book import Effects, Record, Send
from bursar.world import MILLISECOND_NS, Message

RESEND_NS = 100 * MILLISECOND_NS
PPM = 1_000_000


class Ask(Message, frozen=True):
    """Holder to owner: lease me the thing and some tokens. Life and time are the holder's own and
    come back with the lease, so that the lease is counted from the asking."""

    life: int
    asked_at: int


class Lease(Message, frozen=True):
    """Owner to holder: these tokens are yours, and the thing for a while. Repeated until the
    tokens are back."""

    number: int
    life: int
    asked_at: int
    tokens: int


class Return(Message, frozen=True):
    """Holder to owner: the lease is over, so many tokens are unspent. Repeated until settled."""

    number: int
    unspent: int


class Settled(Message, frozen=True):
    """Owner to holder: the return is durable here; forget it."""

    number: int


Messages = Ask | Lease | Return | Settled


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A line of either journal: lease `number` began with so many tokens, or ended with them."""

    number: int
    tokens: int
    ended: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class Pending:
    """What was written and is not yet known to be durable, oldest first."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._durable = 0

    def write(self, entry: Entry) -> Record:
        self.entries.append(entry)
        return Record(_encode(entry))

    def take_durable(self, records: int) -> list[Entry]:
        """Those among the first `records` of this life that were not taken before."""
        count = max(0, records - self._durable)
        self._durable += count
        durable, self.entries = self.entries[:count], self.entries[count:]
        return durable


def guarded_ns(duration_ns: int, drift_ppm: int) -> int:
    """The time on one clock that is surely at least `duration_ns` on another, when either may be
    off by `drift_ppm`."""
    return -(-duration_ns * (PPM + drift_ppm) // (PPM - drift_ppm))


class OwnerBook:
    """The owner's side.

    Invariants: `unspent` falls when a lease is written and rises once for each lease, when its
    return is durable. `uses(now)` is false from the granting until the return is durable or
    `guarded_ns` have passed.
    """

    def __init__(self, total: int, tokens: int, holder: str, duration_ns: int, drift_ppm: int) -> None:
        self.unspent = total
        self.number = 0
        self._tokens = tokens
        self._holder = holder
        self._wait_ns = guarded_ns(duration_ns, drift_ppm)
        self.out: Lease | None = None
        self._out_durable = False
        self.leased_until: int | None = None
        self._resend_at: int | None = None
        self._pending = Pending()

    def uses(self, now: int) -> bool:
        """Whether the owner itself may use the thing."""
        if self.out is None:
            return True
        return self.leased_until is not None and now >= self.leased_until

    def replay(self, records: Iterable[bytes]) -> None:
        for entry in map(_decode, records):
            if entry.ended:
                self.unspent += entry.tokens
                self.out = None
            else:
                self.unspent -= entry.tokens
                self.number = entry.number
                self.out = Lease(entry.number, 0, 0, entry.tokens)
        self._out_durable = self.out is not None

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        match message:
            case Ask():
                return self._grant(now, message)
            case Return():
                return self._take_back(message)
        return []

    def _grant(self, now: int, ask: Ask) -> Effects:
        if self.out is not None or self.unspent < self._tokens:
            return []
        self.number += 1
        self.unspent -= self._tokens
        self.out = Lease(self.number, ask.life, ask.asked_at, self._tokens)
        self._out_durable = False
        self.leased_until = now + self._wait_ns
        return [self._pending.write(Entry(self.number, self._tokens, ended=False))]

    def _take_back(self, message: Return) -> Effects:
        if self.out is None or message.number != self.out.number:
            return [Send(self._holder, Settled(message.number))]
        if self._is_writing(message.number):
            return []
        return [self._pending.write(Entry(message.number, message.unspent, ended=True))]

    def _is_writing(self, number: int) -> bool:
        return any(entry.ended and entry.number == number for entry in self._pending.entries)

    def synced(self, now: int, records: int) -> Effects:
        effects: Effects = []
        for entry in self._pending.take_durable(records):
            if entry.ended:
                self.unspent += entry.tokens
                self.out = self._resend_at = None
                effects.append(Send(self._holder, Settled(entry.number)))
            else:
                self._out_durable = True
                effects += self._resend(now)
        return effects

    def _resend(self, now: int) -> Effects:
        if self.out is None or not self._out_durable:
            return []
        self._resend_at = now + RESEND_NS
        return [Send(self._holder, self.out)]

    def tick(self, now: int) -> Effects:
        if self.out is not None and self.leased_until is None:
            # A restarted owner does not know how long ago it granted: the whole time, from now.
            self.leased_until = now + self._wait_ns
        if self._resend_at is None or now >= self._resend_at:
            return self._resend(now)
        return []

    def wake_at(self) -> int | None:
        return self._resend_at


class HolderBook:
    """The holder's side.

    Invariants: `unspent` rises once for each lease number, when its arrival is durable, and goes
    to zero when its end is written. `uses(now)` is true only within `duration_ns` of the asking
    that the lease answers, and only in the life that asked.
    """

    def __init__(self, life: int, owner: str, duration_ns: int) -> None:
        self.unspent = 0
        self.number = 0
        self._life = life
        self._owner = owner
        self._duration_ns = duration_ns
        self._until = 0
        self._live = False
        self._arriving: Lease | None = None
        self._returning: Return | None = None
        self._return_durable = False
        self._resend_at: int | None = None
        self._pending = Pending()

    def uses(self, now: int) -> bool:
        return self._live and now < self._until

    def spend(self, now: int, tokens: int) -> bool:
        """Spend tokens of a live lease: local and at once."""
        if not self.uses(now) or self.unspent < tokens:
            return False
        self.unspent -= tokens
        return True

    def between(self) -> int:
        """Tokens that are written down here but do not count: arriving, or on their way back."""
        arriving = self._arriving.tokens if self._arriving is not None else 0
        return arriving + (self._returning.unspent if self._returning is not None else 0)

    def at_risk(self) -> int:
        """The most tokens that a crash at this moment would lose."""
        returned = self._returning is not None and self._return_durable
        return self.unspent + (0 if returned else self.between())

    def replay(self, records: Iterable[bytes]) -> None:
        for entry in map(_decode, records):
            self.number = entry.number
            # A lease that never ended: what was left of it is unknown, so it counts as spent.
            self._returning = Return(entry.number, entry.tokens if entry.ended else 0)
            self._return_durable = entry.ended

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        match message:
            case Lease() if message.number > self.number:
                return self._arrive(message)
            case Settled() if self._returning is not None and message.number == self._returning.number:
                self._returning = None
                return self._ask(now)
        return []

    def _arrive(self, lease: Lease) -> Effects:
        self.number = lease.number
        self._arriving = lease
        self._returning = None  # a later lease says that the earlier one is settled
        self._resend_at = None
        return [self._pending.write(Entry(lease.number, lease.tokens, ended=False))]

    def synced(self, now: int, records: int) -> Effects:
        effects: Effects = []
        for entry in self._pending.take_durable(records):
            if entry.ended:
                self._return_durable = True
                effects += self._resend(now)
            else:
                effects += self._begin(now)
        return effects

    def _begin(self, now: int) -> Effects:
        lease, self._arriving = self._arriving, None
        assert lease is not None, "an arrival is durable once"
        self.unspent += lease.tokens
        self._live = True
        # A lease that an earlier life asked for is over: its time was another clock's.
        self._until = lease.asked_at + self._duration_ns if lease.life == self._life else now
        return [] if self.uses(now) else self.end(now)

    def end(self, now: int) -> Effects:
        """Let go of the thing and give back what is unspent; nothing without a lease."""
        if not self._live:
            return []
        self._live = False
        self._returning = Return(self.number, self.unspent)
        self._return_durable = False
        self.unspent = 0
        return [self._pending.write(Entry(self.number, self._returning.unspent, ended=True))]

    def _resend(self, now: int) -> Effects:
        if self._returning is None or not self._return_durable:
            return []
        self._resend_at = now + RESEND_NS
        return [Send(self._owner, self._returning)]

    def _ask(self, now: int) -> Effects:
        self._resend_at = now + RESEND_NS
        return [Send(self._owner, Ask(self._life, now))]

    def tick(self, now: int) -> Effects:
        if self._live:
            return self.end(now) if now >= self._until else []
        if self._arriving is not None or now < (self._resend_at or 0):
            return []
        if self._returning is None:
            return self._ask(now)
        if not self._return_durable and not self._pending.entries:
            # The life before this one crashed during a lease: write its end now.
            return [self._pending.write(Entry(self._returning.number, 0, ended=True))]
        return self._resend(now)

    def wake_at(self) -> int | None:
        return self._until if self._live else self._resend_at
