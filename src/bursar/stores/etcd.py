"""`etcd://a:2379,b:2379/prefix`: a tree in an etcd cluster, version 3.4 or later.

A session is a lease (of two seconds at least, in whole seconds), and a key that lives with it, which every
transaction and every read asks for. Reads are linearizable, all of one call at one revision. Watches are
etcd's, one for a node and one for the range of its children; after a gap they are set anew and fire, so that
nothing rests on revisions that may have been compacted.

How a transaction of the contract becomes one of etcd's is `etcd_plan`'s. What this store believes of nodes
(what it read, wrote, or was told of) saves most transactions a read before; changes of one process that
would fail each other go one after another.

Address: as in `addresses`; the path is a prefix of every key.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import SplitResult

from bursar.errors import NodeMissingError, SessionExpiredError, StoreError, StoreUnknownError, TooLargeError
from bursar.stores import etcd_wire as wire
from bursar.stores.addresses import read_address
from bursar.stores.bounds import OPERATIONS_MIN, check_operations, check_path, check_timeout, parent_of
from bursar.stores.credentials import PASSWORD_BYTES, Credentials, SessionRecord
from bursar.stores.draft import Result
from bursar.stores.etcd_link import CALL_MAX_S, HEARTBEATS_PER_TIMEOUT, OPEN_MAX_S, Link
from bursar.stores.etcd_plan import (
    EMPTY,
    NOW,
    Beliefs,
    Counter,
    Keys,
    Known,
    Plan,
    Planner,
    Unread,
    above,
    bound_operations,
    group,
    read_counter,
    read_node,
    read_range,
    ungroup,
)
from bursar.stores.etcd_watches import WatchStream
from bursar.stores.shorthand import Shorthand
from bursar.stores.watches import FlagWatch
from bursar.world import SECOND_NS, CheckAbsent, Clock, Create, Delete, Operation, Set, Stat

PORT = 2379
FORM = "etcd://host:port,host:port/prefix"
LIMIT = 128
"""Of compares, and of operations, in one transaction, unless etcd was told otherwise."""

LIMIT_MAX = 16_384
BELIEVED_MAX = 4096
RETRY_MAX_S = 0.05


class Turn:
    """Of a path: who has it, and how many want it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class EtcdStore(Shorthand):
    """Implements `bursar.world.Store`. See the module's docstring."""

    def __init__(
        self, link: Link, keys: Keys, clock: Clock, timeout_ns: int, record: SessionRecord | None
    ) -> None:
        """Use `open`."""
        self._link = link
        self._keys = keys
        self._planner = Planner(keys)
        self._clock = clock
        self._ttl_s = max(2, -(-timeout_ns // SECOND_NS))
        self._record = record
        self._session = 0
        self._password = b""
        self._over = False
        self._closed = False
        self._trusted_until_ns = 0
        self._limit = LIMIT
        self._renewing = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._nodes: dict[str, Known | None] = {}
        self._counters: dict[str, Counter] = {}
        self._turns: dict[str, Turn] = {}
        self._watches = WatchStream(link, keys, self._lapse)
        link.on_switch = self._watches.renew

    @classmethod
    async def open(
        cls, parts: SplitResult, clock: Clock, *, timeout_ns: int, record: SessionRecord | None = None
    ) -> EtcdStore:
        """Open a session. Raises UsageError or StoreError."""
        check_timeout(timeout_ns)
        address = read_address(parts, PORT, FORM)
        if address.path:
            check_path(address.path)
        store = cls(Link(address, clock), Keys(address.path), clock, timeout_ns, record)
        try:
            await store._set_up()
            await store._begin(record.former() if record is not None else None)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session(self) -> int:
        return self._session

    @property
    def operations_max(self) -> int:
        return bound_operations(self._limit)

    @property
    def timeout_ns(self) -> int:
        """The one that etcd agreed to, which may differ from the one asked for."""
        return self._ttl_s * SECOND_NS

    @property
    def members(self) -> int:
        """Those that the address names."""
        return len(self._link.address.hosts)

    async def read_status(self) -> Any:
        """What the member in use says of itself."""
        return await self._link.ask("Maintenance/Status", wire.StatusRequest(), CALL_MAX_S)

    def trusted_until(self) -> int:
        return self._trusted_until_ns

    async def renew(self) -> int:
        """Whoever finds the session over at the same time gets the same new one."""
        before = self._session
        async with self._renewing:
            if self._session == before:
                await self._begin(None)
            return self._session

    async def close(self) -> None:
        if self._closed:
            return
        session, self._closed = self._session, True
        if self._keeper is not None:
            self._keeper.cancel()
        if session and not self._over:
            with suppress(StoreError):  # else it ends when its time is over
                await self._link.ask("Lease/LeaseRevoke", wire.LeaseRevokeRequest(ID=session), CALL_MAX_S)
        self._expire(session)
        await self._watches.close()
        await self._link.close()

    # The session

    async def _set_up(self) -> None:
        """The root is there, the cluster is the one that was known, and how much it takes is found out."""
        root = self._keys.node("/", False)
        put = wire.RequestOp(request_put=wire.PutRequest(key=root, value=EMPTY))
        absent = wire.Compare(target=wire.CREATE, result=wire.EQUAL, key=root)
        try:
            await self._link.ask("KV/Txn", wire.TxnRequest(compare=[absent], success=[put]), OPEN_MAX_S)
        except StoreUnknownError as error:
            raise StoreError(
                f"no etcd answers at {self._link.address} ({error}): is it running, and is this the address?"
            ) from error
        self._check_history()
        self._limit = await self._find_limit()
        if self.operations_max < OPERATIONS_MIN:
            raise StoreError(
                f"etcd at {self._link.address} takes {self._limit} operations in a transaction, bursar needs "
                f"{LIMIT}: start it without --max-txn-ops, or with more"
            )

    def _check_history(self) -> None:
        """A cluster that is the one that was known and has had fewer changes was restored from a backup."""
        seen = "" if self._record is None else self._record.seen()
        cluster, _, revision = seen.partition(" ")
        if cluster == str(self._link.cluster) and self._link.revision < int(revision):
            raise StoreError(
                f"etcd at {self._link.address} is at revision {self._link.revision}, {revision} was seen: "
                "it was restored from a backup; stop every node and go on with `bursar store adopt`"
            )

    async def _find_limit(self) -> int:
        """How many operations a transaction may have: asked with ones that do nothing."""
        if not await self._takes(LIMIT):
            return await self._search(1, LIMIT)
        if not await self._takes(LIMIT + 1):
            return LIMIT
        return await self._search(LIMIT + 1, LIMIT_MAX)

    async def _search(self, taken: int, refused: int) -> int:
        while refused - taken > 1:
            middle = (taken + refused) // 2
            if await self._takes(middle):
                taken = middle
            else:
                refused = middle
        return taken

    async def _takes(self, number: int) -> bool:
        compare = wire.Compare(target=wire.CREATE, result=wire.GREATER, key=self._keys.node("/", False))
        try:
            await self._link.ask("KV/Txn", wire.TxnRequest(compare=[compare] * number), CALL_MAX_S)
        except StoreUnknownError:
            raise
        except StoreError as error:
            if "too many operations" not in str(error):
                raise
            return False
        return True

    async def _begin(self, former: Credentials | None) -> None:
        """A new session; the one before it ends first."""
        if self._closed:
            raise StoreError(f"{self._link.address}: this store was closed: open another")
        old = Credentials(self._session, self._password) if self._session else former
        if old is not None:
            await self._end(old)
        password, sent_ns = secrets.token_bytes(PASSWORD_BYTES), self._clock.now()
        lease = await self._link.ask("Lease/LeaseGrant", wire.LeaseGrantRequest(TTL=self._ttl_s), OPEN_MAX_S)
        key, value = self._keys.session(lease.ID), password.hex().encode()
        put = wire.RequestOp(request_put=wire.PutRequest(key=key, value=value, lease=lease.ID))
        await self._link.ask("KV/Txn", wire.TxnRequest(success=[put]), OPEN_MAX_S)
        if self._session:
            self._expire(self._session)
        self._session, self._password, self._over, self._ttl_s = lease.ID, password, False, lease.TTL
        self._trust_from(sent_ns)
        await self._watches.follow(self._session)
        if self._keeper is not None:
            self._keeper.cancel()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(self._session), name="etcd.keeper")
        if self._record is not None:
            seen = f"{self._link.cluster} {self._link.revision}"
            await asyncio.to_thread(self._record.keep, Credentials(self._session, password, seen))

    async def _end(self, which: Credentials) -> None:
        """The lease of whoever knows its password."""
        key, value = self._keys.session(which.session), which.password.hex().encode()
        same = wire.Compare(target=wire.VALUE, result=wire.EQUAL, key=key, value=value)
        found = await self._link.ask("KV/Txn", wire.TxnRequest(compare=[same]), CALL_MAX_S)
        if found.succeeded:
            with suppress(SessionExpiredError):  # it was over just before
                request = wire.LeaseRevokeRequest(ID=which.session)
                await self._link.ask("Lease/LeaseRevoke", request, CALL_MAX_S)

    def _trust_from(self, sent_ns: int) -> None:
        self._trusted_until_ns = max(self._trusted_until_ns, sent_ns + self.timeout_ns * 2 // 3)

    async def _keep(self, session: int) -> None:
        interval_s = self._ttl_s / HEARTBEATS_PER_TIMEOUT
        while not self._over:
            sent_ns = self._clock.now()
            try:
                left_s = await self._link.beat(session, self._ttl_s / 3)
            except StoreUnknownError:
                await asyncio.sleep(interval_s / 4)
                continue
            if left_s <= 0:
                self._expire(session)
            elif session == self._session and not self._over:
                self._trust_from(sent_ns)
            await asyncio.sleep(interval_s)

    def _lapse(self, session: int) -> None:
        """The key of the session is gone, as its watch tells."""
        self._expire(session)

    def _expire(self, session: int) -> None:
        if session != self._session:
            return
        self._over = True
        self._trusted_until_ns = 0
        self._watches.expire(session)

    def _check(self) -> int:
        if self._closed:
            raise StoreError(f"{self._link.address}: this store was closed: open another")
        if self._over:
            raise _over(self._session)
        return self._session

    @property
    def _patience_s(self) -> float:
        return self._ttl_s / 2

    # Reads

    async def get(self, path: str) -> tuple[bytes, Stat]:
        check_path(path)
        (node, count, counter), _ = await self._read(self._planner.probe(path))
        self._learn(path, node, count, counter)
        kvs = node.response_range.kvs
        if not kvs:
            raise NodeMissingError(f"{path}: no such node")
        known, data = read_node(kvs[0], count.response_range.count)
        return data, known.stat

    async def exists(self, path: str) -> Stat | None:
        try:
            return (await self.get(path))[1]
        except NodeMissingError:
            return None

    async def children(self, path: str) -> list[str]:
        check_path(path)
        names = read_range(*self._keys.children(path), keys_only=True)
        (node, found), _ = await self._read([read_range(*self._keys.both(path)), names])
        if not node.response_range.kvs:
            raise NodeMissingError(f"{path}: no such node")
        return sorted(self._keys.name(kv.key) for kv in found.response_range.kvs)

    async def sync(self) -> int:
        _, revision = await self._read([])
        return revision

    async def _read(self, ranges: list[Any]) -> tuple[list[Any], int]:
        """Their answers, and the revision of them all."""
        session = self._check()
        alive = wire.Compare(target=wire.CREATE, result=wire.GREATER, key=self._keys.session(session))
        probe = wire.RequestOp(request_range=wire.RangeRequest(key=self._keys.session(session)))
        request = wire.TxnRequest(compare=[alive], success=group([*ranges, probe], 1, self._limit))
        answer = await self._link.ask("KV/Txn", request, self._patience_s)
        if not answer.succeeded:
            self._expire(session)
            raise _over(session)
        return ungroup(answer.responses)[: len(ranges)], answer.header.revision

    # Changes

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        check_operations(operations, self.operations_max)
        session = self._check()
        if not operations:
            await self.sync()
            return []
        async with self._take_turns(operations):
            return await self._transact(operations, session)

    async def _transact(self, operations: Sequence[Operation], session: int) -> list[Result]:
        paths = _name_paths(operations)
        beliefs = self._believe(operations)
        until_ns = self._clock.now() + int(self._patience_s * SECOND_NS)
        for tries in range(1_000_000):
            try:
                plan = self._planner.plan(operations, beliefs, session)
            except (Unread, StoreError) as error:
                if beliefs.at and not isinstance(error, Unread):
                    raise
                if isinstance(error, Unread) and error.path not in paths:
                    paths.append(error.path)
                beliefs = await self._look(paths)
                continue
            if not await self._make_counters(plan):
                results = await self._commit(plan, session)
                if results is not None:
                    return results
            beliefs = await self._look(paths)
            if self._clock.now() > until_ns:
                raise StoreUnknownError("others keep changing the same nodes: nothing was done, try again")
            await asyncio.sleep(RETRY_MAX_S * random.random() * min(tries, 4) / 4)
        raise AssertionError("unreachable")

    def _believe(self, operations: Sequence[Operation]) -> Beliefs:
        """What is known without asking; nodes that are to be created are hoped not to be there."""
        hoped = [op.path for op in operations if isinstance(op, Create | CheckAbsent)]
        counting = [parent_of(op.path) for op in operations if isinstance(op, Create) and op.sequential]
        return Beliefs(self._nodes, self._counters, hoped, counting)

    async def _look(self, paths: Sequence[str]) -> Beliefs:
        """All of these as they are now."""
        ranges = [probe for path in paths for probe in self._planner.probe(path)]
        answers, revision = await self._read(ranges)
        nodes: dict[str, Known | None] = {}
        counters: dict[str, Counter] = {}
        for number, path in enumerate(paths):
            known, counter = self._learn(path, *answers[3 * number : 3 * number + 3])
            nodes[path] = known
            counters[path] = counter
        return Beliefs(nodes, counters, at=revision)

    def _learn(self, path: str, node: Any, count: Any, counter: Any) -> tuple[Known | None, Counter]:
        kvs = node.response_range.kvs
        known = read_node(kvs[0], count.response_range.count)[0] if kvs else None
        number = read_counter(counter.response_range.kvs)
        if len(self._nodes) >= BELIEVED_MAX:
            self._nodes.clear()
            self._counters.clear()
        # Children come and go without a word: a belief says none, and who deletes finds out.
        self._nodes[path] = known._replace(stat=_childless(known.stat)) if known is not None else None
        self._counters[path] = number
        return known, number

    async def _make_counters(self, plan: Plan) -> bool:
        """Counters that are not there yet are made beforehand: then they stand for their nodes, and a
        transaction needs no more compares than any other."""
        missing = [path for path in plan.counters if plan.seen[path] and not self._has_counter(path)]
        for path in missing:
            key, node = self._keys.counter(path), self._keys.node(path, False)
            compares = [
                wire.Compare(target=wire.CREATE, result=wire.GREATER, key=node),
                wire.Compare(target=wire.CREATE, result=wire.EQUAL, key=key),
            ]
            put = wire.RequestOp(request_put=wire.PutRequest(key=key, value=b"0"))
            await self._link.ask("KV/Txn", wire.TxnRequest(compare=compares, success=[put]), self._patience_s)
        return bool(missing)

    def _has_counter(self, path: str) -> bool:
        return self._counters.get(path, Counter(0, 0)).modified > 0

    async def _commit(self, plan: Plan, session: int) -> list[Result] | None:
        """None if something is not as it was believed."""
        if len(plan.compares) > self._limit - 1:
            raise TooLargeError(
                f"{len(plan.compares)} nodes in one transaction, etcd takes {self._limit - 1}"
            )
        writes = group(plan.writes, len(plan.compares), self._limit)
        alive = wire.RequestOp(request_range=wire.RangeRequest(key=self._keys.session(session)))
        request = wire.TxnRequest(compare=plan.compares, success=writes, failure=[alive])
        try:
            answer = await self._link.ask("KV/Txn", request, self._patience_s, changes=bool(plan.writes))
        except SessionExpiredError:
            self._expire(session)
            raise
        except StoreUnknownError:
            for path in plan.draft.changes:
                self._nodes.pop(path, None)
            raise
        if not answer.succeeded:
            if not answer.responses[0].response_range.kvs:
                self._expire(session)
                raise _over(session)
            return None
        revision = answer.header.revision
        answers = ungroup(answer.responses)
        for path in plan.draft.changes:
            self._remember(plan, path, revision, answers)
        return self._planner.confirm(plan, revision, answers)

    def _remember(self, plan: Plan, path: str, revision: int, answers: Sequence[Any]) -> None:
        """What a transaction left, for the next."""
        node, known = plan.draft.changes[path], self._nodes.get(path)
        if known is not None and known.stat.modified > revision:
            return  # another was answered first
        if node is None:
            self._nodes[path] = None
            self._counters.pop(path, None)
            return
        if path in plan.counters:
            self._counters[path] = Counter(node.counter, revision)
        if path not in plan.puts:
            return
        put = plan.writes[plan.puts[path]].request_put
        before = answers[plan.puts[path]].response_put.prev_kv
        after = wire.KeyValue(
            key=put.key,
            value=put.value,
            lease=put.lease,
            mod_revision=revision,
            create_revision=before.create_revision or revision,
            version=before.version + 1,
        )
        self._nodes[path] = read_node(after)[0]
        if node.created == NOW:
            self._counters.setdefault(path, Counter(0, 0))

    @asynccontextmanager
    async def _take_turns(self, operations: Sequence[Operation]) -> AsyncIterator[None]:
        """Changes of this process that would make each other fail go one after another."""
        async with AsyncExitStack() as stack:
            for path in sorted(_name_contended(operations)):
                turn = self._turns.setdefault(path, Turn())
                turn.users += 1
                stack.callback(self._end_turn, path, turn)
                await stack.enter_async_context(turn.lock)
            yield

    def _end_turn(self, path: str, turn: Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[path]

    # Watches

    async def watch(self, path: str) -> FlagWatch:
        check_path(path)
        session = self._check()
        watch = await self._watches.open(path, session, self._patience_s)
        try:
            await self.sync()
        except BaseException:
            watch.close()
            raise
        return watch


def _name_paths(operations: Sequence[Operation]) -> list[str]:
    """Whatever these may rest on."""
    paths = dict.fromkeys(operation.path for operation in operations)
    for operation in operations:
        if isinstance(operation, Create | Delete | CheckAbsent):
            paths[above(operation.path)] = None
    return list(paths)


def _name_contended(operations: Sequence[Operation]) -> set[str]:
    """Nodes that are changed at a version, deleted, or give numbers to children."""
    found = {
        op.path
        for op in operations
        if isinstance(op, Delete) or (isinstance(op, Set) and op.version is not None)
    }
    found |= {parent_of(op.path) for op in operations if isinstance(op, Create) and op.sequential}
    return found


def _childless(stat: Stat) -> Stat:
    return Stat(stat.version, stat.created, stat.modified, stat.owner, 0)


def _over(session: int) -> SessionExpiredError:
    return SessionExpiredError(
        f"session {session:#x} is over, its ephemeral nodes are gone: renew() opens a new one"
    )
