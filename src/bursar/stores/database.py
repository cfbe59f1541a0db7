"""The SQLite file behind `sqlite:///path`: sessions and transactions, all synchronous.

    nodes       one row a node, children of one parent side by side
    sessions    who is alive until when, in nanoseconds since the boot named beside it
    changes     one row a revision with the paths it touched; the last of them is *the* revision.
                Only the newest CHANGES_KEPT stay: a reader that fell behind further must assume
                that everything changed

The rows obey `draft`'s invariants: nodes are changed through drafts alone, between `begin` and
`commit`. A draft that fails wrote nothing, so transactions of several callers can share one
commit. Expiry is in boot time: it goes on while the machine sleeps, agrees between processes, and
a session of another boot is over.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from bursar.errors import NodeMissingError, SessionExpiredError, StoreError
from bursar.stores.bounds import name_of, parent_of
from bursar.stores.draft import Draft, Node, Result
from bursar.stores.schema import LOCK_PATIENCE_NS, is_busy
from bursar.world import MILLISECOND_NS, SECOND_NS, Operation

LOCK_PAUSE_MIN_NS = MILLISECOND_NS // 5
LOCK_PAUSE_MAX_NS = 4 * MILLISECOND_NS
CHANGES_KEPT = 4096
CHANGES_PRUNED_EVERY = 256
CHANGE_MAX_CHARS = 64 * 1024
"""A revision that touched more than this names none of it, which means everything."""

_READ = (
    "SELECT data, version, created, modified, owner, children, counter FROM nodes WHERE parent=? AND name=?"
)
_PLACE = "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM nodes WHERE parent=? AND name=?"
_DUE = "SELECT id FROM sessions WHERE expires_ns <= ? OR boot != ? ORDER BY id"
_ALIVE = "SELECT 1 FROM sessions WHERE id = ? AND expires_ns > ? AND boot = ?"
_BEAT = "UPDATE sessions SET expires_ns = ? + timeout_ns WHERE id = ? AND expires_ns > ? AND boot = ?"


def boot_ns() -> int:
    """Nanoseconds since the machine booted, its sleep included: one clock for all processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Which boot that was."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError as error:
        raise StoreError(
            f"the SQLite store needs Linux's boot id to know dead sessions: {error}; use another store"
        ) from error


def over(session: int) -> SessionExpiredError:
    return SessionExpiredError(
        f"session {session} is over, its ephemeral nodes are gone: renew() opens a new one"
    )


