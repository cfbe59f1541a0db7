"""Asking for more while running (section 6.2.6 of the thesis): all of it or nothing, and no deadlock.

Whoever holds something and waits could wait for somebody who waits for it. So of two the one whose record is
older may wait (*wait-die*): who would have to wait for an older one, a holder or a task that aged and has
the name reserved, is told to give way. Then every wait is for somebody younger, and ends.

- Age is the revision with which the record came, and the id: the same for all, whoever looks after it, and
  kept when the task is tried again, so that a task that gave way gets older with every try.
- A reservation of a younger one is passed over, as any younger reservation is.
- Who waits reserves what it waits for, at its own age, and its record says so: a reservation for a task that
  runs counts as long as that does. So nobody who asks later takes it away again and again.
- What stands in the way is judged whenever it changes: an older one may come to hold what a younger one held.
- For units of a counted name nobody waits who holds something: they are there, or it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from bursar.claims.book import count_most
from bursar.claims.counting import Counting
from bursar.claims.instance_book import LOST, InstanceBook, Mine, More
from bursar.claims.limits import END_AGAIN_NS, Lost
from bursar.claims.membership import Membership
from bursar.claims.model import State, Task
from bursar.claims.names import Names
from bursar.claims.reader import Reader
from bursar.claims.requirements import Mode, Needs
from bursar.errors import (
    BursarError,
    FormatError,
    Refused,
    SessionExpiredError,
    StoreUnknownError,
    Unknown,
    UsageError,
)
from bursar.world import MILLISECOND_NS

ANSWER_NS = 200 * MILLISECOND_NS
"""Deciding may take so long beyond what the caller waits."""

AGES_KEPT = 4096
GONE = -1
"""The age of one whose record is not there any more."""


SESSION_LOST = "the session with the store was lost; what was granted besides goes with the rest"


class Asking:
    """Invariants: what asks is in the queue and reserves, or a transaction that gives it more is under way,
    or it is answered; nobody waits at a name for somebody older."""

    def __init__(
        self, member: Membership, book: InstanceBook, reader: Reader, names: Names, counting: Counting
    ) -> None:
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._plans = book.plans
        self._reader = reader
        self._names = names
        self._counting = counting
        self._asking: dict[str, More] = {}
        self._ages: dict[str, int] = {}
        self._reading: dict[str, None] = {}

    @property
    def waiting(self) -> Mapping[str, More]:
        """Who asks and is not answered."""
        return self._asking

    def forget(self) -> None:
        """The session is over: nobody knows what became of it."""
        asking, self._asking = self._asking, {}
        for more in asking.values():
            more.answer(Unknown(SESSION_LOST))
        self._reading.clear()

    # What is asked

    async def ask(self, held: Task, needs: Needs, wait_ns: int) -> Task:
        """The record with what was asked for besides. Raises Refused, Unknown, UsageError."""
        timer = None
        more = More(held, wait_ns > 0, asyncio.get_running_loop().create_future())
        self._member.spawn(self._begin(more, needs), "more")
        try:
            timer = self._member.world.spawn(
                self._run_out(more, wait_ns), f"claims.{self._member.layout.resource}.more"
            )
            return await more.answered
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(more)

    async def _begin(self, more: More, needs: Needs) -> None:
        generation = self._member.generation
        try:
            await self._enter(more, needs, generation)
        except SessionExpiredError:
            self._member.expire(generation)
            more.answer(Unknown(SESSION_LOST))
        except StoreUnknownError as error:
            more.answer(Unknown(str(error)))
        except FormatError as error:
            more.answer(Refused(str(error)))
        except BursarError as error:
            more.answer(error)

    async def _enter(self, more: More, needs: Needs, generation: int) -> None:
        id, mine = more.held.id, self._find(more)
        more.wanted = self._find_new(mine.task, needs)
        if not (more.wanted.needs or more.wanted.counts):
            more.answer(mine.task)
            return
        self._check_size(mine.task, more.wanted)
        await self._reader.repeat(self._store.sync)
        record = await self._reader.read_record(id)
        if record is None or not record.task.is_same_grant(more.held):
            raise Refused(LOST)
        more.created = record.created
        await self._names.refresh(name for name, _ in more.wanted.needs)
        await self._counting.fetch(more.wanted)
        if generation != self._member.generation:
            raise Unknown(SESSION_LOST)
        mine = self._find(more)
        if more.answered.done():
            return
        if id in self._asking:
            raise UsageError(f"{id} asks for more already: ask for one thing after the other")
        self._asking[id] = mine.more = more
        self._book.enter_more(mine)

    def _find(self, more: More) -> Mine:
        mine = self._book.mine.get(more.held.id)
        running = mine is not None and mine.task.state is State.RUNNING and mine.version is not None
        if mine is None or not running or not mine.task.is_same_grant(more.held):
            raise Refused(LOST)
        return mine

    def _find_new(self, task: Task, needs: Needs) -> Task:
        """What of it the task does not have yet, in place of what it needs."""
        held = dict(task.requirements)
        for name, mode in needs.names:
            if mode is Mode.EXCLUSIVE and held.get(name) is Mode.SHARED:
                raise UsageError(
                    f"{name} is held shared and cannot become exclusive meanwhile: claim it so from the start"
                )
        new = tuple((name, str(mode)) for name, mode in needs.names if name not in held)
        return self._plans.wanting(task, new, needs.counts)

    def _check_size(self, task: Task, wanted: Task) -> None:
        most, room = count_most(task) + count_most(wanted), self._store.operations_max
        if most > room:
            raise UsageError(f"with these it would hold more than the store ends at once ({most} > {room})")

    # Who waits for whom

    def judge(self) -> None:
        """After every change: who asks and is blocked waits, or is told to give way."""
        for id, more in list(self._asking.items()):
            if not self._is_of(more):
                del self._asking[id]
                more.answer(Refused(LOST))
                continue
            if more.granting or id not in self._book.queue.entries or not (why := self._book.why_blocked(id)):
                continue
            if self._book.queue.short_of(id):
                self._refuse(more, f"{why}: nobody who holds something waits for what is counted")
            elif not more.waits:
                self._refuse(more, why)
            else:
                self._judge(id, more, why)

    def _is_of(self, more: More) -> bool:
        """Whether what asks still runs. One that ended may wait under the same id to be tried again, and
        what is in the queue then is that."""
        mine = self._book.mine.get(more.held.id)
        return mine is not None and mine.more is more

    def _judge(self, id: str, more: More, why: str) -> None:
        blockers = self._book.find_blockers(id)
        unknown = [other for other in blockers if other not in self._ages and blockers[other] is None]
        if unknown:
            self._read_ages(unknown)
            return
        mine = more.created, id
        for other, since in blockers.items():
            age = self._ages[other] if since is None else since
            if age != GONE and (age, other) < mine:
                self._book.count("gave_way")
                self._refuse(
                    more, f"{why}: {other} began earlier, so let go of what this holds, and try again"
                )
                return
        if not more.noted:
            more.noted = True
            self._member.spawn(self._note(id, more, self._member.generation), "more")

    def _read_ages(self, ids: Iterable[str]) -> None:
        for id in ids:
            if id not in self._reading:
                self._reading[id] = None
                self._member.spawn(self._read_age(id, self._member.generation), "more")

    async def _read_age(self, id: str, generation: int) -> None:
        try:
            record = await self._reader.read_record(id)
            if record is None:
                await self._names.refresh(
                    name for more in self._asking.values() for name, _ in more.wanted.needs
                )
            if generation == self._member.generation:
                if len(self._ages) > AGES_KEPT:
                    self._ages.clear()
                self._ages[id] = GONE if record is None else record.created
        except SessionExpiredError:
            self._member.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
        if generation == self._member.generation:
            self._reading.pop(id, None)
            self._book.changed.set()

    def _refuse(self, more: More, why: str) -> None:
        more.answer(Refused(why))
        self._leave(more)

    # What the record says of it

    async def _note(self, id: str, more: More, generation: int) -> None:
        """It waits: from now on what is reserved for it counts."""
        if await self._write(id, more.wanted.needs, generation) and self._asking.get(id) is more:
            more.recorded = True
            self._book.queue.touch_reserved(name for name, _ in more.wanted.needs)
        await self._follow(id, more, generation)

    async def _follow(self, id: str, more: More, generation: int) -> None:
        """Whoever waits is told when its names are taken by force meanwhile: it would learn of it by its end,
        and does not end while it waits."""
        try:
            watch = await self._reader.repeat(lambda: self._store.watch(self._member.layout.task(id)))
            try:
                while self._asking.get(id) is more and generation == self._member.generation:
                    found = await self._reader.read_task(id)
                    if found is None or not found[0].is_same_grant(more.held):
                        more.answer(Refused(LOST))
                        return
                    await watch.changed()
            finally:
                watch.close()
        except SessionExpiredError:
            self._member.expire(generation)
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
            await self._clock.sleep(END_AGAIN_NS)
            if self._asking.get(id) is more:
                self._member.spawn(self._follow(id, more, generation), "more")

    def settle(self, id: str) -> None:
        """It waits no more, or whoever did is gone."""
        mine = self._book.mine.get(id)
        if mine is not None and mine.task.asks and mine.more is None:
            self._member.spawn(self._unnote(id, self._member.generation), "more")

    async def _unnote(self, id: str, generation: int) -> None:
        while generation == self._member.generation and not self._member.is_stopping:
            mine = self._book.mine.get(id)
            if mine is None or not mine.task.asks or mine.more is not None:
                return
            if not await self._write(id, (), generation):
                await self._clock.sleep(END_AGAIN_NS)

    async def _write(self, id: str, names: tuple[tuple[str, str], ...], generation: int) -> bool:
        mine = self._book.mine.get(id)
        if mine is None or mine.version is None or mine.task.state is not State.RUNNING:
            return False
        after, operation = self._plans.ask(mine.task, mine.version, names)
        try:
            await self._store.transact([operation])
        except Lost:
            await self._look_again(id, generation)
            return False
        except SessionExpiredError:
            self._member.expire(generation)
            return False
        except StoreUnknownError:
            await self._look_again(id, generation)
            return False
        if generation == self._member.generation and self._book.mine.get(id) is mine:
            mine.task, mine.version = after, mine.version + 1
            return True
        return False

    async def _look_again(self, id: str, generation: int) -> None:
        try:
            await self._reader.repeat(self._store.sync)
            found = await self._reader.read_task(id)
        except SessionExpiredError:
            self._member.expire(generation)
            return
        except (StoreUnknownError, FormatError) as error:
            self._member.problem = str(error)
            return
        mine = self._book.mine.get(id)
        if generation != self._member.generation or mine is None or found is None:
            return
        if found[0].is_same_grant(mine.task) and found[1] > (mine.version or 0) and not self._is_granting(id):
            mine.task, mine.version = found

    def _is_granting(self, id: str) -> bool:
        return id in self._asking and self._asking[id].granting

    # How it ends

    def granted(self, id: str, after: Task) -> None:
        more = self._asking.pop(id, None)
        if more is not None:
            more.answer(after)

    def fail(self, grant: Task, error: BursarError) -> None:
        more = self._asking.get(grant.id)
        if more is not None and more.held.attempt == grant.attempt:
            more.granting = False
            more.answer(error)
            self._leave(more)

    def enter_again(self, mine: Mine) -> None:
        """Others were faster."""
        more = mine.more
        if more is None:
            self.fail(mine.task, Refused(LOST))
            return
        more.granting = False
        if more.answered.done():
            self._leave(more)
        else:
            self._book.enter_more(mine)

    def _leave(self, more: More) -> None:
        """It is answered: it waits no more, unless it is being decided."""
        id = more.held.id
        if self._asking.get(id) is not more or more.granting:
            return
        del self._asking[id]
        if self._is_of(more):
            self._book.leave_more(id)
            self.settle(id)

    async def _run_out(self, more: More, wait_ns: int) -> None:
        await self._clock.sleep(wait_ns + ANSWER_NS * (wait_ns == 0))
        if not more.granting and self._asking.get(more.held.id) is more and self._is_of(more):
            why = self._book.why_blocked(more.held.id) if more.held.id in self._book.queue.entries else ""
            more.answer(Refused(why) if why else Unknown("the store did not answer in time"))
            self._leave(more)
            return
        await self._clock.sleep(ANSWER_NS)
        more.answer(Unknown("the store did not answer in time; what it grants goes with the rest"))
