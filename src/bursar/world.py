"""World and its ports: all that a protocol may see of the world.

A protocol of bursar (the *courier* of a kind) is handed a `World` and reaches nothing else: no
clock, socket, file or random number of its own. The simulator hands it a World made of virtual
time and seeded faults, the runtime one made of real clocks, sockets and files. The protocol is
the same code in both, so what the simulator finds is what production would have done.

Each port below says exactly what holds when something fails; a protocol may rely on that and on
nothing more. Time is an integer count of nanoseconds throughout. Any port of a crashed node
raises `CrashedError`, so that nothing is done in the name of a node that is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

WORD_MAX = 2**64 - 1
NAME_MAX_BYTES = 255
MESSAGE_MAX_BYTES = 4 * 1024 * 1024
"""The largest message between nodes, encoded. A larger one is refused before it is sent."""

MessageT = TypeVar("MessageT", bound="Message")


class Message(msgspec.Struct, frozen=True, tag=True):
    """The base of everything that crosses the network. A kind's messages form a tagged union:
    `Requests = Ask | Return`. Messages are values: encoded on sending, decoded on receipt, in
    the simulator too, so no two nodes ever share an object."""


class Clock(Protocol):
    """Time as this node sees it. Two nodes' clocks agree on nothing but their speed, and on
    that only within the drift bound of the policy."""

    def now(self) -> int:
        """Nanoseconds since some moment of this node's own; never goes back while the node
        lives. A suspended machine's pause counts (boot time)."""

    def origin(self) -> str:
        """Names the moment that `now` counts from. What two lives of a node read compares only if
        this is the same, and not empty: a process that was started again goes on with the clock of
        its machine, a machine that was started again begins anew."""

    def wall(self) -> int:
        """Nanoseconds since 1970 in UTC, as the machine believes. It may jump. For calendar
        windows and for people; no safety may rest on it."""

    async def sleep(self, duration_ns: int) -> None:
        """Return once at least `duration_ns` have passed (at once for zero or less)."""


Handler = Callable[[str, Any], Awaitable[Message | None]]
"""Serves one request: (name of the sender, decoded message) -> the reply, or None for none."""


class Network(Protocol):
    """Messages between named nodes.

    A topic names a conversation ("lease/demo"), so that many resources share one connection.
    Nothing is promised of order: messages may be lost, delayed, reordered and, for `send` and
    for a call whose reply was lost, handled twice. What is promised: a message that arrives is
    one that was sent, whole, and `sender` is who sent it.
    """

    def serve(self, topic: str, requests: Any, handler: Handler, *, anyone: bool = False) -> None:
        """Answer `topic` with `handler`; `requests` is the message type or union it accepts.
        Anything else is answered with an error and never reaches the handler, and neither does what
        comes from somebody who is not a member of the fleet, unless the topic is for `anyone`.
        Handlers of one topic run concurrently. Serving a topic again replaces its handler."""

    async def call(
        self, peer: str, topic: str, message: Message, reply: type[MessageT] | Any, timeout_ns: int
    ) -> Any:
        """Send and wait for the reply, of type `reply`.

        Raises UnreachableError: nothing was sent, it did not happen.
        Raises NoAnswerError: it may have happened, now or later.
        Raises RemoteError: the peer's handler failed, or answered with another type."""

    def send(self, peer: str, topic: str, message: Message) -> None:
        """Send and forget: no word whether it arrived. Never blocks; dropped when the peer's
        queue is full."""

    def peers(self) -> Sequence[str]:
        """The other nodes that this one was told of, whether they can be reached or not."""

    def observe(self, observer: Callable[[str, bool], None]) -> None:
        """Call `observer(peer, True)` when a peer's first connection is ready, and with False when its last
        one is gone. A hint, no more: a peer that is well may lose its connection, and one that is not may
        keep it for long."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What the store knows of a node besides its data.

    version     0 when created, one more with each set
    created     the revision that created it
    modified    the revision that last set its data
    owner       the session that keeps an ephemeral node alive; 0 for a persistent one
    children    how many children it has
    """

    version: int
    created: int
    modified: int
    owner: int
    children: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. `sequential` appends a ten-digit counter of the parent to the name;
    `ephemeral` ties it to this session. The parent must exist and be persistent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data; with a version, only if it is the node's present one."""

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node that has no children; with a version, only if it is the present one."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Nothing, but the transaction fails unless the node exists (with that version)."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CheckAbsent:
    """Nothing, but the transaction fails if the node exists. Its parent must exist."""

    path: str