class Database:
    """One connection. Calls that change rows stand between `begin` and `commit` or `rollback`.

    Raises sqlite3.Error for what the file or the disk does (`schema.explain` turns it into words), and
    the store's errors for what the tree does not allow."""

    def __init__(self, path: str, *, lock_patience_ns: int = 0) -> None:
        self.path = path
        self.boot = boot_id()
        self._connection = sqlite3.connect(
            f"file:{_quote(path)}?mode=rw",
            uri=True,
            timeout=lock_patience_ns / SECOND_NS,
            isolation_level=None,
            check_same_thread=False,
        )
        self._execute = self._connection.execute
        self._execute("PRAGMA synchronous = FULL")
        self._execute("PRAGMA trusted_schema = OFF")

    def close(self) -> None:
        self._connection.close()

    # Transactions

    def begin(self) -> None:
        """Take the write lock. SQLite's own waiting sleeps up to 100 ms at a time, several hundred
        commits long; this one stays near the length of a commit."""
        give_up_ns = time.monotonic_ns() + LOCK_PATIENCE_NS
        pause_ns = LOCK_PAUSE_MIN_NS
        while True:
            try:
                self._execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic_ns() > give_up_ns:
                    raise
            time.sleep(pause_ns / SECOND_NS)
            pause_ns = min(pause_ns * 3 // 2, LOCK_PAUSE_MAX_NS)

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def begin_reading(self) -> None:
        """See one state of the tree until `rollback`."""
        self._execute("BEGIN")

    # Sessions

    def open_session(self, name: str, timeout_ns: int) -> int:
        expires_ns = boot_ns() + timeout_ns
        cursor = self._execute(
            "INSERT INTO sessions (name, boot, timeout_ns, expires_ns) VALUES (?, ?, ?, ?)",
            (name, self.boot, timeout_ns, expires_ns),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def check_session(self, session: int) -> None:
        if self._execute(_ALIVE, (session, boot_ns(), self.boot)).fetchone() is None:
            raise over(session)

    def beat(self, session: int) -> bool:
        """Keep the session alive, in a transaction of its own; False if it is over.

        Not synced: what a power failure could take with it are sessions, which it ends anyway."""
        self._execute("PRAGMA synchronous = NORMAL")
        try:
            self.begin()
            now_ns = boot_ns()
            cursor = self._execute(_BEAT, (now_ns, session, now_ns, self.boot))
            self.commit()
            return cursor.rowcount == 1
        finally:
            self.rollback()
            self._execute("PRAGMA synchronous = FULL")

    def due(self) -> list[int]:
        """Sessions that are overdue, or of another boot."""
        return [session for (session,) in self._execute(_DUE, (boot_ns(), self.boot))]

    def expire_due(self) -> None:
        for session in self.due():
            self.end_session(session)

    def end_session(self, session: int) -> None:
        """End it, if it has not ended: its ephemeral nodes go at a revision of their own."""
        owned = self._execute(
            "SELECT parent, name FROM nodes WHERE owner = ? AND owner != 0 ORDER BY parent, name", (session,)
        ).fetchall()
        draft = Draft(self, session, self.revision() + 1)
        draft.remove([_join(parent, name) for parent, name in owned])
        self._write_out(draft)
        self._execute("DELETE FROM sessions WHERE id = ?", (session,))

    # The tree

    def transact(self, session: int, operations: Sequence[Operation]) -> list[Result]:
        """The operations at a revision of their own; the caller has expired what is due."""
        self.check_session(session)
        draft = Draft(self, session, self.revision() + 1)
        results = draft.apply(operations)
        self._write_out(draft)
        return results

    def read(self, path: str) -> Node | None:
        row = self._execute(_READ, _split(path)).fetchone()
        return None if row is None else Node(*row)

    def get(self, path: str) -> Node:
        node = self.read(path)
        if node is None:
            raise NodeMissingError(f"{path}: no such node")
        return node

    def children(self, path: str) -> list[str]:
        self.get(path)
        rows = self._execute("SELECT name FROM nodes WHERE parent = ? ORDER BY name", (path,))
        return [name for (name,) in rows]

    def revision(self) -> int:
        (revision,) = self._execute("SELECT max(revision) FROM changes").fetchone()
        assert isinstance(revision, int)
        return revision

    # What others changed

    def data_version(self) -> int:
        """A number that differs once another connection has committed; the cheapest question."""
        (version,) = self._execute("PRAGMA data_version").fetchone()
        assert isinstance(version, int)
        return version

    def changes_after(self, revision: int) -> tuple[int, list[str] | None]:
        """The newest revision, and the paths touched after `revision`: None if that is no longer
        known, so anything may have."""
        rows = self._execute(
            "SELECT revision, paths FROM changes WHERE revision > ? ORDER BY revision", (revision,)
        ).fetchall()
        if not rows:
            return revision, []
        newest = rows[-1][0]
        if rows[0][0] != revision + 1 or any(paths is None for _, paths in rows):
            return newest, None
        return newest, [path for _, paths in rows for path in paths.split("\n")]

    def _write_out(self, draft: Draft) -> None:
        if not draft.touched:
            return
        for path, node in draft.changes.items():
            if node is None:
                self._execute(_REMOVE, _split(path))
            else:
                self._execute(_PLACE, (*_split(path), *_row(node)))
        paths: str | None = "\n".join(draft.touched)
        if paths is not None and len(paths) > CHANGE_MAX_CHARS:
            paths = None
        self._execute("INSERT INTO changes VALUES (?, ?)", (draft.revision, paths))
        if draft.revision % CHANGES_PRUNED_EVERY == 0:
            self._execute("DELETE FROM changes WHERE revision <= ?", (draft.revision - CHANGES_KEPT,))


def _quote(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _split(path: str) -> tuple[str, str]:
    return ("", "") if path == "/" else (parent_of(path), name_of(path))


def _join(parent: str, name: str) -> str:
    return f"{parent.rstrip('/')}/{name}"


def _row(node: Node) -> tuple[bytes, int, int, int, int, int, int]:
    return (
        node.data, node.version, node.created, node.modified, node.owner, node.children, node.counter,
    )  # fmt: skip
