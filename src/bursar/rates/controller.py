"""The controller's book: who may hold how many tokens of the present period.

A controller is a candidate, then a leader, then deposed. What it may do as a leader rests on one
node in the store, `State`: whoever changed it last leads, and nobody else can open a period.

    standby --lead()--> raising the epoch --committed()--> leading --deposed()--> standby
                                                             | tick: poll, open, place
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec
import numpy as np
import numpy.typing as npt

from bursar.book import Send
from bursar.rates.columns import EMPTY
from bursar.rates.granting import Draft, Round, Work
from bursar.rates.haste import Haste
from bursar.rates.interval import AdaptiveInterval
from bursar.rates.ledger import Ledger, Promised
from bursar.rates.messages import (
    NO_PART,
    Ack,
    Grant,
    Left,
    Life,
    Part,
    Poll,
    Report,
    Started,
    State,
    Wanted,
)
from bursar.rates.standing import Standing
from bursar.rates.terms import Terms
from bursar.rates.views import (
    NOTHING,
    Above,
    Held,
    Picture,
    Place,
    Sent,
    ServerView,
    make_targets,
)
from bursar.world import MILLISECOND_NS, Message

replace = msgspec.structs.replace

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

PPM = 1_000_000

ROUNDING_NS = 2

NEVER_NS = 2**62

GATHER_NS = 200 * MILLISECOND_NS
"""How long a period that could open waits for servers that have not answered yet: a quarter of an
interval, and no longer than this. Those that come later are listed when they do."""


SHORT_MAX = 100
"""Tenants whose reservations cannot be met that every server is told of."""

PIECE = 200_000
"""Tenants times servers that are granted for at a stretch: a few milliseconds."""

HURRIES_NS = (20 * MILLISECOND_NS, 100 * MILLISECOND_NS)
"""After a round that is begun because a tenant asks where it has no tokens, there are others so much
later, within the interval: they see that it asks no longer where it did, and when its queue there is gone."""


DEPARTED_MAX = 1000
"""Lives that have said that they are gone, and are remembered to have."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Compare-and-set the state in the store; `committed` or `deposed` is called with the outcome."""

    state: State


Effects = list[Send | Commit]

PeriodTerms = tuple[Mapping[str, Terms], str, int]
"""What a period is opened with: the terms, their name, and how far clocks may run apart."""


def _is_older(report: Report, view: ServerView) -> bool:
    """Whether the report was overtaken by what is known: of an earlier life, or sent earlier. (After a life
    that has left, a server may go on elsewhere, with lives that are numbered otherwise.)"""
    if view.left and report.incarnation != view.incarnation:
        return False
    return (report.incarnation, report.sent_at) < (view.incarnation, view.report.sent_at)


