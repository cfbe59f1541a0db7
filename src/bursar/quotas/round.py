"""One account's re-allocations at one node: algorithm 1 (aggregation) and 2 (distribution).

A round is in one of three states:

    IDLE       nothing is going on
    GATHERING  asked children for what they can spare, and waits for their offers
    WAITING    handed everything to the parent, and waits for a share of what it finds

IDLE -> GATHERING when this node needs units, a child asks, or the parent collects. GATHERING ends
when every child answered or patience did; then either the units are enough (or this is the root)
and are shared out, or they are offered to the parent. WAITING ends with the parent's share, which
is shared out in turn, or with the end of patience, after which it is tried again.

Nothing here can lose or make a unit. What a round gets wrong costs messages and time.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from bursar.quotas import lots, statement
from bursar.quotas.allocation import lifetime_ns, serve_wants, surplus
from bursar.quotas.demand import Demand
from bursar.quotas.gathering import Gathering, Hint
from bursar.quotas.messages import Busy, Collect, Offer, Share, Statement, Verdict

if TYPE_CHECKING:
    from bursar.quotas.book import NodeBook


class State(Enum):
    IDLE = "idle"
    GATHERING = "gathering"
    WAITING = "waiting"


LOOSE_MAX = 6


class Round:
    """emptied      in a full wave: what was charged ahead is back, so that all there is can be stated
    swept        and what came back into the block since then is back too
    awaited      children that were asked and have not answered
    late         of children that came while this node waits for its parent
    heard        the newest number heard from each neighbour
    """

    def __init__(self, demand: Demand, gathering: Gathering) -> None:
        self.demand = demand
        self.gathering = gathering
        self.rules = demand.rules
        self.account = demand.account
        self.state = State.IDLE
        self.wave = 0
        self.began_at = 0
        self.deadline = 0
        self.emptied = False
        self.swept = False
        self.awaited: dict[str, None] = {}
        self.busy: dict[str, None] = {}
        self.easy = False
        self.late: dict[str, Offer] = {}
        self.heard: dict[str, int] = {}
        self.retry_at = 0
        self.retry_ns = demand.rules.retry_ns

    # -- beginning

    def look_for_need(self, book: NodeBook, now: int) -> None:
        """Start a round if this node needs units and none runs."""
        if self.state is State.GATHERING or not self.demand.is_in_need(now):
            return
        if self.state is State.WAITING and not (self.demand.waiting and self._leave_easily()):
            return
        if now >= self.retry_at:
            self.begin(book, now)
        elif self.demand.waiting or not self.rules.paper:
            book.wake_round(self.retry_at, self.account)

    def _leave_easily(self) -> bool:
        """A node that offered what it had, and asked for nothing, need not wait for an answer."""
        if self.easy:
            self._end()
        return self.easy

    def retry_soon(self, book: NodeBook, now: int) -> None:
        self.retry_at = now
        self.retry_ns = self.rules.retry_ns
        self.look_for_need(book, now)

    def begin(self, book: NodeBook, now: int) -> None:
        self._mark_begin(now)
        self._gather(book, now, self._choose_children(book, now))

    def _mark_begin(self, now: int) -> None:
        if self.state is State.IDLE:
            self.began_at = now
            self.demand.burn.count_event(self.account.used)
        self.demand.reopen_requests()  # what the last decision gave them may be handed over now
        self.state = State.GATHERING

    def _gather(self, book: NodeBook, now: int, children: list[str]) -> None:
        self.wave = book.next_wave()
        self.demand.asked_upto = max(self.demand.waiting, default=0)
        self.awaited = dict.fromkeys(children)
        self.busy = {}
        if not children:
            self._conclude(book, now)
            return
        self._set_deadline(book, now, self.rules.patience_ns)
        for child in children:
            self._collect(book, now, child)

    def _choose_children(self, book: NodeBook, now: int) -> list[str]:
        others = [child for child in book.children if child not in self.gathering.offers]
        if self.rules.paper:
            asked = self.gathering.asked_by
            return [] if asked is not None and self.gathering.stops_here(now, asked) else others
        if self.demand.scarce or (self.gathering.asked_by is None and self.gathering.is_enough(now)):
            return []
        if book.parent is None and self._is_poor(book, now):
            return []  # a full wave follows at once
        return [child for child in others if self.gathering.may_spare(now, child)]

    def _collect(self, book: NodeBook, now: int, child: str) -> None:
        pool, kept = surplus(self.account.unspent, self.demand.kept(now)), self.demand.threshold(now)
        if self.gathering.asked_by is not None:
            pool += self.gathering.asked_by.pool
            kept += self.gathering.asked_by.threshold
        fields = {"full": self.demand.full, "pool": pool, "threshold": kept, "mints": self.demand.mints}
        book.post(now, Collect, self.account, child, wave=self.wave, **fields)

    # -- being asked, and being answered

    def hear_collect(self, book: NodeBook, now: int, note: Collect) -> None:
        if note.source != book.parent:
            book.post(now, Busy, self.account, note.source, wave=note.wave, gone=True)
            return
        if note.wave <= self.heard.get(note.source, 0):
            return
        if note.full:
            self._accept(note)
            if not (self.demand.full and self.state is State.GATHERING):
                self.prepare_full(book, now)
        elif self.state is State.IDLE or (self.state is State.WAITING and self._leave_easily()):
            self._accept(note)
            self.begin(book, now)
        elif self.state is State.GATHERING and not self.rules.paper:
            self._accept(note)
        elif self.state is State.GATHERING:
            book.post(now, Busy, self.account, note.source, wave=note.wave)
        # WAITING: the offer that is on its way is the answer.

    def _accept(self, note: Collect) -> None:
        self.gathering.asked_by = note
        self.heard[note.source] = note.wave

    def hear_busy(self, book: NodeBook, now: int, note: Busy) -> None:
        """PARTICIPATING: asked again, never counted as empty."""
        if self.state is not State.GATHERING or note.wave != self.wave or note.source not in self.awaited:
            return
        if not note.gone:
            self.busy[note.source] = None
            book.wake_round(now + self.rules.retry_ns, self.account)
            return
        del self.awaited[note.source]
        if not self.awaited:
            self._conclude(book, now)

    def hear_offer(self, book: NodeBook, now: int, note: Offer) -> None:
        answers = self.state is State.GATHERING and note.wave == self.wave and note.source in self.awaited
        if note.number <= self.heard.get(note.source, 0) and not answers:
            return
        self.heard[note.source] = max(note.number, self.heard.get(note.source, 0))
        known = self.gathering.hints.get(note.source)
        nodes = max(note.nodes, known.nodes if known is not None else 0)
        self.gathering.hints[note.source] = Hint(note.kept, note.rate, now, nodes)
        if self.state is State.WAITING and not self._leave_easily():
            self.late[note.source] = note
        elif self.state is not State.GATHERING:
            self.gathering.offers = {note.source: note}
            self.begin(book, now)
        elif not self.demand.full or note.wave == self.wave:
            self.gathering.offers[note.source] = note
            if note.source in self.late and self.late[note.source].number < note.number:
                del self.late[note.source]  # it was under way when the wave began: this says it all
            if self.awaited.pop(note.source, 0) is None and not self.awaited:
                self._conclude(book, now)
        else:
            self.late[note.source] = note

    def learn_duration(self, duration_ns: int) -> None:
        self.demand.learn_duration(duration_ns)

    def forget_children(self, children: tuple[str, ...]) -> None:
        """Those that are no longer here get no share: what they offered is here, and what is sent to a
        node that has left is stranded until it is back."""
        for offers in (self.gathering.offers, self.late):
            for child in [child for child in offers if child not in children]:
                del offers[child]

    # -- enough, or further up

    def _conclude(self, book: NodeBook, now: int) -> None:
        """Every child that will answer has answered."""
        if self.demand.full and self._sweep(book, now):
            return
        if book.parent is None:
            self._conclude_at_root(book, now)
        elif self.demand.full or self.gathering.asked_by is not None or not self.gathering.is_enough(now):
            self._offer(book, now, book.parent)
        else:
            self._share_out(book, now)

    def _offer(self, book: NodeBook, now: int, parent: str) -> None:
        fields: dict[str, Any] = {
            "wave": self.gathering.asked_by.wave if self.gathering.asked_by is not None else 0,
            "number": self.wave,
            "threshold": self.gathering.thresholds(now),
            "rate": self.gathering.subtree_rate(now) if self.demand.scarce else self.gathering.rates(now),
            "size": self.gathering.sizes(),
            "nodes": 1 + sum(offer.nodes for offer in self.gathering.offers.values()),
            "wants": self.gathering.all_wants(),
            "low": self.demand.is_low(now) or any(offer.low for offer in self.gathering.offers.values()),
        }
        amount = surplus(self.account.unspent, self.demand.kept(now))
        if amount:
            book.ledger.send(self.account, parent, amount)
        fields["kept"] = self.account.unspent + sum(offer.kept for offer in self.gathering.offers.values())
        fields["statement"] = self._state(book) if self.demand.full and self.emptied else None
        self.gathering.asked_by = None
        self.easy = not self.rules.paper and not fields["low"] and not fields["wants"]
        self.state = State.WAITING
        self._set_deadline(book, now, self.rules.waiting_ns)
        book.post(now, Offer, self.account, parent, **fields)

    # -- sharing out (algorithm 2)

    def hear_share(self, book: NodeBook, now: int, note: Share) -> None:
        if note.source != book.parent or note.offer != self.wave or self.state is not State.WAITING:
            return  # late: its units count, what it says of the whole is no longer so
        self.demand.scarce = note.scarce
        self.gathering.whole_until = now + note.lifetime_ns if note.lifetime_ns else None
        if note.verdict is not None:
            self.demand.learn_verdict(now, note.verdict)
        self._share_out(book, now, note.verdict)

    def _share_out(self, book: NodeBook, now: int, verdict: Verdict | None = None) -> None:
        """Waiting requests first, then by rate, added to what each kept (eq. 5 and 6)."""
        offers, shares = self.gathering.offers, self.gathering.split(now)
        self.learn_duration(now - self.began_at)
        self._end()
        lasts_ns = max(0, self.gathering.whole_until - now) if self.gathering.whole_until is not None else 0
        fields = {"lifetime_ns": lasts_ns, "scarce": self.demand.scarce, "verdict": verdict}
        for (child, offer), amount in zip(offers.items(), shares, strict=True):
            if amount:
                book.ledger.send(self.account, child, amount)
            nodes = (
                max(offer.nodes, self.gathering.hints[child].nodes)
                if child in self.gathering.hints
                else offer.nodes
            )
            self.gathering.hints[child] = Hint(offer.kept + amount, offer.rate, now, nodes)
            if amount or offer.low or offer.wants or not self._may_be_silent(verdict):
                book.post(now, Share, self.account, child, offer=offer.number, **fields)
        self._serve_own(book, now)

    def _may_be_silent(self, verdict: Verdict | None) -> bool:
        """Whoever asked for nothing and gets nothing waits for nothing. That nothing is left at
        all, though, is told to everybody at once."""
        return not self.rules.paper and (verdict is None or verdict.left > 0)

    def _end(self) -> None:
        self.state = State.IDLE
        self.demand.full = False
        self.gathering.asked_by = None
        self.awaited = {}
        self.gathering.offers = {}

    def _serve_own(self, book: NodeBook, now: int) -> None:
        """What waits here is served; who came during the round is next. A node whose need was not
        met asks less and less often, one whose need is new asks at once."""
        self._back_off(now)
        book.serve(now, self.account)
        if (
            (min(self.demand.waiting) > self.demand.asked_upto)
            if self.demand.waiting
            else not self.demand.is_in_need(now)
        ):
            self.retry_ns = self.rules.retry_ns
            self.retry_at = now
        again_at = self.demand.owes_until()
        if again_at is not None:
            book.wake_round(again_at, self.account)
        self._go_on(book, now)

    def _back_off(self, now: int) -> None:
        self.retry_at = now + self.retry_ns
        self.retry_ns = min(2 * self.retry_ns, self.rules.retry_max_ns)

    def _go_on(self, book: NodeBook, now: int) -> None:
        if self.late and self.state is State.IDLE:
            self.gathering.offers, self.late = self.late, {}
            self.begin(book, now)
        else:
            self.look_for_need(book, now)

    # -- the root decides

    def _conclude_at_root(self, book: NodeBook, now: int) -> None:
        lasts_ns = lifetime_ns(self.account.unspent, self.gathering.rates(now))
        self.gathering.whole_until = None if lasts_ns is None else now + lasts_ns
        if self.demand.full:
            self._share_out(book, now, self._decide(book, now))
            return
        unmet = serve_wants(self.account.unspent, self.gathering.all_wants())[1]
        known = self.demand.recall_verdict(now) if unmet is not None else None
        if known is not None and unmet is not None and unmet > known.left:
            self._share_out(book, now, known)  # more than there was at the last decision
        elif unmet is not None or (not self.demand.scarce and self._is_poor(book, now)):
            self.prepare_full(book, now)
        else:
            self._share_out(book, now)

    def prepare_full(self, book: NodeBook, now: int) -> None:
        """Everything is wanted. What was charged ahead goes back first, and lots are recalled; the wave
        goes down once all that is written here is durable, so that nothing is under way within the node."""
        self._mark_begin(now)
        self.wave = book.next_wave()
        self.demand.full = True
        self.emptied = False
        self.swept = False
        self.awaited = {}
        lots.recall(book, self.account)
        if self.account.block > 0:
            book.ledger.return_block(self.account, self.account.block)
        self._set_deadline(book, now, self.rules.patience_ns)
        book.defer(now, "begin_full", self.account.name, self.wave)

    def begin_full(self, book: NodeBook, now: int, wave: int) -> None:
        if self._is_prepared(wave):
            if self.account.block > 0:
                self._return_late_block(book, now)
                return
            self.gathering.offers = {}
            self.emptied = True
            self._gather(book, now, list(book.children))

    def _return_late_block(self, book: NodeBook, now: int) -> None:
        """It was being charged when the wave was prepared: for requests that wait, perhaps."""
        book.serve(now, self.account)
        self.prepare_full(book, now)

    def _sweep(self, book: NodeBook, now: int) -> bool:
        """Holds end and lots come back while the children are waited for: that too is unspent, and is
        gathered before anything is said of the whole. Once, for holds end all the time, and what comes
        still later counts as held; but as long as lots are out, again."""
        if not self.emptied or self.swept or not self.account.block:
            return False
        self.swept = not self.account.ahead
        self.emptied = False
        book.ledger.return_block(self.account, self.account.block)
        book.defer(now, "conclude_full", self.account.name, self.wave)
        return True

    def conclude_full(self, book: NodeBook, now: int, wave: int) -> None:
        if self._is_prepared(wave):
            self.emptied = True
            self._conclude(book, now)

    def _is_prepared(self, wave: int) -> bool:
        """Whether what was just made durable is what this wave waits for: a slow disk may outlast a wave."""
        return self.demand.full and self.state is State.GATHERING and wave == self.wave

    def _is_poor(self, book: NodeBook, now: int) -> bool:
        """Little is here, and by the last that was heard little is elsewhere."""
        elsewhere = [
            self.gathering.may_have(now, child)
            for child in self.gathering.hints
            if child not in self.gathering.offers
        ]
        return self._is_scarce(book, sum(elsewhere))

    def _is_scarce(self, book: NodeBook, elsewhere: int = 0) -> bool:
        """So little is left that spreading it would only make everybody ask again."""
        nodes = 1 + sum(offer.nodes for offer in self.gathering.offers.values())
        rules = self.rules
        requests = rules.far_scarce_requests if self.demand.is_far else rules.scarce_requests
        wanted = requests * self.gathering.sizes() * len(book.members or ()) // nodes
        rest = self.account.unspent + elsewhere - sum(self.gathering.all_wants())
        return not self.rules.paper and rest < wanted

    def _decide(self, book: NodeBook, now: int) -> Verdict | None:
        """A full wave is over: everything unspent is here, if everybody answered."""
        state = self._state(book)
        if book.members is None or not self.emptied:
            return None  # the tree is not known yet, or the disk took longer than patience
        everybody = book.members | self.demand.owners
        if not statement.is_complete(state, everybody, book.fenced, self.demand.told_mints):
            return None
        self.demand.scarce = self._is_scarce(book)
        used, _ = serve_wants(self.account.unspent, self.gathering.all_wants())
        # Units may yet come back from a hold, from a request that is gone, or late from a fenced ledger.
        final = state.held == 0 and used == 0 and not state.loose
        memory_ns = 0 if final else self.rules.memory_ns
        if state.loose and not state.held and not used:
            # Only what a fenced ledger may have sent is open: the longer it does not come, the less often
            # it is asked for. (Its return is heard of, and begins anew.)
            memory_ns = memory_ns << min(self.demand.loose_verdicts, LOOSE_MAX)
            self.demand.loose_verdicts += 1
        verdict = Verdict(self.account.unspent - used, used, memory_ns, state.mints)
        self.demand.learn_verdict(now, verdict)
        return verdict

    def _state(self, book: NodeBook) -> Statement:
        parts = [offer.statement for offer in self.gathering.offers.values() if offer.statement is not None]
        return statement.merge(book.identity, self.account, self.demand.mints, parts)

    # -- time

    def _set_deadline(self, book: NodeBook, now: int, patience_ns: int) -> None:
        self.deadline = now + patience_ns
        book.wake_round(self.deadline, self.account)

    def wake(self, book: NodeBook, now: int) -> None:
        if self.state is State.IDLE:
            self.look_for_need(book, now)
        elif now < self.deadline:
            self._ask_again(book, now)
        elif self.state is State.GATHERING:
            self.awaited = {}
            self._conclude(book, now)
        else:
            # The parent did not answer. What was offered is its to give; ask again later.
            self._end()
            self._back_off(now)
            self._go_on(book, now)

    def _ask_again(self, book: NodeBook, now: int) -> None:
        busy, self.busy = self.busy, {}
        for child in busy:
            if child in self.awaited:
                self._collect(book, now, child)
