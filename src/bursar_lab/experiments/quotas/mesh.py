"""The baseline: the node that needs units asks every other node. (The paper's earlier solution.)

Same ledger, same messages; the asking node coordinates, everybody sends what it can spare and its
rate, and gets a share back. One after another, as the growth of its response times from 19.74 to
346 ms implies, or all at once.

Two coordinators at once would take units out of each other's hands for ever. How the earlier
solution orders them is not known; here they take turns, at no cost in messages, and the time
spent waiting for one's turn is not counted. Both favour the baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bursar.quotas.allocation import surplus
from bursar.quotas.messages import Collect, Offer, Share
from bursar.quotas.round import State
from bursar_lab.experiments.quotas.grid import MeteredBook, MeteredRound

if TYPE_CHECKING:
    from bursar.quotas.book import NodeBook


class ParallelRound(MeteredRound):
    """Every other node is a child; a node that is asked answers at once."""

    def look_for_need(self, book: NodeBook, now: int) -> None:
        if self.state is not State.IDLE or not self.demand.is_in_need(now) or now < self.retry_at:
            super().look_for_need(book, now)
            return
        if self.turn.take(book.identity):
            super().look_for_need(book, now)
            if self.state is State.IDLE:
                self.turn.give_up(book.identity)

    def _serve_own(self, book: NodeBook, now: int) -> None:
        self.turn.give_up(book.identity)
        super()._serve_own(book, now)

    def hear_collect(self, book: NodeBook, now: int, note: Collect) -> None:
        self.demand.full, full = note.full, self.demand.full
        amount = surplus(self.account.unspent, self.demand.kept(now))
        if amount:
            book.ledger.send(self.account, note.source, amount)
        fields = {
            "wave": note.wave,
            "number": book.next_wave(),
            "threshold": self.demand.threshold(now),
            "rate": self.demand.rate(now),
            "kept": self.account.unspent,
            "size": self.demand.size,
            "nodes": 1,
            "wants": self.demand.wants(),
            "low": False,
            "statement": self._state(book) if note.full else None,
        }
        self.demand.asked_upto = max(self.demand.waiting, default=0)
        self.demand.full = full
        book.post(now, Offer, self.account, note.source, **fields)

    def hear_offer(self, book: NodeBook, now: int, note: Offer) -> None:
        if self.state is State.GATHERING and note.wave == self.wave:
            super().hear_offer(book, now, note)

    def hear_share(self, book: NodeBook, now: int, note: Share) -> None:
        if note.verdict is not None:
            self.demand.learn_verdict(now, note.verdict)
        book.serve(now, self.account)


class SequentialRound(ParallelRound):
    """One at a time: the next is asked when the last has answered."""

    def _gather(self, book: NodeBook, now: int, children: list[str]) -> None:
        self.to_ask = children[1:]
        super()._gather(book, now, children[:1])

    def hear_offer(self, book: NodeBook, now: int, note: Offer) -> None:
        mine = self.state is State.GATHERING and note.wave == self.wave and note.source in self.awaited
        if mine and self.to_ask:
            following = self.to_ask.pop(0)
            self.awaited[following] = None
            self._collect(book, now, following)
        super().hear_offer(book, now, note)


class ParallelBook(MeteredBook):
    round_class = ParallelRound


class SequentialBook(MeteredBook):
    round_class = SequentialRound
