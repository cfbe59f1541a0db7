"""The coordination stores: one contract (`bursar.world.Store`), several places to keep the tree.

    memory://NAME               shared by one process; nothing survives it; a change costs
                                microseconds
    sqlite:///path              shared by the processes of one host; survives kill -9 and power
                                failure; a change costs one synced commit, shared by those that
                                wait together. Not on network file systems
    zookeeper://a,b,c/chroot    shared by several hosts; survives the loss of a minority of the
                                servers; a change costs about a millisecond, many in flight share it
    postgresql://a,b/database   shared by several hosts; survives a failover to a standby that commits
                                wait for; a change costs one commit, shared by those that wait together
    etcd://a,b,c/prefix         shared by several hosts; survives the loss of a minority of the members;
                                a change costs about a millisecond, and is bounded in its operations

All of them promise what `Store` says: transactions all or nothing at one revision of their own,
definite errors that changed nothing, sessions whose ephemeral nodes go with them, watches that
may fire once too often but never miss the last change. One suite of tests holds them to it.

The parts: `bounds` says what may be asked at all; `draft` is what operations do to a tree, written
once; `tree` keeps one in memory, a plain book that the simulator uses too; `database` keeps one in
SQLite, `schema` its tables, `writer` its thread; `zookeeper_wire` is ZooKeeper's format and
`zookeeper_link` one session with it; `postgresql_schema` is tables and functions in a database,
`postgresql_link` the way to the server that leads; `etcd_wire` is etcd's messages, `etcd_plan` a transaction
as etcd takes it, `etcd_link` and `etcd_watches` the way there; `addresses` reads URLs of several hosts;
`memory`, `sqlite`, `zookeeper`, `postgresql` and `etcd` are the stores. `examining` looks at one for people.

A node that was killed leaves its session behind. Whoever opens a store with a `SessionRecord` has the
session of its earlier life ended first, so that it does not wait for its own ghost (`credentials`).

`sqlite` and time: sessions expire in boot time, so all processes must see the same one (one
machine, one time namespace); a reboot ends them all. A process stopped while it holds the write
lock keeps every other from changing anything, so for that long no owner is deposed either.
"""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit
from weakref import WeakValueDictionary

from bursar.errors import UsageError
from bursar.stores.credentials import SessionRecord
from bursar.stores.tree import Tree
from bursar.world import SECOND_NS, Clock, Store

__all__ = ["TIMEOUT_NS", "open_store"]

TIMEOUT_NS = 10 * SECOND_NS
"""How long a session outlives its last heartbeat, unless told otherwise."""

SHARED = ("zookeeper", "postgresql", "etcd")
"""Those that several hosts share."""

_FORMS = (
    "memory://, memory://NAME, sqlite:///absolute/path, zookeeper://host:port,.../chroot, "
    "postgresql://user@host:port,.../database or etcd://host:port,.../prefix"
)

_trees: WeakValueDictionary[str, Tree] = WeakValueDictionary()


async def open_store(
    url: str,
    *,
    clock: Clock,
    name: str = "",
    timeout_ns: int = TIMEOUT_NS,
    record: SessionRecord | None = None,
) -> Store:
    """Open a session on the store that the URL names. `name` tells people whose session it is;
    `record` knows the one of an earlier life, which is ended.

    `memory://` is a tree of its own for each call; `memory://NAME` one for all callers of that
    name in this process, gone with the last of them. Raises UsageError for a URL that makes no
    sense and StoreError for a store that cannot be used."""
    parts = _split(url)
    if parts.scheme == "memory":
        return _open_memory(parts, clock, name, timeout_ns)
    if parts.scheme == "sqlite":
        return await _open_sqlite(url, parts, clock, name, timeout_ns, record)
    if parts.scheme == "zookeeper":
        from bursar.stores.zookeeper import ZookeeperStore

        return await ZookeeperStore.open(parts, clock, timeout_ns=timeout_ns, record=record)
    if parts.scheme == "etcd":
        from bursar.stores.etcd import EtcdStore

        return await EtcdStore.open(parts, clock, timeout_ns=timeout_ns, record=record)
    if parts.scheme == "postgresql":
        from bursar.stores.postgresql import PostgresqlStore

        return await PostgresqlStore.open(parts, clock, timeout_ns=timeout_ns, name=name, record=record)
    raise UsageError(f"store {url!r}: unknown scheme {parts.scheme!r}, write {_FORMS}")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"store {url!r}: {error}, write {_FORMS}") from error
    if parts.fragment or (parts.query and parts.scheme not in SHARED):
        raise UsageError(f"store {url!r}: no '?' or '#' (in a path write %3f and %23): write {_FORMS}")
    return parts


def _open_memory(parts: SplitResult, clock: Clock, name: str, timeout_ns: int) -> Store:
    from bursar.stores.memory import MemoryStore

    if parts.path.strip("/"):
        raise UsageError(f"store {parts.geturl()!r}: memory:// takes a name at most, memory://NAME")
    tree = _trees.setdefault(parts.netloc, Tree()) if parts.netloc else Tree()
    return MemoryStore(tree, clock, timeout_ns=timeout_ns, name=name)


async def _open_sqlite(
    url: str, parts: SplitResult, clock: Clock, name: str, timeout_ns: int, record: SessionRecord | None
) -> Store:
    from bursar.stores.sqlite import SqliteStore

    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise UsageError(
            f"store {url!r}: name a file by its absolute path, sqlite:///var/lib/bursar/store.db"
        )
    return await SqliteStore.open(path, clock, timeout_ns=timeout_ns, name=name, record=record)
