"""A transaction of the contract as one of etcd's: what must still be so, what is written, what it says.

Keys, below the store's prefix:

    /n PARENT 0 NAME 0      a persistent node          (0 and 1: the bytes, which no path contains)
    /n PARENT 0 NAME 1      an ephemeral one, with its session's lease: etcd removes it with the session
    /q PATH                 the counter of a node's sequential children
    /s/ID                   a session, with its lease; its password

so that the children of a node are one range, a node is absent if its range of two is empty, and a parent
that must exist and be persistent is one key. The value is a header and the data. etcd counts a key's
versions and remembers the revision that created it; the header says where the node differs from that: by
how much its version is higher (of a node set twice, or created and set, in one transaction), and which
revision created it if it was deleted and created in one.

What operations do is `draft`'s, told here of a tree that is *believed*: what was read, or written, or told
of when something failed. The transaction compares all that it rests on; where it fails, etcd tells in the
same answer how things are, and the next try rests on that. A belief never makes an error: that is told of
what was just read, all of it at one revision.

etcd takes a bounded number of compares and operations (128 unless told otherwise), operations in groups
many more: at most two compares an operation are made here, and one for the session. The children of a
parent are not counted anywhere, so that those who create below one parent do not disturb each other; the
answer counts them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bursar.decoding import is_number
from bursar.errors import FormatError
from bursar.stores import etcd_wire as wire
from bursar.stores.bounds import name_of, parent_of
from bursar.stores.draft import Draft, Node, Result
from bursar.world import Check, CheckAbsent, Create, Delete, Operation, Set, Stat

NOW = -1
"""The revision of a transaction that has none yet."""

_header = struct.Struct(">qQB")
THIS = 2**64 - 1
"""In a header: created by the very revision that wrote it."""

COMPARES_BESIDES = 1
EMPTY = _header.pack(0, 0, 0)
"""The value of a node without data."""

GROUP_MIN = 7
"""Operations that a group may have at least."""


def bound_operations(limit: int) -> int:
    """How many operations of the contract fit, whatever they are, where etcd takes `limit`."""
    return (limit - GROUP_MIN - COMPARES_BESIDES) // 2


class Keys:
    """Where things are kept below a prefix."""

    def __init__(self, prefix: str) -> None:
        self._nodes = prefix.encode() + b"/n"
        self._counters = prefix.encode() + b"/q"
        self._sessions = prefix.encode() + b"/s/"

    def node(self, path: str, ephemeral: bool) -> bytes:
        return self.base(path) + (b"\x01" if ephemeral else b"\x00")

    def base(self, path: str) -> bytes:
        above, name = ("", "") if path == "/" else (parent_of(path), name_of(path))
        return self._nodes + above.encode() + b"\x00" + name.encode()

    def both(self, path: str) -> tuple[bytes, bytes]:
        """The range of the node, whichever it is."""
        base = self.base(path)
        return base + b"\x00", base + b"\x02"

    def children(self, path: str) -> tuple[bytes, bytes]:
        below = self._nodes + path.encode()
        return below + b"\x00", below + b"\x01"

    def name(self, key: bytes) -> str:
        """Of a child, from its key. Raises FormatError."""
        try:
            return key[key.index(b"\x00", len(self._nodes)) + 1 : -1].decode()
        except ValueError as error:
            raise FormatError(f"the key {key[:100]!r} in etcd is no node of bursar's: {error}") from error

    def counter(self, path: str) -> bytes:
        return self._counters + path.encode()

    def session(self, session: int) -> bytes:
        return self._sessions + b"%016x" % session


def above(path: str) -> str:
    """The node that must be there for this one to be."""
    return "/" if path == "/" else parent_of(path)


class Known(NamedTuple):
    """What is believed of a node. `native`: how often etcd says it was written."""

    stat: Stat
    header: bytes
    native: int

    @property
    def ephemeral(self) -> bool:
        return self.stat.owner != 0


class Counter(NamedTuple):
    """The next number for a sequential child, and the revision that wrote it; 0 for none."""

    number: int
    modified: int


ABSENT = None


def read_node(kv: Any, children: int = 0) -> tuple[Known, bytes]:
    """Raises FormatError."""
    if len(kv.value) < _header.size:
        raise FormatError(f"the key {kv.key[:100]!r} in etcd holds no node of bursar's: another program's?")
    more, created, _ = _header.unpack_from(kv.value)
    created = kv.mod_revision if created == THIS else created or kv.create_revision
    stat = Stat(kv.version - 1 + more, created, kv.mod_revision, kv.lease, children)
    return Known(stat, kv.value[: _header.size], kv.version), kv.value[_header.size :]


def read_counter(kvs: Sequence[Any]) -> Counter:
    """Raises FormatError."""
    if not kvs:
        return Counter(0, 0)
    value = kvs[0].value
    if not is_number(value):
        raise FormatError(
            f"the key {kvs[0].key[:100]!r} in etcd holds no counter of bursar's: {value[:40]!r}"
        )
    return Counter(int(value), kvs[0].mod_revision)


class Unread(LookupError):
    """Nothing is believed of this path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Beliefs:
    """The tree as far as it is known: implements `draft.Shelf`. `at`: the revision at which all of it was so,
    if it was read for this transaction; else 0. Of what nothing is known, that is taken to be absent whose
    path begins with one that is `hoped` to be; `counting` are the nodes whose counters are needed."""

    def __init__(
        self,
        nodes: dict[str, Known | None],
        counters: dict[str, Counter],
        hoped: Iterable[str] = (),
        counting: Iterable[str] = (),
        at: int = 0,
    ) -> None:
        self.nodes = nodes
        self.counters = counters
        self.hoped = tuple(hoped)
        self.counting = frozenset(counting)
        self.at = at
        self.seen: dict[str, Known | None] = {}

    def read(self, path: str) -> Node | None:
        if path not in self.nodes and not path.startswith(self.hoped):
            raise Unread(path)
        if path in self.counting and path not in self.counters:
            raise Unread(path)
        known = self.seen[path] = self.nodes.get(path)
        if known is None:
            return None
        counter = self.counters.get(path, Counter(0, 0)).number
        return Node(b"", *_fields(known.stat), counter)


