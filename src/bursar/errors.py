"""Every error bursar raises, in one tree.

    BursarError
    ├── Refused                     decided: the answer is no, and it says why
    ├── Unknown                     could not be learnt in time; says what the policy did instead
    ├── UsageError                  a call with arguments that make no sense (also a ValueError)
    │   └── DeniedError             whoever asks has no right to that
    ├── PolicyError                 a policy file that cannot be used; lists every problem
    ├── FormatError                 bytes that are not what they claim to be (also a ValueError)
    ├── CrashedError                this node has crashed: its ports no longer work
    ├── NetworkError
    │   ├── UnreachableError        nothing was sent: it did not happen
    │   ├── NoAnswerError           sent, no answer in time: it may have happened
    │   └── RemoteError             the peer answered that it failed
    ├── TaskFailedError             a task that is over and has no result; with its traceback
    ├── NotDoneError                a task is not over yet (also a TimeoutError)
    ├── StoppedError                raised in a task's function: nobody wants it any more
    ├── JournalError                the local durable record cannot be read or written
    └── StoreError
        ├── NodeExistsError         create found a node
        ├── NodeMissingError        get, set, delete, check or create below found none
        ├── VersionError            the version given is not the node's
        ├── NotEmptyError           delete found children
        ├── EphemeralParentError    an ephemeral node cannot have children
        ├── TooLargeError           more than the store takes in one operation
        ├── SessionExpiredError     this session is over; nothing more is done in its name
        └── StoreUnknownError       no reply: the operation may or may not have happened

`Refused` and `Unknown` are answers and carry no `Error` in their names; the rest are faults of
the caller, of the world, or of a file. A definite error means that nothing was changed; the two
that leave the outcome open are `NoAnswerError` and `StoreUnknownError`, and say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class BursarError(Exception):
    """The root: `except bursar.BursarError` catches everything bursar raises on purpose."""


class Refused(BursarError):  # an answer, not a fault
    """The answer is no: decided by those who may decide, not guessed.

    why          one sentence for people
    limit        the number that stood in the way, where there is one
    remaining    what was left of it
    retry_after  seconds after which the same call is granted, if nobody else asks; None where no time
                 can be promised
    reason       "limit": there is too little now; "amount": there is never so much; "tenant": the
                 policy does not list the tenant; "unpaid": of what was settled, a part could not be charged
    """

    def __init__(
        self,
        why: str,
        *,
        limit: int | None = None,
        remaining: int | None = None,
        retry_after: float | None = None,
        reason: str = "limit",
    ) -> None:
        super().__init__(why)
        self.why = why
        self.limit = limit
        self.remaining = remaining
        self.retry_after = retry_after
        self.reason = reason


class Unknown(BursarError):  # an answer, not a fault
    """The answer could not be learnt in time. `fallback` says what the policy did instead."""

    def __init__(self, why: str, *, fallback: str = "refuse") -> None:
        super().__init__(why)
        self.why = why
        self.fallback = fallback


class UsageError(BursarError, ValueError):
    """A call whose arguments make no sense, with what to pass instead."""


class DeniedError(UsageError):
    """Whoever asks has no right to that; says which right it takes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a policy file: where, what, and what to write instead."""

    path: str
    what: str
    remedy: str
    line: int | None = None


class PolicyError(BursarError):
    """A policy that cannot be used. `problems` lists all that is wrong, not only the first."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(self._text())

    def _text(self) -> str:
        count = len(self.problems)
        head = f"{self.source}: {count} problem{'' if count == 1 else 's'}"
        lines = []
        for problem in self.problems:
            at = f"line {problem.line}, " if problem.line is not None else ""
            lines.append(f"  {at}{problem.path}: {problem.what}\n      {problem.remedy}")
        return "\n".join([head, *lines])


class FormatError(BursarError, ValueError):
    """Bytes from a file, a socket or shared memory that are not what they claim to be."""


class CrashedError(BursarError):
    """This node has crashed; whatever still runs in its name is stopped here."""


class NetworkError(BursarError):
    """A call to a peer that brought no answer."""


class UnreachableError(NetworkError):
    """Nothing reached the peer: the call did not happen."""


class NoAnswerError(NetworkError):
    """The call was sent and no answer came in time: it may have happened."""


class RemoteError(NetworkError):
    """The peer answered that it failed; what it said is the message."""


class TaskFailedError(BursarError):
    """A task ended without a result.

    id         of the task
    outcome    "failed", "dead" (given up after all its retries), "cancelled", "expired" or "deposed"
    traceback  what was raised where it ran, as text; its last line says what it was
    """

    def __init__(self, id: str, outcome: str, traceback: str = "") -> None:
        self.id = id
        self.outcome = outcome
        self.traceback = traceback
        lines = traceback.strip().splitlines()
        super().__init__(f"{id} is {outcome}" + (f": {lines[-1]}" if lines else ""))
        if len(lines) > 1:
            self.add_note(f"where it ran:\n{traceback.rstrip()}")


class NotDoneError(BursarError, TimeoutError):
    """The wait for the end of a task is over, and the task is not."""


class StoppedError(BursarError):
    """For the function of a task: it was cancelled, took too long, or lost its names. Let it through."""


class JournalError(BursarError):
    """The local durable record cannot be read or written."""


class StoreError(BursarError):
    """A coordination store that did not do what was asked. `position` is the index of the
    operation that failed, where the error came from one."""

    position: int | None = None


class NodeExistsError(StoreError):
    """Create found a node where there should be none."""


class NodeMissingError(StoreError):
    """There is no such node (or no such parent)."""


class VersionError(StoreError):
    """The version given is not the node's present version."""


class NotEmptyError(StoreError):
    """A node with children cannot be deleted."""


class EphemeralParentError(StoreError):
    """An ephemeral node cannot have children."""


class TooLargeError(StoreError):
    """More than the store takes in one operation. Nothing was sent."""


class SessionExpiredError(StoreError):
    """This session is over: its ephemeral nodes are gone, nothing more is done in its name."""


class StoreUnknownError(StoreError):
    """No reply: the operation may or may not have happened. Read back before trying again."""
