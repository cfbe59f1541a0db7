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

A connection remembers what it read until another one commits, which costs one cheap question at
the start of each transaction (`PRAGMA data_version`) and saves most of the others.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from bursar.errors import NodeMissingError, SessionExpiredError, StoreError
from bursar.stores.bounds import name_of, parent_of
from bursar.stores.credentials import Credentials
from bursar.stores.draft import Draft, Node, Result
from bursar.stores.schema import LOCK_PATIENCE_NS, is_busy
from bursar.world import MILLISECOND_NS, SECOND_NS, Operation

LOCK_PAUSE_MIN_NS = MILLISECOND_NS // 5
LOCK_PAUSE_MAX_NS = 4 * MILLISECOND_NS
CHANGES_KEPT = 4096
CHANGES_PRUNED_EVERY = 256
REMEMBERED_NODES_MAX = 4096
REMEMBERED_DATA_MAX_BYTES = 1024
CHANGE_MAX_CHARS = 64 * 1024
"""A revision that touched more than this names none of it, which means everything."""

_READ = (
    "SELECT data, version, created, modified, owner, children, counter FROM nodes WHERE parent=? AND name=?"
)
_PLACE = "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM nodes WHERE parent=? AND name=?"
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
    """One connection. Calls that read stand between `begin_reading` or `begin` and `commit` or
    `rollback`, those that change rows after `begin`.

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
        self._version = -1
        self._changed = False
        self._revision = 0
        self._nodes: dict[str, Node | None] = {}
        self._expiries: dict[int, int] = {}

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
                break
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic_ns() > give_up_ns:
                    raise
            time.sleep(pause_ns / SECOND_NS)
            pause_ns = min(pause_ns * 3 // 2, LOCK_PAUSE_MAX_NS)
        self._refresh()

    def begin_reading(self) -> None:
        """See one state of the tree until `rollback`."""
        self._execute("BEGIN")
        self._refresh()

    def commit(self) -> None:
        self._execute("COMMIT")
        self._changed = False

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        if self._changed:
            self._forget()

    def _refresh(self) -> None:
        """Forget what is remembered if another connection has committed since."""
        version = self.data_version()
        if version != self._version:
            self._forget()
            self._version = version

    def _forget(self) -> None:
        self._version = -1
        self._changed = False
        self._revision = 0
        self._nodes.clear()
        self._expiries = {}

    # Sessions

    def open_session(self, name: str, timeout_ns: int, password: bytes = b"") -> int:
        expires_ns = boot_ns() + timeout_ns
        self._changed = True
        cursor = self._execute(
            "INSERT INTO sessions (name, boot, timeout_ns, expires_ns, password) VALUES (?, ?, ?, ?, ?)",
            (name, self.boot, timeout_ns, expires_ns, password),
        )
        assert cursor.lastrowid is not None
        self._expiries = {}
        return cursor.lastrowid

    def check_session(self, session: int) -> None:
        if self._sessions().get(session, 0) <= boot_ns():
            raise over(session)

    def beat(self, session: int) -> bool:
        """Keep the session alive, in a transaction of its own; False if it is over.

        Not synced: what a power failure could take with it are sessions, which it ends anyway."""
        self._execute("PRAGMA synchronous = NORMAL")
        try:
            self.begin()
            now_ns = boot_ns()
            cursor = self._execute(_BEAT, (now_ns, session, now_ns, self.boot))
            self._expiries = {}
            self.commit()
            return cursor.rowcount == 1
        finally:
            self.rollback()
            self._execute("PRAGMA synchronous = FULL")

    def due(self) -> list[int]:
        """Sessions that are overdue, or of another boot; the oldest first."""
        now_ns = boot_ns()
        return [session for session, expires_ns in self._sessions().items() if expires_ns <= now_ns]

    def expire_due(self) -> None:
        for session in self.due():
            self.end_session(session)

    def end_former(self, former: Credentials) -> None:
        """End that session if it is one of this file's: elsewhere the number is another's."""
        found = self._execute("SELECT 1 FROM sessions WHERE id = ? AND password = ?", former[:2]).fetchone()
        if found is not None:
            self.end_session(former.session)

    def end_session(self, session: int) -> None:
        """End it, if it has not ended: its ephemeral nodes go at a revision of their own."""
        owned = self._execute(
            "SELECT parent, name FROM nodes WHERE owner = ? AND owner != 0 ORDER BY parent, name", (session,)
        ).fetchall()
        draft = Draft(self, session, self.revision() + 1)
        draft.remove([_join(parent, name) for parent, name in owned])
        self._write_out(draft)
        self._changed = True
        self._execute("DELETE FROM sessions WHERE id = ?", (session,))
        self._expiries = {}

    def _sessions(self) -> dict[int, int]:
        """When each session expires; 0 for those of another boot."""
        if not self._expiries:
            rows = self._execute("SELECT id, expires_ns, boot FROM sessions ORDER BY id")
            self._expiries = {
                session: expires_ns if boot == self.boot else 0 for session, expires_ns, boot in rows
            }
        return self._expiries

    # The tree

    def transact(self, session: int, operations: Sequence[Operation]) -> list[Result]:
        """The operations at a revision of their own; the caller has expired what is due."""
        self.check_session(session)
        draft = Draft(self, session, self.revision() + 1)
        results = draft.apply(operations)
        self._write_out(draft)
        return results

    def read(self, path: str) -> Node | None:
        if path in self._nodes:
            return self._nodes[path]
        row = self._execute(_READ, _split(path)).fetchone()
        node = None if row is None else Node._make(row)
        self._remember(path, node)
        return node

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
        if not self._revision:
            (self._revision,) = self._execute("SELECT max(revision) FROM changes").fetchone()
        return self._revision

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
        self._changed = True
        for path, node in draft.changes.items():
            if node is None:
                self._execute(_REMOVE, _split(path))
            else:
                self._execute(_PLACE, _split(path) + node)
            self._remember(path, node)
        paths = "\n".join(draft.touched)
        named = paths if len(paths) <= CHANGE_MAX_CHARS else None
        self._execute("INSERT INTO changes VALUES (?, ?)", (draft.revision, named))
        if draft.revision % CHANGES_PRUNED_EVERY == 0:
            self._execute("DELETE FROM changes WHERE revision <= ?", (draft.revision - CHANGES_KEPT,))
        self._revision = draft.revision

    def _remember(self, path: str, node: Node | None) -> None:
        if len(self._nodes) >= REMEMBERED_NODES_MAX:
            self._nodes.clear()
        if node is None or len(node.data) <= REMEMBERED_DATA_MAX_BYTES:
            self._nodes[path] = node
        else:
            self._nodes.pop(path, None)


def _quote(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _split(path: str) -> tuple[str, str]:
    return ("", "") if path == "/" else (parent_of(path), name_of(path))


def _join(parent: str, name: str) -> str:
    return f"{parent.rstrip('/')}/{name}"
