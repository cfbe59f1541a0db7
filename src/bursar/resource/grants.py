"""What callers hold: a grant, and the acquisition that becomes one."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bursar.errors import Unknown, UsageError
from bursar.resource.checks import check_used
from bursar.world import SECOND_NS

if TYPE_CHECKING:
    from bursar.resource.door import Resource
    from bursar.resource.lots import Lot
    from bursar.resource.tickets import Granted

NO_FENCE: Mapping[str, int] = {}


class Grant:
    """What was granted. Leave it by `async with`, or call `release()`.

    tenant    who got it
    amount    tokens charged to the tenant for it
    closed    whether it was released
    """

    __slots__ = ("_door", "_granted", "_lot", "_used", "_warned", "amount", "closed", "tenant")

    def __init__(
        self, door: Resource, tenant: str, amount: int, lot: Lot | None, granted: Granted | None
    ) -> None:
        self._door = door
        self.tenant = tenant
        self.amount = amount
        self._lot = lot
        self._granted = granted
        self.closed = False
        self._used: int | None = None
        self._warned = False

    @property
    def resource(self) -> str:
        return self._door.name

    @property
    def settles(self) -> bool:
        """Whether its kind keeps it under an id, by which it is settled from anywhere."""
        return self._door.settles

    @property
    def _source(self) -> Granted:
        granted = self._granted if self._lot is None else self._lot.granted
        assert granted is not None, "every grant comes from a decision or from a lot"
        return granted

    @property
    def period(self) -> int:
        """The period that it was charged to; 0 for kinds without periods."""
        return self._source.period

    @property
    def id(self) -> str:
        """A name under which it can be settled from anywhere (`Resource.settle`); "" if it cannot."""
        return self._source.id if self._lot is None else ""

    @property
    def fence(self) -> Mapping[str, int]:
        """For a claim: the phase of each name, to be checked wherever it is used."""
        return self._source.fence or NO_FENCE

    @property
    def fallback(self) -> str | None:
        """None, or what the policy did because bursar could not be reached, or only counts."""
        return self._source.fallback

    @property
    def replayed(self) -> bool:
        """Whether the key was used before: this is that acquisition, not another one."""
        return self._source.replayed

    @property
    def limit(self) -> int | None:
        """The tenant's limit, where it has one."""
        return self._source.limit

    @property
    def remaining(self) -> int | None:
        """What was left of it after this grant, as far as is known here."""
        left = self._source.remaining
        if left is None:
            return None
        # What was charged ahead with it is not used yet.
        return left + (self._source.ahead if self._lot is None else self._lot.left)

    @property
    def reset_after(self) -> float | None:
        """Seconds, counted from the decision, until the limit begins anew."""
        reset_ns = self._source.reset_ns
        return None if reset_ns is None else reset_ns / SECOND_NS

    @property
    def used(self) -> int | None:
        """What `settle` was told (for a key that was used before: what was used then), or None."""
        return self._source.used if self._used is None else self._used

    def settle(self, used: int) -> None:
        """Say what was really used; the rest is given back when the grant is left. What is above the amount
        is charged, or counted as unpaid, by a quota's `over`; other kinds charge what was acquired."""
        if check_used(used) > self.amount and not self._may_grow():
            self._used = used if self.id else self.amount
            self._warned = True
            raise UsageError(
                f"settle({used}) is above the {self.amount} that were acquired; those are charged, the "
                f"{used - self.amount} beyond them are not: acquire as much as may be used"
            )
        if self.closed and self.used != used:
            raise UsageError("this grant was released already; settle before leaving it")
        self._used = used

    def _may_grow(self) -> bool:
        offers = self._door.decider.offers
        return offers.holds and bool(self.id) and offers.over != "refuse"

    async def spend(self, tokens: int) -> None:
        """So many more were used, of work that goes on. As long as the amount covers them all, nobody is
        asked; beyond it more is acquired first, by the policy's `over`. Raises Refused where there is no
        more: then these are not counted. Where nothing else is settled, what was spent is charged."""
        used = (self._used or 0) + check_used(tokens)
        if self.closed:
            raise UsageError("this grant was released already; spend before leaving it")
        self._door.check_holds("spend")
        if used > self.amount:
            await self._door.grow(self, used)
        self._used = used

    async def extend(self, hold: float | str) -> None:
        """The work takes longer: what is held expires so long from now on (600, or "10min"). Raises
        UsageError, Unknown."""
        if self.closed:
            raise UsageError("this grant was released already; it cannot be extended")
        await self._door.extend(self, hold)

    def let_go(self) -> Awaitable[None] | None:
        """As `release`, for whoever cannot wait: what is still to be done, where there is something."""
        if self.closed:
            return None
        self.closed = True
        return self._door.end_at_once(self)

    async def lost(self, wait: float | None = None) -> bool:
        """Of a claim: True as soon as its names were taken away by force, or because this process was taken
        for dead; False when it was released, or after `wait` seconds. Asks the store, so while that cannot
        be reached nothing is heard, and the fence is what protects."""
        if not self._door.decider.offers.names:
            raise UsageError(f"{self.resource} is of kind {self._door.kind}; only a claim can be lost")
        clock = self._door.clock
        until_ns = None if wait is None else clock.now() + int(wait * SECOND_NS)
        while not self.closed:
            left_s = 1.0 if until_ns is None else max(0.0, (until_ns - clock.now()) / SECOND_NS)
            try:
                is_gone = await self._door.verb("wait_lost", id=self.id, timeout=min(1.0, left_s))
            except Unknown:
                is_gone = False
                await clock.sleep(SECOND_NS // 10)
            if self.closed or is_gone:
                return not self.closed
            if left_s <= 0:
                return False
        return False

    async def more(self, *names: str, wait: float = 0.0) -> Grant:
        """Claim more names while these are held, all of them or none: `fence` has theirs too, and they are
        released with the rest. Raises Refused; where that says that somebody began earlier, let go of this
        grant and begin again. Raises UsageError, Unknown."""
        if self.closed:
            raise UsageError("this grant was released already; it cannot have more")
        await self._door.more(self, names, wait)
        return self

    async def release(self) -> None:
        """Give back what is to be given back. Calling it again does nothing."""
        if not self.closed:
            self.closed = True
            try:
                await self._door.end(self)
            except UsageError:
                if not self._warned:
                    raise

    def lose(self) -> Awaitable[None] | None:
        """Whoever it was handed on to is gone and said nothing: what the kind does about that. Nothing
        where its units are settled by its id, or expire by their policy."""
        if self.closed or self._lot is not None or (self.id and self.settles):
            return None
        self.closed = True
        return self._door.lose(self._source)

    async def __aenter__(self) -> Grant:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._used is None and self._door.refunds:
            # Reserve, then pay what was used: work that failed before saying so used nothing.
            self._used = 0
        await self.release()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Grant {self.amount} of {self.resource} to {self.tenant}, {state}>"


class Acquisition:
    """What `acquire` returns: await it for a grant that you release, or use it in `async with`."""

    __slots__ = (
        "_amount",
        "_by",
        "_door",
        "_grant",
        "_hold_ns",
        "_key",
        "_names",
        "_priority",
        "_tenant",
        "_wait_ns",
    )

    def __init__(
        self,
        door: Resource,
        tenant: str,
        amount: int,
        wait_ns: int,
        key: str | None,
        names: tuple[str, ...] = (),
        priority: int = 0,
        hold_ns: int = 0,
        by: int | None = None,
    ) -> None:
        self._door = door
        self._by = by
        self._tenant = tenant
        self._amount = amount
        self._wait_ns = wait_ns
        self._key = key
        self._names = names
        self._priority = priority
        self._hold_ns = hold_ns

    def __await__(self) -> Generator[Any, None, Grant]:
        return self._take().__await__()

    async def _take(self) -> Grant:
        door = self._door
        if self._key is None and not self._hold_ns and (self._amount == 1 or not door.settles):
            grant = door.spend(self._tenant, self._amount)
            if grant is not None:
                return grant
        return await door.take(
            self._tenant,
            self._amount,
            self._wait_ns,
            self._key,
            self._names,
            self._priority,
            self._hold_ns,
            self._by,
        )

    async def __aenter__(self) -> Grant:
        door = self._door
        if self._key is None and not self._hold_ns and (self._amount == 1 or not door.settles):
            grant = door.spend(self._tenant, self._amount)
            if grant is not None:
                self._grant = grant
                return grant
        self._grant = grant = await self._take()
        return grant

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        grant = self._grant
        if error is None and grant._lot is not None and grant._used is None:
            grant.closed = True  # from a lot and used up: there is nothing to give back
        else:
            await grant.__aexit__(kind, error, trace)