def _fields(stat: Stat) -> tuple[int, int, int, int, int]:
    return stat.version, stat.created, stat.modified, stat.owner, stat.children


@dataclass(slots=True)
class Plan:
    """One try: it rests on what was `seen`. `puts` and `counts` say which of the writes writes a node, and
    which counts its children; `counters` are the nodes whose counters grow."""

    results: list[Result]
    draft: Draft
    seen: dict[str, Known | None]
    compares: list[Any] = field(default_factory=list)
    writes: list[Any] = field(default_factory=list)
    puts: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    counters: list[str] = field(default_factory=list)


class Planner:
    """Makes the plans of one store."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def plan(self, operations: Sequence[Operation], beliefs: Beliefs, session: int) -> Plan:
        """Raises the error of the first operation that fails, or Unread."""
        draft = Draft(beliefs, session, NOW)
        plan = Plan(draft.apply(operations), draft, beliefs.seen)
        exists = _compare(wire.CREATE, wire.GREATER, self.keys.session(session))
        plan.compares.append(exists)
        by_path: dict[str, list[Operation]] = {}
        for operation in operations:
            by_path.setdefault(operation.path, []).append(operation)
        parents = {above(op.path) for op in operations if isinstance(op, Create | CheckAbsent)}
        for path, known in beliefs.seen.items():
            if path not in by_path and path not in parents and known is not None:
                continue  # a child of it is deleted, which says that it is there
            self._guard(plan, path, known, by_path.get(path, ()), beliefs)
            self._guard_children(plan, path, known, beliefs)
        for path, node in draft.changes.items():
            self._write(plan, path, beliefs.seen[path], node)
            self._count(plan, path, beliefs, node)
        for path in {op.path for op in operations if isinstance(op, Set)}:
            if draft.changes[path] is not None:
                plan.counts[path] = len(plan.writes)
                start, end = self.keys.children(path)
                plan.writes.append(read_range(start, end, count_only=True))
        return plan

    def _guard(
        self, plan: Plan, path: str, known: Known | None, operations: Sequence[Operation], beliefs: Beliefs
    ) -> None:
        """What must be so of a node for the plan to be right."""
        if known is None:
            start, end = self.keys.both(path)
            plan.compares.append(_compare(wire.CREATE, wire.EQUAL, start, range_end=end))
            return
        key = self.keys.node(path, known.ephemeral)
        if _is_blind(operations, known):
            plan.compares += _compare_header(key, known.header)
        elif all(isinstance(op, Check | Delete) and op.version is None for op in operations):
            if not _is_counting(plan.draft, path, beliefs):  # a counter goes with its node
                plan.compares.append(_compare(wire.CREATE, wire.GREATER, key))
        else:
            plan.compares.append(_compare(wire.MOD, wire.EQUAL, key, mod_revision=known.stat.modified))

    def _guard_children(self, plan: Plan, path: str, known: Known | None, beliefs: Beliefs) -> None:
        """Who deletes a node knows all its children, of which each is guarded itself."""
        if known is None or known.ephemeral or not _is_deleted(plan.draft, path):
            return
        start, end = self.keys.children(path)
        if known.stat.children:
            newer = _compare(wire.MOD, wire.LESS, start, range_end=end, mod_revision=beliefs.at + 1)
            plan.compares.append(newer)
        else:
            plan.compares.append(_compare(wire.CREATE, wire.EQUAL, start, range_end=end))

    def _write(self, plan: Plan, path: str, known: Known | None, node: Node | None) -> None:
        if node is None:
            if known is not None:
                self._remove(plan, path, known)
            return
        if known is not None and node.modified != NOW:
            return  # only its children, or their counter
        ephemeral = node.owner != 0
        under = known if known is not None and known.ephemeral == ephemeral else None
        if known is not None and under is None:
            self._remove(plan, path, known)
        native = 1 if under is None else under.native + 1
        header = _header.pack(node.version - native + 1, _tell_created(node, under), 0)
        plan.puts[path] = len(plan.writes)
        put = wire.PutRequest(
            key=self.keys.node(path, ephemeral),
            value=header + node.data,
            lease=node.owner,
            prev_kv=under is not None,
        )
        plan.writes.append(wire.RequestOp(request_put=put))

    def _remove(self, plan: Plan, path: str, known: Known) -> None:
        plan.writes.append(_delete(self.keys.node(path, known.ephemeral)))
        if not known.ephemeral:
            plan.writes.append(_delete(self.keys.counter(path)))

    def _count(self, plan: Plan, path: str, beliefs: Beliefs, node: Node | None) -> None:
        """Write the counter of a node's sequential children, if it grew."""
        counter = beliefs.counters.get(path, Counter(0, 0))
        if node is None or node.counter == 0 or (node.counter == counter.number and node.created != NOW):
            return
        key = self.keys.counter(path)
        plan.counters.append(path)
        plan.compares.append(_compare(wire.MOD, wire.EQUAL, key, mod_revision=counter.modified))
        put = wire.RequestOp(request_put=wire.PutRequest(key=key, value=b"%d" % node.counter))
        plan.writes = [write for write in plan.writes if write.request_delete_range.key != key]
        plan.writes.append(put)

    def probe(self, path: str) -> list[Any]:
        """What tells all of a node: itself, its children's number, its counter."""
        count = read_range(*self.keys.children(path), count_only=True)
        return [read_range(*self.keys.both(path)), count, read_range(self.keys.counter(path))]

    def confirm(self, plan: Plan, revision: int, answers: Sequence[Any]) -> list[Result]:
        """The results, with what only the answer tells."""
        draft = plan.draft
        shifts: dict[str, tuple[int, int]] = {}
        for path, at in plan.counts.items():
            node = draft.changes[path]
            assert node is not None, "a count is asked of nodes that stay"
            version = 0
            if path in plan.puts and answers[plan.puts[path]].response_put.prev_kv.version:
                before = answers[plan.puts[path]].response_put.prev_kv
                known = plan.seen[path]
                assert known is not None, "it was written over"
                version = read_node(before)[0].stat.version - known.stat.version
            shifts[path] = version, answers[at].response_range.count - node.children
        return [_shift(result, path, shifts, revision) for result, path in _with_paths(plan)]


