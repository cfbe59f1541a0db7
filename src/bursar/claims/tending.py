"""What is looked at now and then: aging, deadlines, pauses that are over, and what nobody told of."""

from __future__ import annotations

from bursar.claims.admission import Admission
from bursar.claims.cancels import Cancels
from bursar.claims.counting import Counting
from bursar.claims.division import Division
from bursar.claims.doing import Doing
from bursar.claims.instance_book import InstanceBook
from bursar.claims.learning import Learning
from bursar.claims.looking import Looking
from bursar.claims.membership import Membership
from bursar.claims.names import Names
from bursar.claims.submission import Submission
from bursar.claims.sweeping import Sweeping
from bursar.claims.takeover import Takeover
from bursar.errors import FormatError, StoreUnknownError, Unknown
from bursar.world import MILLISECOND_NS, SECOND_NS

TEND_NS = 200 * MILLISECOND_NS

LOOK_NS = 5 * SECOND_NS
LOOK_PARTS = 4
FEW_TASKS = 1_000
"""Watches tell when to look for tasks that nobody looks after; this is for what they do not tell. Where a
shard has more than a few tasks, a fourth of the shards is listed in turn."""

RUNNING_NS = SECOND_NS
"""What runs is looked at so often: how far it is, and whether it still holds its names."""

SHARE_NS = 5 * SECOND_NS
"""What was learned of how long tasks take is told to the others so often."""

ASK_NS = 400 * MILLISECOND_NS
"""An instance with nothing to do asks, while others have tasks, at most so often."""


class Tending:
    """The only timers that go on for ever. Aging and the pauses before retries apart, nobody's wait rests on
    them."""

    def __init__(
        self,
        member: Membership,
        book: InstanceBook,
        names: Names,
        admission: Admission,
        looking: Looking,
        division: Division,
        submission: Submission,
        takeover: Takeover,
        doing: Doing,
        cancels: Cancels,
        sweeping: Sweeping,
        counting: Counting,
        learning: Learning,
        aging_ns: int,
        names_sweep_ns: int,
    ) -> None:
        self.aging_ns = aging_ns
        self._member = member
        self._clock = member.world.clock
        self._book = book
        self._names = names
        self._admission = admission
        self._looking = looking
        self._division = division
        self._submission = submission
        self._takeover = takeover
        self._doing = doing
        self._cancels = cancels
        self._sweeping = sweeping
        self._counting = counting
        self._learning = learning
        self._names_sweep_ns = names_sweep_ns

    async def tend(self) -> None:
        rounds = 0
        while not self._member.is_stopping:
            await self._clock.sleep(TEND_NS)
            rounds += 1
            if self._book.queue.age(self._clock.now() - self.aging_ns):
                self._book.changed.set()
            for mine in self._book.pop_due(self._clock.wall()):
                self._admission.admit(mine)
            self._names.reservations.note()
            self._counting.tend()
            for id in self._book.pop_late(self._clock.wall()):
                self._member.spawn(self._expire(id), "deadline")
            if rounds % (ASK_NS // TEND_NS) == 0 and self._wants_more():
                self._member.spawn(self._division.ask(), "ask")
            if rounds % (RUNNING_NS // TEND_NS) == 0:
                self._doing.look()
            if rounds % (SHARE_NS // TEND_NS) == 0 and self._book.durations.is_new:
                self._member.spawn(self._learning.share(), "learn")
            if rounds % (LOOK_NS // TEND_NS + 1) == 0:
                self._tend_seldom(rounds // (LOOK_NS // TEND_NS + 1))
            if rounds % (self._names_sweep_ns // TEND_NS + 1) == 0 and self._sweeping.is_due_here():
                self._member.spawn(self._sweeping.sweep_names(), "sweep")

    def _wants_more(self) -> bool:
        return self._book.is_idle() and self._takeover.others_have_tasks()

    def _tend_seldom(self, turn: int) -> None:
        shards = self._member.layout.task_shards
        parts = LOOK_PARTS if self._takeover.largest_shard > FEW_TASKS else 1
        self._looking.among(shards[turn % parts :: parts])
        self._names.check_reservations()
        if self._sweeping.is_due_here():
            self._member.spawn(self._sweeping.sweep_tasks(), "sweep")
            self._member.spawn(self._cancels.sweep(), "sweep")

    async def _expire(self, id: str) -> None:
        """Too late for it to begin."""
        try:
            await self._submission.withdraw(id, "expired")
        except (StoreUnknownError, Unknown, FormatError) as error:
            self._member.problem = str(error)
            if id in self._book.mine:
                self._book.put_off(id, self._clock.wall() + SECOND_NS)
