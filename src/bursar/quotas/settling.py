"""Ending a hold by its id, here or at another node, now or after a restart.

An id is the ledger and the number of the hold in it; both outlive the process, so whoever knows the id
can settle, from anywhere. The ledger answers from its lines: what it has settled before it says again.
"""

from __future__ import annotations

from typing import Any, NoReturn

from bursar.decoding import is_number
from bursar.errors import NetworkError, Refused, Unknown, UsageError
from bursar.quotas.balances import Hold
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.expiring import Expiry
from bursar.quotas.growing import Growth
from bursar.quotas.requests import Refusal, node_of
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


class Extend(Message, frozen=True):
    """Your hold expires so long from now on."""

    ledger: str
    hold: int
    hold_ns: int


class Grow(Message, frozen=True):
    """See that your hold has so many units."""

    ledger: str
    hold: int
    size: int


class Settled(Message, frozen=True):
    """It is so, durably. `size`: what the hold has now, or had."""

    size: int


class Short(Message, frozen=True):
    """There was less than that, which is decided."""

    why: str
    limit: int | None
    remaining: int | None
    reason: str


class Wrong(Message, frozen=True):
    """It is not so, and what is instead."""

    why: str


def make_id(ledger: str, number: int) -> str:
    return f"{ledger}/{number}"


def read_id(id: str) -> tuple[str, int]:
    ledger, _, number = id.rpartition("/")
    if not ledger or not is_number(number):
        raise UsageError(f"{id!r} is no id of a quota's grant: pass what grant.id said")
    return ledger, int(number)


