"""Asking the kind: waiting with a deadline, giving up, shadow mode. One mechanism for all kinds.

A ticket is answered by the kind, now or later. When the caller's time is up the kind is told, and
says why it did not grant; if it must find out first, it has a moment more, and after that the answer
is Unknown. Whatever the kind grants later than that is given back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable

from bursar.errors import BursarError, Unknown, UsageError
from bursar.resource.deadlines import Deadlines
from bursar.resource.decider import Decider, Seen
from bursar.resource.statistics import WaitCounter
from bursar.resource.tallies import TallyCounter
from bursar.resource.tickets import Answer, Granted, Ticket
from bursar.world import SECOND_NS, World


class Asking:
    """The requests of one door that are on their way. `give_back` ends a grant, wherever it is, and `undo`
    one that nobody was told of."""

    def __init__(
        self,
        world: World,
        decider: Decider,
        deadlines: Deadlines,
        tallies: defaultdict[str, TallyCounter],
        give_back: Callable[[str, Granted, int | None], Awaitable[None] | None],
        undo: Callable[[str, Granted], Awaitable[None] | None],
    ) -> None:
        self.waiting = 0
        self.waited = WaitCounter()
        self.shadow = False
        self._world = world
        self._now = world.clock.now
        self._decider = decider
        self._deadlines = deadlines
        self._tallies = tallies
        self._give_back = give_back
        self._undo_granted = undo

    async def decide(self, ticket: Ticket) -> Granted:
        """What the kind says to a ticket, in time. Raises Refused, Unknown or UsageError."""
        asked_at = self._now()
        self._decider.decide(ticket)
        answer = ticket.answer
        if answer is None:
            if self.shadow:
                return self._leave_ghost(ticket)
            answer = await self._wait(ticket, asked_at)
        return self.conclude(ticket, answer, asked_at)

    def decide_now(self, ticket: Ticket) -> Granted | None:
        """The same for a caller that does not wait, and need not know why."""
        asked_at = self._now()
        self._decider.decide(ticket)
        answer = ticket.answer
        if answer is None:
            ticket.late = self._undo
            answer = self._decider.withdraw(ticket)
        if answer is None:
            return self._let_through(ticket) if self.shadow else None
        try:
            return self.conclude(ticket, answer, asked_at)
        except UsageError:
            raise
        except BursarError:
            return None

    def conclude(self, ticket: Ticket, answer: Answer, asked_at: int) -> Granted:
        """Count the answer, and return or raise it."""
        if isinstance(answer, Granted):
            self.waited.add((self._now() - asked_at) / SECOND_NS)
            self._tallies[ticket.tenant].grant(answer)
            return answer
        if self.shadow and not isinstance(answer, UsageError):
            return self._let_through(ticket)
        self._tallies[ticket.tenant].fail(ticket.amount, answer)
        raise answer

    # -- waiting

    async def _wait(self, ticket: Ticket, asked_at: int) -> Answer:
        patience_ns = self._patience_ns(ticket)
        expires_at, give_up_at = asked_at + patience_ns, asked_at + ticket.wait_ns + self._decider.answer_ns
        if ticket.by is not None:
            expires_at, give_up_at = min(expires_at, ticket.by), min(give_up_at, ticket.by)
        waiting = (ticket, give_up_at)
        if patience_ns <= 0:
            self._expire(waiting)
            if ticket.answer is not None:
                return ticket.answer
        deadline = self._deadlines.add(expires_at, self._expire, waiting)
        self.waiting += 1
        try:
            return await ticket.wait()
        except BaseException:
            self._abandon(ticket)
            raise
        finally:
            self.waiting -= 1
            deadline.done = True

    def _patience_ns(self, ticket: Ticket) -> int:
        most_ns = ticket.wait_ns + self._decider.answer_ns
        return max(ticket.wait_ns, min(self._decider.patience_ns(ticket), most_ns))

    def _expire(self, waiting: tuple[Ticket, int]) -> None:
        """Its time is up: it is refused, or its answer is on the way and may take a moment longer, until
        the time that comes with it."""
        ticket, give_up_at = waiting
        if ticket.answer is not None:
            return
        refusal = self._decider.withdraw(ticket)
        if ticket.answer is not None:
            return
        if refusal is not None:
            ticket.give(refusal)
        else:
            self._deadlines.add(give_up_at, self._give_up, ticket)

    def _give_up(self, ticket: Ticket) -> None:
        if ticket.answer is None:
            ticket.give(Unknown(f"{self._decider.name} did not decide in time"))
            ticket.late = self._undo

    def forsake(self, ticket: Ticket) -> None:
        """Whoever asked elsewhere wants it no more: whoever waits for the answer here is told so."""
        if ticket.answer is None:
            self._decider.withdraw(ticket)
        if ticket.answer is None:
            ticket.give(Unknown("the client gave up"))
            ticket.late = self._undo

    def _abandon(self, ticket: Ticket) -> None:
        """Whoever asked is gone: nothing stays held."""
        if ticket.answer is not None:
            self._undo(ticket, ticket.answer)
            return
        ticket.late = self._undo
        self._decider.withdraw(ticket)

    def _undo(self, ticket: Ticket, answer: Answer) -> None:
        """A grant that nobody wants."""
        if not isinstance(answer, Granted):
            return
        if answer.ahead:
            self._decider.end_lot(ticket.tenant, answer.lot or answer, Seen(), answer.ahead)
        # A repeat is not undone: it is whoever asked first who holds it, or settles it.
        tenant = ticket.tenant
        ending = self._decider.finish(answer) if answer.replayed else self._undo_granted(tenant, answer)
        if ending is not None:
            self.end_beside(ending)

    def end_beside(self, ending: Awaitable[None]) -> None:
        """Nobody waits until it is back."""
        self._world.spawn(self._end(ending), f"{self._decider.kind}.{self._decider.name}.back")

    async def _end(self, ending: Awaitable[None]) -> None:
        try:
            await ending
        except BursarError as error:
            self._world.trace("door.not_given_back", resource=self._decider.name, why=str(error))

    # -- shadow mode: everybody goes, and what would have been refused is counted

    def _leave_ghost(self, ticket: Ticket) -> Granted:
        """The caller goes at once; its request waits on, and counts only if it is refused."""
        ticket.late = self._hear_ghost
        self._deadlines.add(self._now() + self._patience_ns(ticket), self._expire_ghost, ticket)
        return self._grant_shadow(ticket, ticket)

    def _hear_ghost(self, ticket: Ticket, answer: Answer) -> None:
        ticket.answer = answer
        if not isinstance(answer, Granted):
            self._tallies[ticket.tenant].let_through(ticket.amount)

    def _expire_ghost(self, ticket: Ticket) -> None:
        if ticket.answer is None:
            hear, ticket.late = ticket.late, self._undo
            answer = self._decider.withdraw(ticket) or Unknown("nobody waits for it")
            assert hear is not None, "a ghost is heard of"
            hear(ticket, answer)

    def _end_late_ghost(self, ticket: Ticket, answer: Answer) -> None:
        """The caller was done before its request was decided: what is granted now was used."""
        self._hear_ghost(ticket, answer)
        ending = self._end_granted_ghost(ticket)
        if ending is not None:
            self._world.spawn(self._end(ending), f"{self._decider.kind}.{self._decider.name}.ghost")

    def _let_through(self, ticket: Ticket) -> Granted:
        self._tallies[ticket.tenant].let_through(ticket.amount)
        return self._grant_shadow(ticket, None)

    def _grant_shadow(self, ticket: Ticket, ghost: Ticket | None) -> Granted:
        fence = self._decider.shadow_fence(ticket)
        granted = Granted(ticket.amount, fence=fence, fallback="shadow", data=ghost)
        self._tallies[ticket.tenant].grant(granted)
        return granted

    def end_ghost(self, granted: Granted) -> Awaitable[None] | None:
        """A caller that shadow mode let go is done. The request that it left behind waits on if it is
        not decided: it still counts what becomes of it."""
        ghost: Ticket | None = granted.data
        if ghost is None:
            return None
        if ghost.answer is None:
            ghost.late = self._end_late_ghost
        return self._end_granted_ghost(ghost)

    def _end_granted_ghost(self, ghost: Ticket) -> Awaitable[None] | None:
        if not isinstance(ghost.answer, Granted):
            return None
        if ghost.answer.ahead:
            self._decider.end_lot(ghost.tenant, ghost.answer, Seen(), ghost.answer.ahead)
        return self._give_back(ghost.tenant, ghost.answer, None)
