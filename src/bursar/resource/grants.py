"""What callers hold: a grant, and the acquisition that becomes one."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bursar.errors import UsageError
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

    __slots__ = ("_door", "_granted", "_lot", "_used", "amount", "closed", "tenant")

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
        """Say what was really used; the rest is given back when the grant is left. More than was
        acquired cannot be charged."""
        if check_used(used) > self.amount:
            self._used = self.amount
            raise UsageError(
                f"settle({used}) is above the {self.amount} that were acquired; those are charged, the "
                f"{used - self.amount} beyond them are not: acquire as much as may be used"
            )
        if self.closed and self.used != used:
            raise UsageError("this grant was released already; settle before leaving it")
        self._used = used

    async def release(self) -> None:
        """Give back what is to be given back. Calling it again does nothing."""
        if not self.closed:
            self.closed = True
            await self._door.end(self)

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

    __slots__ = ("_amount", "_door", "_grant", "_key", "_names", "_priority", "_tenant", "_wait_ns")

    def __init__(
        self,
        door: Resource,
        tenant: str,
        amount: int,
        wait_ns: int,
        key: str | None,
        names: tuple[str, ...] = (),
        priority: int = 0,
    ) -> None:
        self._door = door
        self._tenant = tenant
        self._amount = amount
        self._wait_ns = wait_ns
        self._key = key
        self._names = names
        self._priority = priority

    def __await__(self) -> Generator[Any, None, Grant]:
        return self._take().__await__()

    async def _take(self) -> Grant:
        door = self._door
        if self._key is None and (self._amount == 1 or not door.settles):
            grant = door.spend(self._tenant, self._amount)
            if grant is not None:
                return grant
        return await door.take(
            self._tenant, self._amount, self._wait_ns, self._key, self._names, self._priority
        )

    async def __aenter__(self) -> Grant:
        door = self._door
        if self._key is None and (self._amount == 1 or not door.settles):
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