class Settling:
    """One node's part: settles its own holds, and asks others to settle theirs."""

    def __init__(self, courier: QuotaCourier, growth: Growth, expiry: Expiry) -> None:
        self._courier = courier
        self._growth = growth
        self._expiry = expiry
        self._world = courier.world
        self._topic = f"{courier.topic}/settle"

    def start(self) -> None:
        self._world.network.serve(self._topic, Settle | Extend | Grow | Whose, self._serve)

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
            await self._ask(ledger, Settle(ledger, number, used), Settled | Wrong | Short)

    async def grow(self, id: str, size: int) -> int:
        """See that the hold has so many units, by the policy's `over`; how many it has. Raises Refused."""
        ledger, number = read_id(id)
        if ledger == self._courier.book.identity:
            return await self._grow_here(number, size)
        reply = await self._ask(ledger, Grow(ledger, number, size), Settled | Wrong | Short)
        assert isinstance(reply, Settled), "asked for"
        return reply.size

    async def extend(self, id: str, hold_ns: int) -> None:
        ledger, number = read_id(id)
        if ledger == self._courier.book.identity:
            await self._extend_here(number, hold_ns)
        else:
            await self._ask(ledger, Extend(ledger, number, hold_ns), Settled | Wrong)

    async def undo(self, id: str) -> None:
        """Nobody was told of the grant by the answer that brought it. If it has a key and was repeated since,
        whoever was told of it then goes on with it, and settles it."""
        _, number = read_id(id)
        hold = self._find(number)
        if not hold.repeated:
            await self._settle_here(number, 0)

    async def _serve(self, sender: str, message: Message) -> Message:
        assert isinstance(message, Settle | Extend | Grow | Whose), "the network passes nothing else"
        if message.ledger != self._courier.book.identity:
            return Wrong(f"the ledger {message.ledger} is no longer kept at this node")
        try:
            return await self._do(message)
        except UsageError as error:
            return Wrong(str(error))
        except Refused as refused:
            return Short(refused.why, refused.limit, refused.remaining, refused.reason)

    async def _do(self, message: Settle | Extend | Grow | Whose) -> Message:
        match message:
            case Settle(_, number, used):
                await self._settle_here(number, used)
            case Extend(_, number, hold_ns):
                await self._extend_here(number, hold_ns)
            case Grow(_, number, size):
                await self._grow_here(number, size)
            case Whose(_, number):
                return Belongs(self._find(number).tenant)
        return Settled(self._find(number).size)

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
        wanted = hold.size if used is None else used
        if wanted > (most := self._growth.most(hold)) and wanted != hold.claimed:
            await self._settle_nonsense(hold, wanted, most)
        short = await self._growth.cover(hold, wanted) if hold.used is None and wanted > hold.size else None
        if hold.used is None:
            charged = min(wanted, hold.size)
            self._courier.settle(hold, charged, wanted - charged)
        elif hold.expired and wanted > hold.used and not hold.unpaid:
            self._courier.note_unpaid(hold, wanted - hold.used)
        if hold.written or hold.unpaid:
            await self._courier.wait_durable()
        is_short = hold.claimed == wanted and hold.unpaid and not hold.expired
        if is_short and self._growth.policy.over != "refuse":
            raise _tell_unpaid(hold, short)
        told_otherwise = used is not None and hold.unpaid and not hold.expired
        if hold.used != wanted or told_otherwise:
            raise UsageError(_explain(hold, wanted))

    async def _settle_nonsense(self, hold: Hold, wanted: int, most: int) -> NoReturn:
        """What it has is charged; for a number that cannot be it does not grow, and nothing is unpaid."""
        if hold.used is None:
            self._courier.settle(hold, hold.size)
        if hold.written:
            await self._courier.wait_durable()
        raise UsageError(
            f"settled with {wanted}: {hold.used} of the {hold.size} that were acquired are charged, and the "
            f"rest is taken for a mistake, because {most} is the most that can be used: say what was used"
        )

    async def _grow_here(self, number: int, size: int) -> int:
        hold = self._find_open(number)
        short = await self._growth.cover(hold, size)
        if hold.written:
            await self._courier.wait_durable()
        if short is not None:
            raise Refused(_explain_short(hold, size, short, self._growth.policy.over), remaining=short.left)
        return self._find_open(number).size

    async def _extend_here(self, number: int, hold_ns: int) -> None:
        hold = self._find_open(number)
        self._courier.extend(hold, hold_ns)
        self._expiry.put_off(self._world.clock.now(), hold)
        if hold.written:
            await self._courier.wait_durable()

    def _find_open(self, number: int) -> Hold:
        hold = self._find(number)
        if hold.used is not None:
            how = "it had expired" if hold.expired else "it was settled"
            raise UsageError(f"this grant is over: {how}, and {hold.used} of its {hold.size} were charged")
        return hold

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
        if isinstance(reply, Short):
            raise Refused(reply.why, limit=reply.limit, remaining=reply.remaining, reason=reply.reason)
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
    charged = f"{hold.used} of the {hold.size} that were acquired"
    if hold.expired:
        return (
            f"settled with {wanted} after it had expired: {charged} were charged; set a longer hold_expiry, "
            "or extend it"
        )
    if hold.claimed == wanted:
        return (
            f'settled with {wanted}: {charged} are charged, and no more (over = "refuse"); the {hold.unpaid} '
            "beyond are counted as unpaid: acquire as much as may be used"
        )
    return f"settled with {wanted} after it had ended: {charged} were charged already"


def _tell_unpaid(hold: Hold, short: Refusal | None) -> Refused:
    why = (
        f"settled with {hold.claimed}: {hold.used} are charged, and the {hold.unpaid} beyond are counted as "
        "unpaid, because nothing is left for them"
    )
    return Refused(why, remaining=0 if short is None else short.left, reason="unpaid")


def _explain_short(hold: Hold, size: int, short: Refusal, over: str) -> str:
    if over == "refuse":
        return (
            f"{size} are used of the {hold.size} that were acquired, and no more can be had for it "
            '(over = "refuse"): acquire as much as may be used, or set over = "take"'
        )
    return f"{size} are used of the {hold.size} that were acquired, and {short.account} has {short.left} left"