def _with_paths(plan: Plan) -> list[tuple[Result, str]]:
    return list(zip(plan.results, plan.draft.asked, strict=True))


def _shift(result: Result, path: str, shifts: dict[str, tuple[int, int]], revision: int) -> Result:
    if not isinstance(result, Stat):
        return result
    version, children = shifts.get(path, (0, 0))
    return Stat(
        result.version + version,
        revision if result.created == NOW else result.created,
        revision,
        result.owner,
        result.children + children,
    )


def _is_blind(operations: Sequence[Operation], known: Known) -> bool:
    """Whether a node is only set once, whatever its version: then nobody else's doing so disturbs it."""
    if len(operations) != 1 or not isinstance(operations[0], Set) or operations[0].version is not None:
        return False
    return bool(_header.unpack(known.header)[1] != THIS)


def _is_counting(draft: Draft, path: str, beliefs: Beliefs) -> bool:
    """Whether it gives numbers to children, and stays."""
    node = draft.changes.get(path)
    before = beliefs.counters.get(path, Counter(0, 0))
    return node is not None and node.created != NOW and node.counter > before.number


def _is_deleted(draft: Draft, path: str) -> bool:
    """Also for a moment."""
    if path not in draft.changes:
        return False
    node = draft.changes[path]
    return node is None or node.created == NOW


def _tell_created(node: Node, under: Known | None) -> int:
    if under is None:
        return 0
    if node.created == NOW:
        return THIS
    said = _header.unpack(under.header)[1]
    return node.created if said == THIS else int(said)


def _compare(target: int, result: int, key: bytes, **fields: Any) -> Any:
    return wire.Compare(target=target, result=result, key=key, **fields)


def _compare_header(key: bytes, header: bytes) -> list[Any]:
    """The value begins with it: it lies between it and its successor."""
    after = (int.from_bytes(header, "big") + 1).to_bytes(len(header), "big")
    return [
        _compare(wire.VALUE, wire.GREATER, key, value=header[:-1]),
        _compare(wire.VALUE, wire.LESS, key, value=after),
    ]


def read_range(key: bytes, end: bytes = b"", **options: bool) -> Any:
    return wire.RequestOp(request_range=wire.RangeRequest(key=key, range_end=end, **options))


def _delete(key: bytes) -> Any:
    return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=key))


def group(operations: Sequence[Any], compares: int, limit: int) -> list[Any]:
    """As etcd takes them: it bounds what is beside one another, and how much that is along each way down."""
    if len(operations) <= limit:
        return list(operations)
    size = limit - max(compares, -(-len(operations) // GROUP_MIN))
    return [
        wire.RequestOp(request_txn=wire.TxnRequest(success=operations[first : first + size]))
        for first in range(0, len(operations), size)
    ]


def ungroup(answers: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for answer in answers:
        inner = answer.response_txn.responses
        flat += inner if len(inner) else [answer]
    return flat