class ControllerBook:
    """Places tokens on servers, and never more of them than there are.

    Invariants, for every tenant with a limit:
    - the bounds of all servers, with what was lost with lives of servers that ended, never add up
      to more than the limit: a rise waits until the falls that pay for it are acknowledged. That goes
      for tenants that no message has named too: a grant gives the lives that the period was opened with
      a part each of everybody's limit (`parts`), and whoever is named once has a row in every grant
      of the period from then on;
    - the limit of a period is that of the terms it was opened with: a leader with others (the policy was
      changed meanwhile) makes no tokens of it;
    - a period is opened by one compare-and-set, so only by the leader of the latest epoch, and
      only after every token of the one before has expired on every clock within the drift bound;
    - what a server may have begun a period with, alone, counts as its bound from the opening of that
      period on, which then has the terms of the one before. Whoever does not know these opens none: it
      waits until what was begun alone has ended;
    - no token of a period ends later than the leader that opened it has said, whoever leads now: servers
      begin the next one by it;
    - tokens go only to lives of servers that the state lists, so a successor knows whom to ask;
    - a new leader moves, among servers that have answered it, what they said they hold; it makes
      new tokens only once every listed life has answered;
    - the bound of a life that ended stays spent, unless it said before that it dispatches nothing more
      (`Left`): then what it dispatched does, and the rest is free; or unless a later life of that server
      answers for it, by its journal: then what it charged stays spent, which is all that it can have
      dispatched (and may be more than it was still allowed, which costs tokens), and the rest is free. That
      counts only for the present period, because a life that has no grant yet speaks of the period
      that it was asked for.

    Where the tokens should be is `place`'s to say, and nothing here trusts it.

    A round of many tenants is done in pieces, a tick each (`Work`), with whatever comes in between. What is
    granted rests on the bounds of all servers at one moment; until the last grant of the round is sent no
    other is, so that they have only fallen since. Whatever changes what there is to grant drops the rest.
    """

    piece = PIECE

    def __init__(
        self,
        name: str,
        servers: Iterable[str],
        terms: Mapping[str, Terms],
        place: Place,
        *,
        period_ns: int,
        interval_ns: int,
        drift_ppm: int,
        adaptive: bool = False,
        digest: str = "",
        standing: Standing | None = None,
    ) -> None:
        """`digest` names the terms. `above` is None, or what this controller has of limits and periods from
        another that is above it (`zones`): then it opens no others."""
        self.name = name
        self.names = tuple(servers)
        self.terms = terms
        self.digest = digest
        self._place = place
        self._period_ns = period_ns
        self.interval_ns = interval_ns
        self._adaptive = AdaptiveInterval(interval_ns) if adaptive else None
        self._polled = (0, 0)
        self._drift_ppm = drift_ppm
        self.tokens = Ledger(terms)
        self.leading = False
        self.state = State(0, "", 0, ())
        self.committing: State | None = None
        self._sequence = 0
        self.find_short: Callable[[], Mapping[str, int]] = dict
        self._local: frozenset[str] = frozenset()
        self._standing = standing or Standing()
        self.above: Above | None = None
        self._alone: dict[Life, Held] = {}
        self._inherited = False
        self._began_at = 0
        self._ends_at = 0
        self._over_at = 0
        self._alone_over_at = 0
        self._opens_at = 0
        self._poll_at = 0
        self._place_at: int | None = None
        self._hurries: list[int] = []
        self._hurried_at = 0
        self._haste = Haste()
        self._awaited: set[str] = set()
        self._untold: set[str] = set()
        self._answered: set[tuple[str, int]] = set()
        self._complete = False
        self._next_terms: PeriodTerms | None = None
        self._opening: PeriodTerms = (terms, digest, drift_ppm)
        self._departed: dict[tuple[str, int], tuple[Left, int]] = {}
        self._owed: set[str] = set()
        self._work: Work | None = None

    # -- leading ----------------------------------------------------------------------------

    def lead(self, stored: State) -> Effects:
        """This node was elected: raise the epoch. Nothing is sent before that is committed."""
        self.deposed()
        return self._commit(replace(stored, epoch=stored.epoch + 1, leader=self.name))

    def deposed(self) -> None:
        """Somebody else changed the state: this node leads no more."""
        self.leading = False
        self.committing = None
        self._place_at = self._work = None

    def _commit(self, state: State) -> Effects:
        if self.committing is not None:
            return []
        self.committing = state
        return [Commit(state)]

    @property
    def complete(self) -> bool:
        """Whether all that may hold tokens of the period have said what."""
        return self._complete

    @property
    def settled(self) -> bool:
        """Whether what was placed is acknowledged, by all that are there."""
        waits = self._place_at is not None or self._work is not None
        return not waits and not any(view.unacknowledged for view in self.tokens.views.values())

    @property
    def ends_at(self) -> int:
        """When the tokens that are placed now end."""
        return self._ends_at

    def count_held(self, tenants: Iterable[str]) -> dict[str, int]:
        """What all servers together may have of the period, by tenant, whoever they are."""
        return self.tokens.count(tenants)

    @property
    def sent(self) -> int:
        """The sequence of the last grant that was sent in this epoch."""
        return self._sequence

    def wants(self, state: State) -> bool:
        """Whether this is the state that the book waits to see committed."""
        return state is self.committing

    def committed(self, now: int, state: State) -> Effects:
        """The store holds this state now."""
        if state != self.committing:
            return []
        self.committing = None
        before, self.state = self.state, state
        if not self.leading:
            return self._begin_leading(now)
        if state.period > before.period:
            return self._begin_period(now, before)
        # Somebody came up in the midst of a period: it need not wait for the next round.
        return self._poll(now, full=False) if self._place_at is None and now < self._opens_at else []

    def _begin_leading(self, now: int) -> Effects:
        """Fence every server. What is out cannot outlast a whole period from now, because the
        leader before this one opened none after the epoch was raised. When it ends, servers say."""
        self.leading = True
        self._sequence = 0
        self._polled = (now, now)
        self._answered = set()
        self._take_terms()
        self._forget_period()
        self.tokens.begin_leading(self.terms, opened=self._knows_terms)
        self._complete = not self.state.servers
        self._standing.open(self.state, inherited=True)
        self._inherited = True
        out_ns = 0 if self._complete else self._period_ns
        self._ends_at = now
        self._over_at = now + self._guarded(out_ns)
        self._alone_over_at = self._over_at + self._guarded(self._period_ns)
        self._opens_at = max(self._over_at, now + self._gather_ns())
        effects = self._poll(now, full=True)
        for left, _ in self._departed.values():
            self._account_for(now, left)
        # Once all that hold tokens have said how long they still do, the next period need not
        # wait any longer than that; sending them anything before would.
        self._awaited = {life[0] for life in self.state.servers if life not in self._answered}
        return effects

    def _forget_period(self) -> None:
        self._alone = {}
        self._owed = set()
        self._place_at = self._work = None

    def _guarded(self, duration_ns: int) -> int:
        """The time on this clock in which at least `duration_ns` pass on every other. (Clocks show whole
        nanoseconds: one may have begun, and one not ended, when they do.)"""
        return -(-duration_ns * (PPM + self._drift_ppm) // (PPM - self._drift_ppm)) + ROUNDING_NS

    def _shrunk(self, duration_ns: int) -> int:
        """The time on this clock in which at most `duration_ns` pass on every other."""
        return duration_ns * (PPM - self._drift_ppm) // (PPM + self._drift_ppm)

    def reconfigure(self, terms: Mapping[str, Terms], digest: str = "", drift_ppm: int | None = None) -> None:
        """New terms, from the next period on: what was placed already stays within the old ones."""
        drift_ppm = self._drift_ppm if drift_ppm is None else drift_ppm
        self._next_terms = (terms, digest, drift_ppm)

    def _take_terms(self) -> None:
        if self._next_terms is not None:
            self.terms, self.digest, self._drift_ppm = self._next_terms
            self._next_terms = None

    def set_interval(self, interval_ns: int, adaptive: bool) -> None:
        """From the next round on."""
        self.interval_ns = interval_ns
        self._adaptive = AdaptiveInterval(interval_ns) if adaptive else None

    def set_servers(self, servers: Iterable[str], local: Iterable[str] = ()) -> None:
        """The servers there are now, and those of them that run on this node. One that is gone keeps its
        bound until the period ends."""
        self.names, self._local = tuple(servers), frozenset(local)

    # -- time -------------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        if not self.leading:
            return None
        if self._work is not None:
            return 0
        times = (self._poll_at, self._opens_at, self._place_at)
        return min(time for time in times if time is not None)

    def tick(self, now: int) -> Effects:
        if not self.leading:
            return []
        if now >= self._opens_at:
            return self._open(now)
        if self._work is not None:
            return self._work_on(now, self._work)
        if self._place_at is not None and now >= self._place_at:
            return self._end_round(now)
        if now >= self._poll_at:
            return self._poll(now, full=False)
        return []

    def _hurry(self, now: int) -> Effects:
        """Demand has moved: a round now and others soon, twice in an interval at most, and not more of them
        than there is time for."""
        pause_ns = self._haste.find_pause(1 + len(HURRIES_NS), self._period_ns)
        if now < self._hurried_at + max(self.interval_ns // 2, pause_ns):
            return []
        self._hurried_at = now
        effects: Effects = []
        if self._place_at is None and now < self._ends_at:
            self._hurries = [now]
            effects = self._poll(now, full=False)
        self._hurries = [now + later_ns for later_ns in HURRIES_NS if later_ns < self.interval_ns // 2]
        self._poll_at = min([self._poll_at, *self._hurries])
        return effects

    def _poll(self, now: int, full: bool) -> Effects:
        """Ask everyone; place when all that were heard lately have answered, or soon anyway."""
        self._haste.talk(now)
        hurried, self._hurries = bool(self._hurries), [at for at in self._hurries if at > now]
        # Whoever does not answer a hurried round in time is not gone.
        self._polled = (self._polled[0] if hurried else self._polled[1], now)
        self._poll_at = min([now + self.interval_ns, *self._hurries])
        self._place_at = now + self.interval_ns // 4
        self._awaited = {view.name for view in self._alive()}
        return [self._ask(now, server, full or self._is_untold(server)) for server in self._find_asked()]

    def _find_asked(self) -> Iterable[str]:
        """The servers, and those that may still hold tokens and have not said what."""
        unheard = [name for name, life in self.state.servers if (name, life) not in self._answered]
        return dict.fromkeys([*self.names, *unheard])

    def _ask(self, now: int, server: str, full: bool) -> Send:
        return Send(server, Poll(self.state.epoch, now, full, self.state.period))

    def _is_untold(self, server: str) -> bool:
        """Whether what the server last said in full never came here."""
        return server in self._untold or server not in self.tokens.views

    def _alive(self) -> list[ServerView]:
        """Those heard since the poll before this one (time alone does not tell: where a period ends a
        poll is left out, and intervals may change), and not by what they said a period ago and more."""
        since = self._polled[0]
        return [
            view
            for view in self.tokens.views.values()
            if view.heard_at >= since
            and view.asked_at >= since - self._period_ns
            and not view.left
            and view.name in self.names
        ]

    def _open(self, now: int) -> Effects:
        self._opens_at = now + self._gather_ns()
        lives = tuple(sorted(view.life for view in self._alive()))
        if not lives:
            return self._poll(now, full=True) if now >= self._poll_at else []
        if self.committing is not None:
            return []
        if self.above is not None:
            return self._open_below(now, self.above, lives)
        # Some may have begun others alone, for as long as nobody led.
        begun = max(view.report.period for view in self._alive())
        period = max(self.state.period + 1, min(begun, self._standing.last))
        alone = self._standing.find_given(period)
        if alone and self.state.terms != self.digest:
            # The next period is theirs alone, under terms that are not known here.
            if now < self._alone_over_at:
                self._opens_at = min(self._opens_at, self._alone_over_at)
                return self._poll(now, full=False) if now >= self._poll_at else []
            alone, period = {}, self._standing.last + 1
        return self._commit(self._make_opening(period, lives, alone))

    def open_now(self) -> None:
        """There is another period from above."""
        self._opens_at = 0

    def _open_below(self, now: int, above: Above, lives: tuple[Life, ...]) -> Effects:
        """The period that there is from above, once its terms are known here; nobody begins one alone."""
        if above.period <= self.state.period:
            self._opens_at = NEVER_NS
        known = [(self.terms, self.digest, self._drift_ppm), self._next_terms]
        self._opening = next((each for each in known if each and each[1] == above.terms), self._opening)
        if above.period <= self.state.period or self._opening[1] != above.terms:
            return self._poll(now, full=False) if now >= self._poll_at else []
        tied = tuple(name for name, _ in lives)
        return self._commit(
            State(self.state.epoch, self.name, above.period, lives, above.terms, standing=lives, tied=tied)
        )

    def _make_opening(self, period: int, lives: tuple[Life, ...], alone: Mapping[Life, Part]) -> State:
        """Terms change where nobody can have begun the period; and if they should have changed and could
        not, nobody begins the one after it."""
        present = (self.terms, self.digest, self._drift_ppm)
        self._opening = present if alone else self._next_terms or present
        waiting = self._next_terms is not None and self._next_terms is not self._opening
        # Whoever may begin further periods alone is counted in each of them.
        still = self._standing.find_given(period + 1)
        return State(
            epoch=self.state.epoch,
            leader=self.name,
            period=period,
            servers=tuple(sorted({*lives, *alone})),
            terms=self._opening[1],
            standing=tuple(sorted({*(() if waiting else lives), *still})),
            tied=() if waiting else tuple(name for name, _ in lives if name in self._local),
        )

    def _gather_ns(self) -> int:
        return min(self.interval_ns // 4, GATHER_NS)

    def _begin_period(self, now: int, before: State) -> Effects:
        alone = dict(self._standing.find_given(self.state.period))
        self._forget_period()
        self._complete = True
        self._set_times(now, bool(alone))
        self._poll_at = now + self.interval_ns
        self.terms, self.digest, self._drift_ppm = self._opening
        if self._next_terms is self._opening:
            self._next_terms = None
        # Nothing counts of those that were not heard for a period: another node may have their servers now.
        since = now - self._period_ns - self.interval_ns
        heard = [view for view in self.tokens.views.values() if not view.left and view.heard_at >= since]
        self.tokens.views = {view.name: view for view in heard}
        self.tokens.begin_period(self.terms, opened=self._knows_terms)
        parts = self._standing.number(before.standing if alone else self.state.standing)
        for view in self.tokens.views.values():
            part = parts.get(view.life, NO_PART)
            part = part if self.above is None else self.above.nest(part)
            view.begin_period(part, alone.pop(view.life, NO_PART))
        self._alone = {life: Held(life[0], EMPTY, part) for life, part in alone.items()}
        self.tokens.buried += self._alone.values()
        self._standing.open(self.state, inherited=False)
        self._haste.talk(now)
        return self._place_tokens(now)

    def place_anew(self, now: int) -> Effects:
        """There is more or less from above to place, by what servers said last, and until another time."""
        if not self.leading or self.above is None or self.above.period != self.state.period:
            return []
        self._ends_at = self.above.expires_at
        self._work = None  # what is under way was made of what there was before
        return self._place_tokens(now) if self._place_at is None else []

    def _set_times(self, now: int, alone: bool) -> None:
        """A period that servers may have begun alone goes on as it was begun: when the one before was over.
        It is not over before what was begun so has ended, which a server that was not heard may hold."""
        began = [
            view.asked_at + view.report.time_left_ns
            for view in self.tokens.views.values()
            if view.report.period == self.state.period
        ]
        ends_at = max(began, default=self._over_at + self._period_ns) if alone else now + self._period_ns
        if self.above is not None:
            ends_at = self.above.expires_at
        self._began_at, self._ends_at = now, max(now, ends_at)
        self._over_at, before = now + self._guarded(self._ends_at - now), self._alone_over_at
        if alone:
            self._over_at = max(self._over_at, before)
        self._opens_at = self._over_at
        self._alone_over_at = self._over_at + self._guarded(self._period_ns)
        self._inherited = False

    # -- what servers say -------------------------------------------------------------------

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        if isinstance(message, Left):
            return self._hear_left(now, message)
        if not self.leading:
            return []
        match message:
            case Report(epoch=epoch) | Ack(epoch=epoch) if epoch > self.state.epoch:
                self.deposed()
            case Report(epoch=epoch) if epoch == self.state.epoch:
                self._haste.hear(now)
                return self._hear(now, message)
            case Ack(epoch=epoch) if epoch == self.state.epoch:
                self._haste.hear(now)
                return self._acknowledged(now, message)
            case Started(server=server) if server in self.names:
                return [self._ask(now, server, full=True)]
            case Wanted(server=server) if server in self.names:
                return self._hurry(now)
        return []

    def _hear(self, now: int, report: Report) -> Effects:
        view = self.tokens.views.get(report.server)
        life = (report.server, report.incarnation)
        if (view is not None and _is_older(report, view)) or life in self._departed:
            return []
        known = view is not None and view.incarnation == report.incarnation
        seen = None if report.rows is None else self.tokens.roll.read(report.rows)
        stands = view is not None and known and report.rows is None and view.rows_at == report.stands_at
        if seen is None and not stands:
            self._untold.add(report.server)
        whole = seen is not None and report.rows is not None and report.rows.whole
        if (seen is None and not known) or (life not in self._answered and not whole):
            # What stands was lost on the way here: this answer does not say what it holds.
            self._untold.add(report.server)
            return []
        if not known and report.lives and report.period < self.state.period:
            # Asked in an earlier period, it looked up that one: this is no answer for the present one. (In a
            # later one, which it has begun alone meanwhile, the present one is over for everybody.)
            self._untold.add(report.server)
            return []
        if view is None or not known:
            self._end_lives(now, report, view)
            if view is not None and view.incarnation not in report.lives:
                self._bury(view)
            view = ServerView(report.server, report.incarnation, now, report.asked_at, report)
            self.tokens.views[report.server] = view
        if report.period == self.state.period:
            self._hear_former(report)
        view.report, view.heard_at = report, now
        view.asked_at = max(view.asked_at, report.asked_at)
        if seen is not None:
            self._untold.discard(report.server)
            view.seen, view.rows_at, view.seen_ns = seen, report.sent_at, report.seen_ns
        self._hear_time(now, report)
        self._first_answer(now, view)
        if report.asked_at == self._polled[1]:
            self._awaited.discard(view.name)
        effects = self._list(view)
        if not self._awaited and self._place_at is not None and now < self._opens_at:
            effects += self._end_round(now)
        return effects

    def _hear_former(self, report: Report) -> None:
        """What earlier lives may have begun of the period alone is in its rows, if it is anywhere."""
        for incarnation in report.lives:
            former = (report.server, incarnation)
            self._forget_alone(former)
            self._standing.succeed(former, report.period)

    def _end_lives(self, now: int, report: Report, view: ServerView | None) -> None:
        """Earlier lives of the server are over. If the period is not, they have not begun the next one. Of
        one that another leader opened it is known when it is over at the latest, not that it is not yet."""
        if not self._inherited and now < self._over_at:
            ended = [*report.lives, *([view.incarnation] if view is not None else [])]
            for incarnation in ended:
                self._standing.drop((report.server, incarnation))

    def _hear_time(self, now: int, report: Report) -> None:
        """How long a period lasts that another leader opened. Its tokens may be moved, but none may end
        later than they would have: others go by it. (By what a life says that goes by its journal, they
        might, and do so where nobody else goes by anything.)"""
        if not self._inherited:
            return
        over_ns = report.over_ns
        if report.period == self.state.period:
            if over_ns is not None:
                self._over_by(now + self._guarded(over_ns))
            if over_ns is not None or not self._standing.given:
                left_ns = self._shrunk(self._shrunk(report.time_left_ns))
                self._ends_at = min(self._over_at, max(self._ends_at, report.asked_at + left_ns))
        elif report.period > self.state.period and over_ns is not None:
            self._over_by(now)
            alone_ns = self._guarded(self._guarded(over_ns))
            self._alone_over_at = min(self._alone_over_at, now + alone_ns)

    def _over_by(self, moment: int) -> None:
        self._over_at = min(self._over_at, moment)
        self._ends_at = min(self._ends_at, self._over_at)
        self._alone_over_at = min(self._alone_over_at, self._over_at + self._guarded(self._period_ns))
        self._opens_at = min(self._opens_at, max(self._over_at, self._polled[1] + self._gather_ns()))

    def _bury(self, view: ServerView) -> None:
        """A life of a server is over: what it may have held counts as spent."""
        self.tokens.buried.append(view)

    def _hear_left(self, now: int, left: Left) -> Effects:
        """That is true for ever, and counts for whoever leads later too."""
        life = (left.server, left.incarnation)
        if life in self._departed:
            return []
        self._departed[life] = (left, now + self._guarded(left.time_left_ns))
        if len(self._departed) > DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]
        if not self.leading:
            return []
        if left.period <= self.state.period:
            self._standing.drop(life)
        view = self.tokens.views.get(left.server)
        if view is None or view.incarnation != left.incarnation:
            self._account_for(now, left)
            return []
        view.leave(self._find_left(left))
        self._awaited.discard(left.server)
        # What it gives back may be placed elsewhere at once.
        return self._place_tokens(now) if self._place_at is None else []

    def _find_left(self, left: Left) -> Held:
        rows = dict(left.rows) if left.period == self.state.period else {}
        return self.tokens.hold(left.server, rows)

    def _account_for(self, now: int, left: Left) -> None:
        """A life that may hold tokens of the period and has not answered this leader is gone, and said what
        it dispatched."""
        life = (left.server, left.incarnation)
        if life in self._answered or life not in self.state.servers:
            return
        self._answered.add(life)
        self._forget_alone(life)
        held = self._find_left(left)
        self.tokens.buried.append(held)
        self.tokens.movable.append(held)
        self._awaited.discard(left.server)
        self._complete_if_all_answered(now)

    def _first_answer(self, now: int, view: ServerView) -> None:
        """What a fenced server holds is known from its first answer on."""
        life, lives = view.life, view.report.lives
        if life in self._answered:
            return
        former = {(view.name, incarnation) for incarnation in lives}
        counted = not former.isdisjoint(self._answered)
        self._answered |= {life, *former}
        listed = life in self.state.servers and not self._complete
        holds = NOTHING
        alone = self._forget_alone(life)
        present = view.report.period == self.state.period
        if present and (lives or listed or alone is not None):
            holds = self.tokens.hold_seen(view, view.report.part)
        elif alone is not None and view.report.asked_at < self._began_at:
            holds = alone  # asked for the period before, it may still begin this one
        view.acknowledged, view.unacknowledged, view.part = holds, [], holds.part
        if not counted:
            self.tokens.movable.append(holds)
        self._complete_if_all_answered(now)

    def _forget_alone(self, life: Life) -> Held | None:
        """What the life may have begun the period with, unheard until now."""
        alone = self._alone.pop(life, None)
        if alone is not None:
            self.tokens.buried = [held for held in self.tokens.buried if held is not alone]
        return alone

    def _complete_if_all_answered(self, now: int) -> None:
        if not self._complete and self._answered.issuperset(self.state.servers):
            self._complete = True
            if self._sequence == 0:
                self._end_with_the_last(now)

    def _end_with_the_last(self, now: int) -> None:
        """Everyone has answered and nothing was sent: the period ends when their tokens do."""
        gone = [self._departed[life][1] - now for life in self.state.servers if life in self._departed]
        left_ns = max((view.report.time_left_ns for view in self.tokens.views.values()), default=0)
        self._over_by(now + self._guarded(max(left_ns, *gone, 0)))
        self._opens_at = min(self._opens_at, max(now, self._over_at))

    def _list(self, view: ServerView) -> Effects:
        """A life that the state does not list gets tokens only once it does."""
        life = view.life
        if life in self.state.servers or self.state.period == 0 or view.name not in self.names:
            return []
        return self._commit(replace(self.state, servers=tuple(sorted({*self.state.servers, life}))))

    def _acknowledged(self, now: int, ack: Ack) -> Effects:
        view = self.tokens.views.get(ack.server)
        if view is None or view.incarnation != ack.incarnation or ack.period != self.state.period:
            return []
        view.acknowledge(self.tokens.roll, ack.sequence, ack.raised)
        self._standing.acknowledged(view.life, ack.sequence)
        if not self._owed or self._work is not None or now >= self._ends_at:
            return []
        listed = self._listed(now)
        if any(each.unacknowledged for each in listed):
            return []
        self._work = Work(only=frozenset(self._owed))
        return [] if self._is_large else self._go_on(now)

    # -- tokens -----------------------------------------------------------------------------

    def _end_round(self, now: int) -> Effects:
        """All have reported that will: place tokens, and ask again when it seems worth it."""
        if self._adaptive is not None:
            self.interval_ns = self._adaptive.look(self.tokens.roll.key, self._listed(now))
            self._poll_at = max(now + 1, self._polled[-1] + self.interval_ns)
            self._poll_at = max(now + 1, min([self._poll_at, *self._hurries]))
        return self._place_tokens(now)

    def _place_tokens(self, now: int) -> Effects:
        self._place_at = self._work = None
        if now >= self._ends_at:
            return []
        above = () if self.above is None else self.above.find_named()
        self.tokens.note_named(self._listed(now), self.state.period, above)
        picture = self.picture(now)
        found = self._place(picture)
        if isinstance(found, Mapping):
            self.tokens.targets = make_targets(found, picture)
            self._work = Work()
        else:
            self._work = Work(found)
        return [] if self._is_large else self._go_on(now)

    def _go_on(self, now: int) -> Effects:
        """Place and grant, to the end."""
        effects: Effects = []
        while self._work is not None:
            effects += self._work_on(now, self._work)
        return effects

    @property
    def _is_large(self) -> bool:
        """Whether a round at a stretch would keep others waiting: then a tick does a piece of it."""
        return len(self.tokens.views) * len(self.tokens.roll) > self.piece

    def _work_on(self, now: int, work: Work) -> Effects:
        if now >= self._ends_at:
            self._work = None
            return []
        if work.steps is not None:
            found = work.steps.go_on()
            if found is not None:
                self.tokens.targets, work.steps = found, None
            return []
        if work.round is None:
            work.round = self._begin_round(now, work.only)
            return []
        return self._grant_some(now, work, work.round)

    def _grant_some(self, now: int, work: Work, made: Round) -> Effects:
        """The next few servers."""
        count = max(1, self.piece // max(1, len(self.tokens.roll)))
        if made.unseen:
            made.make_drafts(count)
        elif made.headroom is None:
            made.begin_lifting(self._find_headroom(made))
        elif made.unlifted:
            made.lift(count, self.state.period, self._ends_at - now, self.interval_ns)
            self._owed = made.owed
        else:
            return self._send_some(now, work, made, count)
        return []

    def _begin_round(self, now: int, only: frozenset[str] | None) -> Round:
        """What servers are granted by the targets, as far as bounds allow. `only` these, if it is more."""
        limits, _, _ = self._promise()
        views = [view for view in self._listed(now) if only is None or view.name in only]
        self._owed = set()
        return Round(self.tokens.roll, self.tokens.targets, limits, views)

    def _send_some(self, now: int, work: Work, made: Round, count: int) -> Effects:
        """Who is gone meanwhile gets nothing; bounds can only have fallen since."""
        drafts, made.drafts = made.drafts[:count], made.drafts[count:]
        if not made.drafts:
            self._work = None
        short = tuple(islice(self.find_short().items(), SHORT_MAX))
        there = {id(view) for view in self.tokens.views.values() if not view.left}
        present = [draft for draft in drafts if draft.grew or work.only is None]
        return [self._send(now, made, draft, short) for draft in present if id(draft.view) in there]

    def picture(self, now: int) -> Picture:
        """What is known now, for a placement or for people."""
        left_ns = max(0, self._ends_at - now)
        times = (now, left_ns, self._period_ns, self.interval_ns)
        return self.tokens.draw(*times, self._listed(now), self.state.period, self._promise())

    def _promise(self) -> Promised:
        return self.tokens.promise(None if self.above is None else self.above.narrow)

    def _listed(self, now: int) -> list[ServerView]:
        listed = set(self.state.servers)
        alive = [view for view in self._alive() if view.life in listed]
        return sorted(alive, key=lambda view: view.name)

    @property
    def _knows_terms(self) -> bool:
        """Whether the period was opened with the terms that this leader has: by these parts are counted."""
        return self.state.terms == self.digest

    @property
    def _mints(self) -> bool:
        """Whether it makes tokens of the period, and does not only move those that there are."""
        return self._complete and self.state.terms == self.digest

    def _find_headroom(self, made: Round) -> Whole:
        return self.tokens.find_headroom(made, mints=self._mints)

    def _send(self, now: int, made: Round, draft: Draft, short: tuple[tuple[str, int], ...]) -> Send:
        self._sequence += 1
        view, (rows, held) = draft.view, made.finish(draft)
        changing = self._next_terms is not None or self.state.terms != self.digest
        standing = NO_PART if changing else self._standing.find_part(view.life)
        self._standing.sent(view.life, self._sequence, standing)
        view.unacknowledged.append(Sent(self._sequence, held, made.size))
        grant = Grant(
            epoch=self.state.epoch,
            sequence=self._sequence,
            incarnation=view.incarnation,
            period=self.state.period,
            sent_at=view.report.sent_at,
            time_left_ns=self._ends_at - now,
            rows=rows,
            part=view.part,
            terms=self.state.terms,
            over_ns=max(0, self._guarded(self._over_at - now)),
            standing=standing,
            short=short,
        )
        return Send(view.name, grant)