Operation = Create | Set | Delete | Check | CheckAbsent

TRANSACTION_MAX_BYTES = 900_000
"""The most one transaction may carry, paths and data together (ZooKeeper's own bound is about
1 MiB). Checked before anything is sent, by every store alike."""

OPERATIONS_MAX = 16_384
"""The most operations in one transaction, where the engine itself has no closer bound: of the smallest
ones, about what fits `TRANSACTION_MAX_BYTES`."""

DATA_MAX_BYTES = 512 * 1024
CHILDREN_MAX = 10_000
"""Protocols keep fewer children than this below one node (one listing must fit a reply)."""


class Watch(Protocol):
    """Tells that a node changed: its data, its existence, or the list of its children.

    Promised: for each change made after `watch()` returned, some `changed()` that had not
    returned before the change returns after it. Not promised: how many changes, which, how
    soon, or that there was one at all (it may return without a change). Read again after it
    returns. After the session expired, `changed()` raises SessionExpiredError."""

    async def changed(self) -> None: ...

    def close(self) -> None:
        """Stop watching; a waiting `changed()` returns."""


class Store(Protocol):
    """The coordination store: a small tree of nodes that several nodes of bursar agree on.

    Paths look like "/rates/cache/leader". Every successful change, single or transaction, gets
    one revision, larger than all before it, for ever. Changes are linearizable; reads see the
    latest change that this session made or was told of, and everything after `sync()`.

    A store object is one session at a time. The session ends when the store has not heard from
    it for its timeout; its ephemeral nodes go with it, and from then on every call raises
    SessionExpiredError until `renew()` opens a new one.

    Every definite error means that nothing changed. StoreUnknownError means that the change may
    or may not have happened: read back (put a unique id in the data) before trying again.
    """

    @property
    def session(self) -> int:
        """This session's id: never 0, never used again by this store."""

    @property
    def operations_max(self) -> int:
        """How many operations a transaction may have, whichever they are. Engines differ (etcd's
        default leaves 60), and never split a transaction: who has more to change changes it in parts
        that hold for themselves, or says that it is too much."""

    def trusted_until(self) -> int:
        """Local clock time until which the session cannot have expired, however slow the last
        answer was: two thirds of the timeout after the last answered heartbeat was *sent*.
        An owner that acts later than this may no longer be the owner."""

    async def renew(self) -> int:
        """Give up the old session, with its ephemeral nodes, and open a new one. Returns its id."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create and return the path, with its counter if sequential. Raises NodeExistsError,
        NodeMissingError (no parent), EphemeralParentError."""

    async def ensure(self, path: str) -> None:
        """Create the persistent node and its ancestors where they are missing."""

    async def get(self, path: str) -> tuple[bytes, Stat]:
        """Data and stat. Raises NodeMissingError."""

    async def exists(self, path: str) -> Stat | None: ...

    async def children(self, path: str) -> list[str]:
        """Names (not paths) of the children, sorted. Raises NodeMissingError."""

    async def set(self, path: str, data: bytes, version: int | None = None) -> Stat:
        """Raises NodeMissingError, VersionError."""

    async def delete(self, path: str, version: int | None = None) -> None:
        """Raises NodeMissingError, VersionError, NotEmptyError."""

    async def transact(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """All or nothing, in order, at one revision. A result for each operation: the path for
        Create, the stat for Set, None for the others. Raises the error of the first operation
        that fails, whose position is its `position` attribute; then nothing changed."""

    async def watch(self, path: str) -> Watch:
        """Watch a node, which need not exist."""

    async def sync(self) -> int:
        """Afterwards reads see every change that had finished before the call. Returns the
        store's revision."""

    async def close(self) -> None:
        """End the session now (ephemeral nodes go) and let go of the connection."""


class Journal(Protocol):
    """What one node remembers across its own crash: an append-only file of records.

    A crash keeps every record that was synced, and any prefix of those after, never one with a
    gap and never half a record."""

    def append(self, record: bytes) -> None:
        """Add a record. It survives a crash for sure only after a `sync` that began later."""

    async def sync(self) -> None:
        """Return when every record appended before the call is durable. Calls at the same time
        share one write (group commit). Raises JournalError: nothing is known to be durable, and
        every later append and sync fails too."""

    def replay(self) -> Iterable[bytes]:
        """The records that survived, oldest first. To be read once, before the first append."""

    async def rewrite(self, records: Sequence[bytes]) -> None:
        """Replace everything by these records, durably and all at once (a crash keeps either the
        old journal or the new one)."""


class Words(Protocol):
    """Named unsigned 64-bit words that several processes share. Each operation is atomic and
    takes effect in one order for all; a word that was never written is 0. Arithmetic wraps.
    None of the operations sees, wakes or needs a process at the other side."""

    def read(self, name: str) -> int: ...

    def write(self, name: str, value: int) -> None: ...

    def fetch_add(self, name: str, amount: int) -> int:
        """Add and return the value *before*."""

    def compare_and_swap(self, name: str, expected: int, value: int) -> int:
        """Write if the word is `expected`; return the value before, whether written or not."""

    async def wait(self, name: str, value: int, timeout_ns: int) -> int:
        """Return the word once it differs from `value`, or as it is after the timeout."""


class Read(NamedTuple):
    """Read a word."""

    word: str


class Write(NamedTuple):
    """Write a word, whatever it was."""

    word: str
    value: int


class Add(NamedTuple):
    """Add to a word, and learn what it was before."""

    word: str
    amount: int


class Swap(NamedTuple):
    """Write a word if it is what it was thought to be, and learn what it was."""

    word: str
    expected: int
    value: int


WordOperation = Read | Write | Add | Swap
"""One atomic operation on one word. What the word was before comes back (0 for a write)."""


class FarWords(Protocol):
    """Words that are a round trip away: many operations go in one, and nobody stands still for it."""

    async def perform(self, groups: Sequence[Sequence[WordOperation]]) -> list[list[int]]:
        """Do the operations of each group in turn, all at once for everybody else, up to its first swap
        that failed; what comes back of each that was done. Raises NetworkError: they may have been done."""

    async def close(self) -> None: ...


class Random(Protocol):
    """Seeded chance: the same seed gives the same protocol decisions (jitter, sampling)."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int) -> int: ...

    def choice(self, items: Sequence[Any]) -> Any: ...

    def shuffle(self, items: list[Any]) -> None: ...


class Task(Protocol):
    """Work that was spawned."""

    def cancel(self) -> Any: ...

    def done(self) -> bool: ...


class Spawn(Protocol):
    """Start work beside the caller. Tasks begin in the order in which they were spawned. A task
    that ends with an error other than cancellation is reported and takes the node down: a
    protocol that lost one of its parts must not go on as if it had not."""

    def __call__(self, work: Coroutine[Any, Any, Any], name: str) -> Task: ...


class Trace(Protocol):
    """One line of history: `trace("lease.granted", tenant="a", until=5)`. In the simulator the
    lines are the history that two runs of a seed must share; live they are debug logs. Values
    are ints, strings, bools or None, so that they print the same everywhere."""

    def __call__(self, event: str, /, **fields: int | str | bool | None) -> None: ...


class StoreName(NamedTuple):
    """Which store a fleet keeps its word in. `epoch` rises when a rebuilt or restored one is adopted, at wall
    time `since_ns`: what the store says of things that are older than that is not all there was."""

    uuid: str = ""
    epoch: int = 1
    since_ns: int = 0


class Fleet(Protocol):
    """What this node knows of the fleet that it belongs to: the policy in force, and who else is there."""

    def store_name(self) -> StoreName:
        """The store that this node was opened with; without a uuid where nobody keeps one."""

    def guards(self) -> Sequence[Check]:
        """Belong to every transaction that opens a period or mints units. Where the store holds newer
        terms than this node runs, they fail with VersionError: then it is not for this node to do so."""

    def nodes(self) -> Mapping[str, str]:
        """The nodes that are up, this one among them: names, and where each listens ("" for nowhere)."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed()` after every change of `nodes()`. It must not block."""


class Alone:
    """A node that belongs to no fleet."""

    def store_name(self) -> StoreName:
        return StoreName()

    def guards(self) -> Sequence[Check]:
        return ()

    def nodes(self) -> Mapping[str, str]:
        return {}

    def follow(self, changed: Callable[[], None]) -> None:
        """Nobody ever comes or goes."""


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class World:
    """The ports of one node. `incarnation` is larger in each life of the node of that name, so
    that its peers can tell a restarted node from the one they knew."""

    name: str
    incarnation: int
    clock: Clock
    network: Network
    store: Store
    journal: Callable[[str], Journal]
    words: Words
    random: Random
    spawn: Spawn
    trace: Trace
    fleet: Fleet = field(default=ALONE, kw_only=True)
    far_words: FarWords | None = field(default=None, kw_only=True)
    """In place of `words`, where a resource has its words on another host."""
