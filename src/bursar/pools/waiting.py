"""Requests of one tenant that wait for tokens of its engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from bursar.errors import NetworkError
from bursar.pools.engine import Engine
from bursar.pools.layout import TICK_NS
from bursar.resource import Answer, Ticket
from bursar.world import World


class WaitingLine:
    """First come, first served: one task answers all of them, and only while there are any.

    A new period and a fuller pool both show in the ceiling, so it waits for that word; and looks at
    every tick besides, because a paced engine has more by then. Where the words are far away, each round
    serves all lines, and this calls for one."""

    def __init__(
        self,
        world: World,
        name: str,
        engine: Engine,
        answer: Callable[[Ticket], Answer | None],
        waiting: dict[WaitingLine, None],
        hurry: Callable[[], None] | None = None,
    ) -> None:
        """`answer` says what becomes of a request now; None: it goes on waiting. `waiting` are all the
        lines in which somebody does."""
        self._world = world
        self._name = name
        self._engine = engine
        self._answer = answer
        self._waiting = waiting
        self._hurry = hurry
        self._tickets: OrderedDict[Ticket, None] = OrderedDict()
        self._serving = False

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket] = None
        self._waiting[self] = None
        self._engine.book.pending += ticket.amount
        if self._hurry is not None:
            self._hurry()
        elif not self._serving:
            self._serving = True
            self._world.spawn(self._keep_serving(), self._name)

    def remove(self, ticket: Ticket) -> None:
        del self._tickets[ticket]
        if not self._tickets:
            del self._waiting[self]
        self._engine.book.pending -= ticket.amount

    def serve(self) -> None:
        """Answer those in front, as far as the tokens go."""
        while self._tickets:
            ticket = next(iter(self._tickets))
            answer = self._answer(ticket)
            if answer is None:
                return
            self.remove(ticket)
            ticket.give(answer)

    async def _keep_serving(self) -> None:
        words, ceiling = self._world.words, self._engine.book.names.ceiling
        while self._tickets:
            try:
                seen = words.read(ceiling)
                self.serve()
                if self._tickets:
                    await words.wait(ceiling, seen, TICK_NS)
            except NetworkError:
                # Words that cannot be reached: it is worth another look a tick later.
                await self._world.clock.sleep(TICK_NS)
        self._serving = False
