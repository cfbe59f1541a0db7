"""Grants that callers hold over HTTP: each has an id that nobody else can guess, and a time to live.

A connection says nothing of who is still there, so the time to live does: a holder that neither ends
its grant nor renews it is treated as a client of the wire that was lost (`Grant.lose`). What was ended
is remembered for a while, so that ending it again, after an answer that was lost, is ending it once.
"""

from __future__ import annotations

import heapq
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Any

from bursar.api.errors import MissingError, TooManyError
from bursar.errors import BursarError, Refused, UsageError
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.world import MILLISECOND_NS, SECOND_NS, World

ID_BYTES = 18
HELD_MAX = 100_000
HELD_BY_ONE_MAX = 20_000
OVER_KEPT = 10_000
ENDS_SPARE = 1_000
SWEEP_NS = 250 * MILLISECOND_NS


@dataclass(slots=True)
class Held:
    """`caller` is who asked, `key` what it asked with."""

    id: str
    door: Resource
    grant: Grant
    caller: str
    key: str | None
    until: int = 0
    looked_at: int = 0
    """When the sweep looks at it next."""

    @property
    def may_be_forgotten(self) -> bool:
        """Its units are in a ledger, under an id of its own: what is not settled expires there."""
        return bool(self.grant.id) and self.grant.settles


@dataclass(frozen=True, slots=True)
class Over:
    """What was ended, and how: `used` None for all of it. `problem` was said of it, and is said again."""

    resource: str
    tenant: str
    used: int | None
    problem: BursarError | None = None


class Holdings:
    """Of one daemon."""

    def __init__(self, world: World) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._held: dict[str, Held] = {}
        self._keys: dict[tuple[str, str, str], str] = {}
        self._over: dict[str, Over] = {}
        self._by: Counter[str] = Counter()
        self._forgettable: dict[str, dict[str, Held]] = {}
        self._ends: list[tuple[int, str]] = []

    def start(self) -> None:
        self._world.spawn(self._sweep(), "api.holdings")

    def __len__(self) -> int:
        return len(self._held)

    def check_room(self, caller: str) -> None:
        """Raises TooManyError. What the caller has that can be forgotten makes way, the oldest first."""
        own = self._by[caller] >= HELD_BY_ONE_MAX
        if not own and len(self._held) < HELD_MAX:
            return
        forgettable = self._forgettable.get(caller)
        if forgettable:
            self._drop(next(iter(forgettable.values())))
            self.counts["forgotten"] += 1
            return
        raise TooManyError(
            f"{'this caller holds' if own else 'callers hold'} as many grants as can be held; "
            "settle or release some"
        )

    async def add(self, door: Resource, grant: Grant, caller: str, key: str | None, ttl: float) -> Held:
        """A repeat of a key is the grant that is held already, and has its id."""
        known = self._find_repeat(door, grant, key)
        if known is not None:
            self.renew(known, ttl)
            if not grant.settles:
                await grant.release()  # one of two that have the same names; the other has them still
            return known
        held = Held(secrets.token_urlsafe(ID_BYTES), door, grant, caller, key)
        self._put(held)
        self.renew(held, ttl)
        self.counts["granted"] += 1
        return held

    def _put(self, held: Held) -> None:
        self._held[held.id] = held
        self._by[held.caller] += 1
        if held.may_be_forgotten:
            self._forgettable.setdefault(held.caller, {})[held.id] = held
        if held.key is not None:
            self._keys[held.door.name, held.grant.tenant, held.key] = held.id

    def _find_repeat(self, door: Resource, grant: Grant, key: str | None) -> Held | None:
        if key is None or not grant.replayed:
            return None
        found = self._held.get(self._keys.get((door.name, grant.tenant, key), ""))
        return found if found is not None and found.grant.id == grant.id else None

    def find(self, id: str) -> Held:
        held = self._held.get(id)
        if held is None:
            over = " any more: it was ended" if id in self._over else ", or it expired"
            raise MissingError(f"there is no such grant{over}")
        return held

    def find_over(self, id: str) -> Over | None:
        return self._over.get(id)

    def renew(self, held: Held, ttl: float) -> None:
        held.until = self._world.clock.now() + int(ttl * SECOND_NS)
        if not held.looked_at or held.until < held.looked_at:
            self._look_at(held)

    def _look_at(self, held: Held) -> None:
        """When its time is up. One that was renewed meanwhile is found then."""
        held.looked_at = held.until
        heapq.heappush(self._ends, (held.until, held.id))
        if len(self._ends) > 2 * len(self._held) + ENDS_SPARE:
            self._ends = [(each.looked_at, each.id) for each in self._held.values()]
            heapq.heapify(self._ends)

    def seconds_left(self, held: Held) -> float:
        return max(0, held.until - self._world.clock.now()) / SECOND_NS

    async def end(self, held: Held, used: int | None) -> None:
        """`used` None: all of it was. Raises UsageError, and Unknown, after which it can be ended again."""
        grant = held.grant
        problem = _settle(grant, used)
        self._drop(held)
        self._remember(held, used, problem)
        try:
            await grant.release()
        except Refused as refused:  # it is over, and a part of it is unpaid
            self._remember(held, used, refused)
            raise
        except BursarError:
            grant.closed = False
            del self._over[held.id]
            self._put(held)
            raise
        self.counts["ended"] += 1
        if problem is not None:
            raise problem

    def _remember(self, held: Held, used: int | None, problem: BursarError | None) -> None:
        self._over[held.id] = Over(held.door.name, held.grant.tenant, used, problem)
        if len(self._over) > OVER_KEPT:
            del self._over[next(iter(self._over))]

    def _drop(self, held: Held) -> None:
        del self._held[held.id]
        self._by[held.caller] -= 1
        self._forgettable.get(held.caller, {}).pop(held.id, None)
        if not self._by[held.caller]:
            del self._by[held.caller]
            self._forgettable.pop(held.caller, None)
        if held.key is not None:
            self._keys.pop((held.door.name, held.grant.tenant, held.key), None)

    # -- holders that are gone

    async def _sweep(self) -> None:
        while True:
            await self._world.clock.sleep(SWEEP_NS)
            await self.expire()

    async def expire(self) -> None:
        now = self._world.clock.now()
        while self._ends and self._ends[0][0] <= now:
            at, id = heapq.heappop(self._ends)
            held = self._held.get(id)
            if held is None or held.looked_at != at:
                continue  # ended, or looked at before
            if held.until > now:
                self._look_at(held)
            else:
                self._drop(held)
                await self._lose(held)

    async def _lose(self, held: Held) -> None:
        self.counts["lost"] += 1
        self._world.trace("api.lost", resource=held.door.name, tenant=held.grant.tenant)
        ending: Any = held.grant.lose()
        try:
            if ending is not None:
                await ending
        except BursarError as error:
            self._world.trace("api.not_lost", resource=held.door.name, why=str(error))


def _settle(grant: Grant, used: int | None) -> UsageError | None:
    """What is wrong with what it is settled for, if it ends all the same: a quota counts it as unpaid."""
    if used is None:
        return None
    try:
        grant.settle(used)
    except UsageError as error:
        if not grant.settles:
            raise
        return error
    return None
