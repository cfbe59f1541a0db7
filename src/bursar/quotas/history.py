"""What was used: of every tenant in every window that is over, for bills.

When a window is over at every node, nothing of it is held and the audit finds nothing missing, the root
writes down what was used of it and has every node do so, each in a journal of its own: so the history
outlives any node's disk, and the coordination store has none of it. Only then is the window's account
forgotten. A correction by hand (a credit note) is a line of its own and changes no other. Nodes that were
away ask the others for what they missed.

A window may be written down again: a wall clock that visited the future for long ended it too soon. What was
used only rises, so the line with the most counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

import msgspec

from bursar.decoding import make_reader
from bursar.errors import NetworkError
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.requests import node_of
from bursar.world import MILLISECOND_NS, SECOND_NS, Message

AT_ONCE = 500
"""Lines in one message."""

ANSWER_NS = 2_000 * MILLISECOND_NS
COMPARE_NS = 60 * SECOND_NS


class Used(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """A window that is over. `written_off`: in ledgers that did not answer; whether they were used is not
    known."""

    tenant: str
    begin_s: int
    end_s: int
    limit: int
    used: int
    written_off: int = 0

    @property
    def key(self) -> str:
        return f"{self.begin_s} {self.tenant}"


class Adjusted(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """A correction of what a tenant is to pay for, by hand; `begin_s` is that of the window it is for, 0
    where there are none."""

    tenant: str
    begin_s: int
    end_s: int
    amount: int
    reason: str
    by: str
    at_ns: int

    @property
    def key(self) -> str:
        return f"{self.begin_s} {self.at_ns} {self.by} {self.tenant}"


Line = Used | Adjusted

encode = msgspec.msgpack.Encoder().encode
read_line = make_reader(Line, "line of what was used")


class Keep(Message, frozen=True):
    """Write these lines down."""

    lines: tuple[bytes, ...]


class Kept(Message, frozen=True):
    """They are on disk."""


class Compare(Message, frozen=True):
    """My lines add up to this: send me yours, from the so manieth on, if they do not."""

    sum: int
    after: int


class Missed(Message, frozen=True):
    """`more`: there are others after these."""

    lines: tuple[bytes, ...]
    more: bool


class History:
    """One node's. `used` and `adjusted` are by tenant, then by the begin of the window."""

    def __init__(self, courier: QuotaCourier) -> None:
        self.used: dict[str, dict[int, Used]] = {}
        self.adjusted: dict[str, dict[int, list[Adjusted]]] = {}
        self.lasts_ns = 0
        self._courier = courier
        self._world = courier.world
        self._topic = f"{courier.topic}/history"
        self._journal = courier.world.journal(f"{courier.topic}/usage")
        self._keys: dict[str, Line] = {}
        self._sum = 0

    def open(self) -> None:
        for record in self._journal.replay():
            self._take(read_line(record))

    def start(self) -> None:
        self._world.network.serve(self._topic, Keep | Compare, self._serve)
        self._world.spawn(self._catch_up(), self._topic)

    # -- what is known

    def _take(self, line: Line) -> bool:
        """Whether it says more than was known."""
        known = self._keys.get(line.key)
        if known is not None and not (isinstance(line, Used) and _says_more(line, known)):
            return False
        self._sum += crc32(encode(line)) - (crc32(encode(known)) if known is not None else 0)
        self._keys[line.key] = line
        if isinstance(line, Used):
            self.used.setdefault(line.tenant, {})[line.begin_s] = line
        else:
            self.adjusted.setdefault(line.tenant, {}).setdefault(line.begin_s, []).append(line)
        return True

    def has(self, line: Used) -> bool:
        known = self._keys.get(line.key)
        return isinstance(known, Used) and known.used >= line.used

    def count_adjusted(self, tenant: str, begin_s: int) -> int:
        return sum(each.amount for each in self.adjusted.get(tenant, {}).get(begin_s, ()))

    async def forget_old(self) -> None:
        """What ended longer ago than history is kept."""
        until_s = (self._world.clock.wall() - self.lasts_ns) // SECOND_NS
        kept = [line for line in self._keys.values() if not line.end_s or line.end_s > until_s]
        if len(kept) < len(self._keys):
            self._keys, self._sum, self.used, self.adjusted = {}, 0, {}, {}
            for line in kept:
                self._take(line)
            await self._journal.rewrite([encode(line) for line in kept])

    # -- writing down

    async def keep_everywhere(self, lines: Sequence[Line]) -> list[str]:
        """Here, and at every node that is not written off. The ledgers that did not say that they have it."""
        await self._keep(lines)
        book = self._courier.book
        others = sorted((book.members or frozenset()) - {book.identity})
        silent: list[str] = []
        for at in range(0, len(lines), AT_ONCE):
            said = tuple(encode(line) for line in lines[at : at + AT_ONCE])
            heard = await asyncio.gather(*(self._tell(other, said) for other in others))
            silent += [other for other, is_kept in zip(others, heard, strict=True) if not is_kept]
        return sorted(set(silent))

    async def _keep(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if self._take(line):
                self._journal.append(encode(line))
        await self._journal.sync()

    async def _tell(self, ledger: str, lines: tuple[bytes, ...]) -> bool:
        try:
            await self._world.network.call(node_of(ledger), self._topic, Keep(lines), Kept, ANSWER_NS)
        except NetworkError:
            return False
        return True

    async def _serve(self, sender: str, message: Message) -> Message:
        assert isinstance(message, Keep | Compare), "the network passes nothing else"
        if isinstance(message, Compare):
            if message.sum == self._sum:
                return Missed((), False)
            lines = list(self._keys.values())
            found = lines[message.after : message.after + AT_ONCE]
            return Missed(tuple(map(encode, found)), len(lines) > message.after + AT_ONCE)
        await self._keep(map(read_line, message.lines))
        return Kept()

    # -- what was missed

    async def _catch_up(self) -> None:
        while True:
            book = self._courier.book
            for other in sorted((book.members or frozenset()) - {book.identity}):
                await self._ask(other)
            await self._world.clock.sleep(COMPARE_NS if book.members else SECOND_NS)
            await self.forget_old()

    async def _ask(self, ledger: str) -> None:
        after, own, more = 0, self._sum, True
        while more:
            ask = Compare(own, after)
            try:
                reply: Missed = await self._world.network.call(
                    node_of(ledger), self._topic, ask, Missed, ANSWER_NS
                )
            except NetworkError:
                return  # it is asked again
            await self._keep(map(read_line, reply.lines))
            after, more = after + len(reply.lines), reply.more


def _says_more(line: Used, known: Line) -> bool:
    return isinstance(known, Used) and (line.used, line.limit) > (known.used, known.limit)


def walk(history: History, tenant: str) -> Iterator[Used]:
    """The windows of a tenant that are over, the oldest first."""
    return iter(sorted(history.used.get(tenant, {}).values(), key=lambda each: each.begin_s))
