"""Claims that this process asks for: from a ticket to its answer.

Only the instance that took a claim in ever grants it. So a claim of which nothing is under way to the
store is not granted and will not be: it is taken back here and now, whether the store answers or not,
and what was written down of it is removed afterwards. While a transaction is under way nobody can say;
its ticket is answered once that is known, and the door gives back what comes too late.

**Keys.** The same key is one acquisition in the whole resource, whichever process asks: while it waits
or is held. Within a process whoever asks shares it, and it is released when the last of them has let
go. Asked for in another process it moves there, with its names and its fence: a caller that went to
another daemon, or whose process died under `dead_holder = "keep"`, gets what it had and can release it.
Whoever held it before keeps its fence; its release does nothing. Once released, the key is free again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from bursar.claims.holding import Held, Holdings
from bursar.claims.layout import new_id
from bursar.claims.model import Task
from bursar.claims.settling import Settling
from bursar.errors import BursarError, Refused, Unknown, UsageError
from bursar.resource import Granted, Ticket
from bursar.world import MILLISECOND_NS, Watch

if TYPE_CHECKING:
    from bursar.claims.courier import Instance

PATIENCE_NS = 200 * MILLISECOND_NS
"""One round trip to the store, for whoever does not wait."""

UNDECIDED = "the store did not answer in time; if it granted the claim, it is released again"
NOT_LEARNT = "the store did not answer in time; nothing was granted"
STOPPING = "bursar is stopping here; nothing was granted"


@dataclass(slots=True, eq=False)
class Asked:
    """A claim that tickets wait for.

    tickets          who waits; several, if they have one key
    late             who no longer does, but left while it was being decided
    is_settling      what the store has of it is being found out
    may_be_recorded  a record of this very claim may be in the store
    may_be_granted   a transaction that makes it ours was sent, and nobody knows what became of it
    is_repeat        somebody was granted it before
    is_checked       the key was looked at again after something stood in its way
    why              what stood in its way, while the queue does not tell
    watch            of a record that is another process's
    """

    task: Task
    tickets: list[Ticket] = field(default_factory=list)
    late: list[Ticket] = field(default_factory=list)
    is_settling: bool = False
    may_be_recorded: bool = False
    may_be_granted: bool = False
    is_repeat: bool = False
    is_checked: bool = False
    why: str = ""
    watch: Watch | None = None

    @property
    def is_patient(self) -> bool:
        return all(ticket.wait_ns > 0 for ticket in self.tickets)

    @property
    def is_of_concern(self) -> bool:
        """Whether anybody is to be answered, or anything to be cleared up."""
        return bool(self.tickets or self.late or self.may_be_recorded or self.may_be_granted)

    def is_for(self, task: Task) -> bool:
        return (self.task.tenant, self.task.wanted) == (task.tenant, task.original.wanted)


class Acquisitions:
    """Invariants: those who ask with one key share what is asked; what is not settling is looked after by
    the instance; an id is recorded at most once, and whatever begins anew has another one."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._asked: dict[str, Asked] = {}
        self._keyed: dict[str, Asked] = {}
        self._quiet = asyncio.Event()
        self._settling = Settling(instance, self)
        self.holdings = Holdings(instance, self._note_quiet)

    @property
    def asked(self) -> list[str]:
        return list(self._asked)

    def find_tenants(self) -> set[str]:
        return {asked.task.tenant for asked in self._asked.values()} | self.holdings.find_tenants()

    def is_wanted(self, id: str) -> bool:
        """Whether code of this process holds it, or waits for it."""
        return id in self._asked or self.holdings.find(id) is not None

    # Asking

    def ask(self, task: Task, ticket: Ticket) -> None:
        """Answers the ticket, now or later."""
        other = self._keyed.get(task.key)
        if self._instance.is_stopping:
            ticket.give(Unknown(STOPPING))
        elif other is None:
            self._ask_first(Asked(task, [ticket]))
        elif other.is_for(task):
            ticket.place = other
            other.tickets.append(ticket)
        else:
            ticket.give(_say_in_use(ticket, other.task))

    def _ask_first(self, asked: Asked) -> None:
        asked.tickets[0].place = asked
        self._asked[asked.task.id] = asked
        if asked.task.key:
            self._keyed[asked.task.key] = asked
        if asked.task.key or not self._instance.member.has_session:
            self._settling.begin(asked)
        else:
            self._begin(asked)

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | None:
        """The answer, unless it is being decided at this moment."""
        asked: Asked = ticket.place
        if ticket in asked.late:
            return None
        asked.tickets.remove(ticket)
        if not asked.tickets and self._is_undecided(asked):
            if ticket.wait_ns < PATIENCE_NS:
                return Unknown(UNDECIDED)  # it had the moment that others get after their wait
            asked.late.append(ticket)
            return None
        answer = self._explain(asked)
        if not asked.tickets:
            self._leave(asked)
        return answer

    def _is_undecided(self, asked: Asked) -> bool:
        mine = self._instance.mine.get(asked.task.id)
        return asked.may_be_granted or (mine is not None and mine.granting)

    def _explain(self, asked: Asked) -> Refused | Unknown:
        """Refused only if something was seen to stand in its way, by somebody whom the store trusts."""
        instance, id = self._instance, asked.task.id
        why = instance.book.why_blocked(id) if id in instance.queue.entries else asked.why
        return Refused(why) if why and instance.is_trusted else Unknown(NOT_LEARNT)

    def _begin(self, asked: Asked) -> None:
        """The store has nothing of it: let it wait for its names, if anybody still wants it."""
        asked.is_settling = asked.may_be_recorded = asked.may_be_granted = asked.is_repeat = False
        self._answer_late(asked)
        if asked.tickets:
            asked.why = ""
            self._instance.admission.admit_claim(asked.task, patient=asked.is_patient)
        else:
            self._forget(asked)

    def _leave(self, asked: Asked) -> None:
        """Nobody waits for it any more, and nothing of it is being decided."""
        if asked.is_settling:
            if asked.watch is not None:
                asked.watch.close()
            return  # it ends by itself
        if self._instance.admission.drop_claim(asked.task.id):
            asked.may_be_recorded = True
            self._settling.begin(asked)
        else:
            self._forget(asked)

    def _forget(self, asked: Asked) -> None:
        self._asked.pop(asked.task.id, None)
        if self._keyed.get(asked.task.key) is asked:
            del self._keyed[asked.task.key]
        self._note_quiet()

    def _answer_late(self, asked: Asked) -> None:
        late, asked.late = asked.late, []
        for ticket in late:
            ticket.give(self._explain(asked))

    # What the instance tells

    def grant(self, task: Task) -> None:
        self.give(self._asked[task.id], self.holdings.hold(task), is_replayed=False)

    def enter(self, id: str) -> None:
        """It waits in the queue, again perhaps, after others were faster."""
        asked = self._asked[id]
        if not asked.tickets:
            self._answer_late(asked)
            self._leave(asked)

    def block(self, id: str, why: str) -> bool:
        """Whether it is to be written down, because somebody waits; whoever does not is refused."""
        asked = self._asked[id]
        if asked.task.key and not asked.is_patient and not asked.is_checked:
            asked.is_checked = True  # what stands in its way may be the same key's: others ask too
            self.look_again(id)
            return False
        self.refuse_impatient(asked, why)
        if not asked.tickets:
            self._leave(asked)
        return bool(asked.tickets)

    def fail(self, id: str, error: BursarError) -> None:
        asked = self._asked.get(id)
        if asked is None:
            return
        takers, asked.tickets, asked.late = [*asked.tickets, *asked.late], [], []
        for ticket in takers:
            ticket.give(error)
        self._leave(asked)

    def look_again(self, id: str) -> None:
        """What is known of it may be wrong: somebody else has its key, or the store did not answer."""
        asked = self._asked[id]
        if self._instance.admission.drop_claim(id):
            asked.may_be_recorded = True
        self._settling.begin(asked)

    def lose_session(self) -> None:
        """A claim lives in a session. It begins anew in the next, once it is known whether the store
        granted it in the name of the old one."""
        for asked in list(self._asked.values()):
            mine = self._instance.mine.get(asked.task.id)
            if mine is not None:
                asked.may_be_granted |= mine.granting
                asked.may_be_recorded = True
            if not asked.is_settling:
                self._settling.begin(asked)

    async def stop(self) -> None:
        """Answer everybody; returns when nothing of this process is under way any more."""
        for asked in list(self._asked.values()):
            tickets, asked.tickets = asked.tickets, []
            for ticket in tickets:
                ticket.give(Unknown(STOPPING))
            if not self._is_undecided(asked):
                self._leave(asked)
        while self._asked or self.holdings.ending:
            self._quiet.clear()
            await self._quiet.wait()

    def _note_quiet(self) -> None:
        if not self._asked and not self.holdings.ending:
            self._quiet.set()

    # What settling finds

    def begin_anew(self, asked: Asked) -> None:
        """Under another id: what was sent for the old one may reach the store yet, and finds nothing."""
        del self._asked[asked.task.id]
        id = new_id("c", self._instance.world.random)
        asked.task = msgspec.structs.replace(asked.task, id=id)
        self._asked[id] = asked
        self._begin(asked)

    def dismiss(self, asked: Asked) -> None:
        """What the store has is not this claim, and nobody here waits for it."""
        asked.is_settling = False
        self._answer_late(asked)
        self._forget(asked)

    def refuse(self, asked: Asked, other: Task) -> None:
        """The key is another claim's."""
        tickets, asked.tickets = asked.tickets, []
        for ticket in tickets:
            ticket.give(_say_in_use(ticket, other))
        self.dismiss(asked)

    def refuse_impatient(self, asked: Asked, why: str) -> None:
        asked.why = why
        hasty = [ticket for ticket in asked.tickets if ticket.wait_ns == 0]
        asked.tickets = [ticket for ticket in asked.tickets if ticket.wait_ns > 0]
        for ticket in hasty:
            ticket.give(Refused(why))

    def give(self, asked: Asked, held: Held, *, is_replayed: bool) -> None:
        """To everybody who asked. The first is the one who got it, for the others it is a repeat; to one
        that is gone already a repeat brings nothing, and so nothing that it would have to let go."""
        asked.is_settling = False
        self._forget(asked)
        takers, first = [*asked.tickets, *asked.late], not is_replayed
        gone = [ticket for ticket in takers[first:] if ticket.late is not None]
        present = [ticket for ticket in takers if ticket not in gone]
        held.holders += len(present)
        fence = self._instance.fences_of(held.task)
        for ticket in present:
            replayed = is_replayed or ticket is not present[0]
            ticket.give(_write_granted(held, fence, replayed))
        for ticket in gone:
            ticket.give(Unknown(NOT_LEARNT))
        self.holdings.end(held)


def _write_granted(held: Held, fence: dict[str, int], replayed: bool) -> Granted:
    task = held.task
    return Granted(
        len(task.wanted), id=task.id, attempt=task.attempt, fence=fence, replayed=replayed, data=held
    )


def _say_in_use(ticket: Ticket, other: Task) -> UsageError:
    names = ", ".join(other.wanted[:5])
    whose = names if other.tenant == ticket.tenant else "another tenant's claim"
    return UsageError(f"key {ticket.key!r} is in use for {whose}: give each claim a key of its own")
