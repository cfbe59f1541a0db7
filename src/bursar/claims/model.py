"""A task, and the table of its states.

    PENDING ----granted----> RUNNING ----finished----> DONE ----released----> RELEASED
       |                      |    \\                    ^
       |                      |     `----deposed-------> | (its holder died and it is failed)
       |                      |--------requeued--> PENDING (its holder died and it is tried again)
       |                      `--------failed----> PENDING (it failed and is tried again, after a while)
       `---------withdrawn (cancelled, too late)-------->'

What each state means, in the store (section 4.4.1; where it differs, why):

PENDING     waits for its names; owns none of them.
RUNNING     owns all of them; the record carries their fences. It may ask for more, and grow.
            Granting is one transaction, so the thesis's "PENDING with resources" (case 2 and 3 of
            section 4.4.3) cannot be found.
DONE        has an outcome, recorded once; may still own its names.
RELEASED    owns nothing; the record stays for a while, to answer who asks and to make submitting
            it again harmless. (The thesis says both that the record is gone in this state and,
            in table 4.1, that it is still to be removed.)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Literal

import msgspec

from bursar.claims.requirements import Mode, Requirement, Requirements
from bursar.decoding import DECODE_ERRORS
from bursar.errors import FormatError, UsageError
from bursar.world import SECOND_NS

PAYLOAD_MAX_BYTES = 256 * 1024
RESULT_MAX_BYTES = 64 * 1024
FAILURE_MAX = 4_000
"""Characters of a failure that are kept: its beginning and, more of it, its end."""

FUNCTION_MAX = 200
RETRIES_MAX = 1_000
BACKOFF_MAX_NS = 3600 * SECOND_NS
"""However often a task has failed: the pause before it is tried again is never longer."""

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000
NEEDS_KEPT = 2048
"""Sets of requirements that are remembered as read: each is asked for several times in its life."""


class State(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    RELEASED = "released"


TRANSITIONS: Mapping[tuple[State, str], State] = {
    (State.PENDING, "granted"): State.RUNNING,
    (State.PENDING, "withdrawn"): State.DONE,
    (State.RUNNING, "grown"): State.RUNNING,
    (State.RUNNING, "finished"): State.DONE,
    (State.RUNNING, "deposed"): State.DONE,
    (State.RUNNING, "requeued"): State.PENDING,
    (State.RUNNING, "failed"): State.PENDING,
    (State.DONE, "released"): State.RELEASED,
}
"""(state, what happened) -> state. One transaction may make several steps at once (finished and
released), and every transaction that makes one checks the version of the record."""

Outcome = Literal["ok", "failed", "cancelled", "expired", "deposed", "dead"]
"""dead: it failed, or whoever did it died, as often as it may be tried. It stays in the list of the dead
until it is tried again by hand, or discarded."""


def check_priority(priority: object) -> int:
    if not isinstance(priority, int) or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise UsageError(f"priority is a number from {PRIORITY_MIN} to {PRIORITY_MAX}, not {priority!r}")
    return priority


def step(state: State, event: str) -> State:
    """The state after the event; asserts that the table has it."""
    assert (state, event) in TRANSITIONS, f"a {state} task cannot be {event}"
    return TRANSITIONS[state, event]


class Task(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A task as the store keeps it.

    id          its name in the store; made from the key, where one was given
    tenant      who asked
    needs       names and modes, sorted
    payload     what to do, for whoever does it; empty for a claim
    priority    higher is granted first
    submitted   wall clock of who took it in, in nanoseconds: the release time of the thesis
    deadline    wall clock past which it is no longer wanted, 0 for none
    is_claim    held by the code that asked, in the process that asked (no tracker knows of it)
    attempt     how often it was granted
    holder      the instance (and its incarnation) that dispatched it or holds it
    phases      RUNNING: the phase of each name, in the order of `needs`
    kept        whether the record is kept for a while after it is over
    ended       wall clock of its end
    key         of a claim that has one: nobody else has it while the record is there
    counts      counted names, sorted, and how many of each: all of them while it is RUNNING or DONE
    asks        RUNNING: names that it waits for besides
    grown       names and modes of `needs` that it was given since, and
    grown_counts  counted names: it had none of them when it began, and has not when it is tried again
    parent      of a subtask: the task that it is a part of. It needs `scoped` names instead of its parent's
    inherited   names and modes of its parent's that it uses
    inherited_phases  RUNNING: the phase of each of these
    function    what is called, for people and for what is learned of it; empty for a claim, and where the
                payload is no call
    begun       RUNNING: wall clock of whoever granted it
    content     of a task with a key: a digest of what is to be done, to tell other work under the same key
    retries     how many more times it is tried after it failed
    backoff     nanoseconds before the first of these; each next pause is twice as long
    failures    how often it failed
    failure     how the last try failed
    not_before  wall clock before which it is not to be begun
    """

    id: str
    tenant: str
    needs: tuple[tuple[str, str], ...]
    payload: bytes = b""
    priority: int = 0
    submitted: int = 0
    deadline: int = 0
    is_claim: bool = False
    state: State = State.PENDING
    attempt: int = 0
    holder: str = ""
    phases: tuple[int, ...] = ()
    outcome: Outcome | None = None
    result: bytes = b""
    kept: bool = False
    ended: int = 0
    key: str = ""
    counts: tuple[tuple[str, int], ...] = ()
    asks: tuple[tuple[str, str], ...] = ()
    grown: tuple[tuple[str, str], ...] = ()
    grown_counts: tuple[tuple[str, int], ...] = ()
    parent: str = ""
    inherited: tuple[tuple[str, str], ...] = ()
    inherited_phases: tuple[int, ...] = ()
    function: str = ""
    begun: int = 0
    content: str = ""
    retries: int = 0
    backoff: int = 0
    failures: int = 0
    failure: str = ""
    not_before: int = 0

    @property
    def requirements(self) -> Requirements:
        return _read_needs(self.needs)

    @property
    def wanted(self) -> list[str]:
        """All that it needs, as one writes it."""
        names = [f"{name}:{mode}" for name, mode in self.inherited or self.needs]
        return names + [f"{name}:{units}" for name, units in self.counts]

    @property
    def names(self) -> list[str]:
        """Those that it takes, and those of its parent's that it uses."""
        return [*(name for name, _ in self.needs), *(name for name, _ in self.inherited)]

    @property
    def has_units(self) -> bool:
        """Whether the counted names are with it, and not only wanted."""
        return self.state in (State.RUNNING, State.DONE)

    @property
    def original(self) -> Task:
        """The same, with what was asked for when it was submitted."""
        if not (self.grown or self.grown_counts or self.asks):
            return self
        left = dict(self.counts)
        for name, units in self.grown_counts:
            left[name] -= units
        return msgspec.structs.replace(
            self,
            needs=tuple(pair for pair in self.needs if pair not in self.grown),
            counts=tuple((name, units) for name, units in left.items() if units),
            asks=(),
            grown=(),
            grown_counts=(),
        )

    def is_same_grant(self, other: Task) -> bool:
        """Whether both are records of one grant, which may have grown meanwhile."""
        return (self.id, self.attempt, self.holder) == (other.id, other.attempt, other.holder)

    @property
    def idempotency_key(self) -> str:
        """The same for every dispatch of this task: whoever does the work twice can tell."""
        return self.id

    @property
    def is_tried_again(self) -> bool:
        """Whether it has a retry left, now that it failed. (One that was given up, and is tried again by
        hand, has all of them anew.)"""
        return (self.failures + 1) % (self.retries + 1) != 0

    @property
    def pause_ns(self) -> int:
        """Before the next try, now that it failed."""
        return min(self.backoff << min(self.failures % (self.retries + 1), 40), BACKOFF_MAX_NS)


