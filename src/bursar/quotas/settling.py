"""Ending a hold by its id, here or at another node, now or after a restart.

An id is the ledger and the number of the hold in it; both outlive the process, so whoever knows the id
can settle, from anywhere. The ledger answers from its lines: what it has settled before it says again.
"""

from __future__ import annotations

from typing import Any

from bursar.errors import NetworkError, Unknown, UsageError
from bursar.quotas.balances import Hold
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.requests import node_of
from bursar.world import MILLISECOND_NS, Message

ANSWER_NS = 500 * MILLISECOND_NS


class Settle(Message, frozen=True):
    """So much of your hold was used; None: all of it."""

    ledger: str
    hold: int
    used: int | None


class Whose(Message, frozen=True):
    """Which tenant is your hold of?"""

    ledger: str
    hold: int


class Belongs(Message, frozen=True):
    tenant: str


class Settled(Message, frozen=True):
    """It is so, durably."""


class Wrong(Message, frozen=True):
    """It is not so, and what is instead."""

    why: str


def make_id(ledger: str, number: int) -> str:
    return f"{ledger}/{number}"


def read_id(id: str) -> tuple[str, int]:
    ledger, _, number = id.rpartition("/")
    if not ledger or not number.isascii() or not number.isdigit():
        raise UsageError(f"{id!r} is no id of a quota's grant: pass what grant.id said")
    return ledger, int(number)


class Settling:
    """One node's part: settles its own holds, and asks others to settle theirs."""

    def __init__(self, courier: QuotaCourier) -> None:
        self._courier = courier
        self._world = courier.world
        self._topic = f"{courier.topic}/settle"

    def start(self) -> None:
        self._world.network.serve(self._topic, Settle | Whose, self._serve)

    async def whose(self, id: str) -> str:
        """The tenant of a grant."""
        ledger, number = read_id(id)
        if ledger == self._courier.book.identity:
            return self._find(number).tenant
        reply = await self._ask(ledger, Whose(ledger, number), Belongs | Wrong)
        assert isinstance(reply, Belongs), "asked for"
        return reply.tenant

    async def settle(self, id: str, used: int | None) -> None:
        ledger, number = read_id(id)
        if ledger == self._courier.book.identity:
            await self._settle_here(number, used)
        else:
            await self._settle_there(ledger, number, used)

    async def undo(self, id: str) -> None:
        """Nobody was told of the grant by the answer that brought it. If it has a key and was repeated since,
        whoever was told of it then goes on with it, and settles it."""
        _, number = read_id(id)
        hold = self._find(number)
        if not hold.repeated:
            await self._settle_here(number, 0)

    async def _serve(self, sender: str, message: Message) -> Message:
        assert isinstance(message, Settle | Whose), "the network passes nothing else"
        if message.ledger != self._courier.book.identity:
            return Wrong(f"the ledger {message.ledger} is no longer kept at this node")
        try:
            if isinstance(message, Whose):
                return Belongs(self._find(message.hold).tenant)
            await self._settle_here(message.hold, message.used)
        except UsageError as error:
            return Wrong(str(error))
        return Settled()

    def _find(self, number: int) -> Hold:
        hold = self._courier.book.ledger.find_hold(number)
        if hold is None:
            raise UsageError(
                f"no grant {make_id(self._courier.book.identity, number)} is known: it ended long ago, or "
                'was charged in full when its node crashed (mode = "fast")'
            )
        return hold

    async def _settle_here(self, number: int, used: int | None) -> None:
        hold = self._find(number)
        wanted = hold.amount if used is None else used
        if hold.used is None:
            self._courier.settle(hold, min(wanted, hold.amount))
        if hold.written:
            await self._courier.wait_durable()
        if hold.used != wanted:
            raise UsageError(_explain(hold, wanted))

    async def _settle_there(self, ledger: str, number: int, used: int | None) -> None:
        await self._ask(ledger, Settle(ledger, number, used), Settled | Wrong)

    async def _ask(self, ledger: str, message: Message, replies: Any) -> Message:
        await self._check_ledger(ledger)
        try:
            reply: Message = await self._world.network.call(
                node_of(ledger), self._topic, message, replies, ANSWER_NS
            )
        except NetworkError as error:
            raise Unknown(
                f"{node_of(ledger)}, which made the grant, did not answer: settle again later"
            ) from error
        if isinstance(reply, Wrong):
            raise UsageError(reply.why)
        return reply

    async def _check_ledger(self, ledger: str) -> None:
        courier = self._courier
        if ledger in (courier.book.members or ()):
            return
        known = await courier.persist(lambda: self._world.store.exists(courier.layout.ledger(ledger)))
        if known is None:
            raise UsageError(f"there is no ledger {ledger!r}: pass what grant.id said")
        if ledger in courier.book.fenced:
            raise Unknown(f"the ledger {ledger} was written off: settle again if its node comes back")


def _explain(hold: Hold, wanted: int) -> str:
    charged = f"{hold.used} of the {hold.amount} that were acquired"
    if hold.expired:
        return f"settled with {wanted} after it had expired: {charged} were charged; set a longer hold_expiry"
    if wanted > hold.amount:
        return f"settled with {wanted}: {charged} are charged, and no more; acquire as much as may be used"
    return f"settled with {wanted} after it had ended: {charged} were charged already"
