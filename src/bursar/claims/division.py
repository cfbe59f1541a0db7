"""Which instance looks after which task, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Iterable

from bursar.claims.instance_book import InstanceBook
from bursar.claims.layout import divide, is_claim_id, is_worker, shard_of
from bursar.claims.limits import TAKE_AT_ONCE, Lost, fit
from bursar.claims.looking import Looking
from bursar.claims.membership import Membership
from bursar.errors import NodeMissingError, SessionExpiredError, StoreUnknownError
from bursar.world import SECOND_NS

HELPINGS = 4
"""Tasks that an instance gives another at a time, for each that the other can do at a time."""

LOOK_AGAIN_NS = SECOND_NS
"""What falls to another instance, and is not taken by it for so long, anybody takes."""


class Division:
    """Instances that look at the same moment do not grab at the same tasks: each has its share."""

    def __init__(self, member: Membership, book: InstanceBook, looking: Looking) -> None:
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._looking = looking
        self._passed: dict[str, int] = {}
        self._passed_offers: dict[str, int] = {}
        self._given: dict[str, int] = {}
        self._is_asked = False

    def hear(self) -> None:
        """Another one asks for tasks: whoever has more than it can begin looks who it is."""
        if self._book.is_full() and self._book.queue.entries:
            self._is_asked = True
            self._looking.wanted.set()

    def choose(self, found: list[str], shards: tuple[str, ...], *, offered: bool) -> list[str]:
        """Of what was found: this one's share at once, some more if it has nothing to do, and what another
        has not taken for a while."""
        now_ns = self._clock.now()
        passed = self._passed_offers if offered else self._passed
        since = {id: passed.get(id, now_ns) for id in found}
        self._given = {id: until_ns for id, until_ns in self._given.items() if until_ns > now_ns}
        own = [id for id in found if self._falls_to(id) == self._member.node and id not in self._given]
        late = [id for id in found if now_ns - since[id] >= LOOK_AGAIN_NS]
        more = found[: self._helping()] if self._book.is_idle() else []
        chosen = dict.fromkeys([*own, *late, *more])
        kept = {id: since[id] for id in found if id not in chosen}
        if any(id not in passed for id in kept):
            self._member.spawn(self._look_later(kept, offered=offered), "look")
        elsewhere = {
            id: at for id, at in passed.items() if shard_of(id, self._member.layout.task_shards) not in shards
        }
        passed.clear()
        passed.update(elsewhere | kept)
        return list(chosen)

    def _falls_to(self, id: str) -> str:
        """A claim whose process is gone to any instance, a task to one that can have it done."""
        among = self._member.peers if is_claim_id(id) else self._workers()
        return divide(id, among) if among else self._member.node

    def _workers(self) -> list[str]:
        return [
            node
            for node in self._member.peers
            if is_worker(node) and not (self._book.draining and node == self._member.node)
        ]

    async def share(self) -> None:
        """What waits here, and is better off elsewhere, is left to others."""
        if not (self._book.draining or self._is_asked):
            return
        others = [node for node in self._workers() if node != self._member.node]
        waiting = self._book.find_leavable()
        if self._book.draining and others:
            await self._leave_to_others(waiting)
        elif self._is_asked:
            self._is_asked = False
            asking, _ = await self._store.get(self._member.layout.asking)
            if self._book.is_full() and asking.decode("utf-8", "replace") in others:
                giving = waiting[len(waiting) // 2 :][-self._helping() :]
                self._given = dict.fromkeys(giving, self._clock.now() + LOOK_AGAIN_NS)
                await self._leave_to_others(giving)

    def _helping(self) -> int:
        """How many tasks go from one instance to another at a time: enough for a while."""
        return HELPINGS * (self._book.running_max or 1)

    async def ask(self) -> None:
        """Nothing to do here, and others have tasks: whoever has too many gives some."""
        try:
            await self._store.set(self._member.layout.asking, self._member.node.encode())
        except (NodeMissingError, StoreUnknownError, SessionExpiredError) as error:
            self._member.problem = str(error)  # it asks again

    async def _leave_to_others(self, ids: list[str]) -> None:
        at_once = fit(self._store, TAKE_AT_ONCE, 2)
        for first in range(0, len(ids), at_once):
            await self._unmark_all(ids[first : first + at_once])

    async def _unmark_all(self, ids: list[str]) -> None:
        ids = [id for id in ids if self._book.waits(id)]
        for id in ids:
            self._book.drop(id)
        try:
            await self._store.transact([op for id in ids for op in self._plans.leave(id)])
            self._book.count("handed_over")
        except (*Lost, StoreUnknownError):
            self._looking.doubt(ids)

    async def _look_later(self, ids: Iterable[str], *, offered: bool) -> None:
        """Where these are."""
        shards = dict.fromkeys(shard_of(id, self._member.layout.task_shards) for id in ids)
        await self._clock.sleep(LOOK_AGAIN_NS)
        self._looking.among(shards, offered=offered)