def cut(text: str, most: int = FAILURE_MAX) -> str:
    """A text of at most so many characters: its beginning and, more of it, its end, where a traceback says
    what was raised."""
    if len(text) <= most:
        return text
    head, gap = most // 4, "\n  ...\n"
    return text[:head] + gap + text[len(text) - (most - head - len(gap)) :]


@lru_cache(NEEDS_KEPT)
def _read_needs(needs: tuple[tuple[str, str], ...]) -> Requirements:
    return tuple(Requirement(name, Mode(mode)) for name, mode in needs)


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """What the store keeps of a name: its phase, who owns it exclusively, whether it is in a shared
    phase (its sharers are nodes below it), and for whom it is reserved (task, its age order, mode)."""

    phase: int = 0
    owner: str = ""
    shared: bool = False
    reserved: str = ""
    reserved_since: int = 0
    reserved_mode: str = ""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What the mark of a task says: the instance that looks after it, and how far the attempt is
    that runs there."""

    instance: str
    attempt: int = 0
    note: str = ""


class Era(msgspec.Struct, frozen=True, array_like=True):
    """What the node of the resource holds: the epoch of its fences, and the store that it belongs to."""

    epoch: int
    store: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_task = msgspec.msgpack.Decoder(Task).decode
_decode_holding = msgspec.msgpack.Decoder(Holding).decode
_decode_mark = msgspec.msgpack.Decoder(Mark).decode
_decode_era = msgspec.msgpack.Decoder(Era).decode


def encode(record: Task | Holding | Mark | Era) -> bytes:
    return _encode(record)


def decode_task(path: str, data: bytes) -> Task:
    """Raises FormatError that names the node."""
    try:
        task = _decode_task(data)
        assert not task.phases or len(task.phases) == len(task.needs), "a phase for each name"
        _ = task.requirements
    except (*DECODE_ERRORS, AssertionError) as error:
        raise FormatError(f"{path} holds no task that this version reads: {error}") from error
    return task


def decode_holding(path: str, data: bytes) -> Holding:
    """Raises FormatError that names the node. Empty data is a name nobody has used yet."""
    if not data:
        return Holding()
    try:
        return _decode_holding(data)
    except DECODE_ERRORS as error:
        raise FormatError(f"{path} holds nothing that this version reads as a claim: {error}") from error


def decode_mark(path: str, data: bytes) -> Mark:
    """Raises FormatError that names the node."""
    try:
        return _decode_mark(data)
    except DECODE_ERRORS as error:
        raise FormatError(f"{path} holds no mark that this version reads: {error}") from error


def decode_era(path: str, data: bytes) -> Era:
    """Raises FormatError that names the node."""
    try:
        return _decode_era(data)
    except DECODE_ERRORS as error:
        raise FormatError(f"{path} holds no epoch: {data[:40]!r}; another program's data?") from error
