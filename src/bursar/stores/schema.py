"""The tables of a SQLite store, and what to say of a file that has others or cannot be used."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from bursar.errors import StoreError, StoreUnknownError
from bursar.world import SECOND_NS

APPLICATION_ID = 0x42757273  # "Burs"
SCHEMA_VERSION = 2
PAGE_BYTES = 2048
"""A change dirties two pages or three; smaller ones make its commit measurably shorter."""
LOCK_PATIENCE_NS = 5 * SECOND_NS
"""How long a change waits for other processes' changes before it fails, with nothing done."""

RETRY_S = 0.01

_SCHEMA = (
    """CREATE TABLE nodes (
        parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
        created INTEGER NOT NULL, modified INTEGER NOT NULL, owner INTEGER NOT NULL,
        children INTEGER NOT NULL, counter INTEGER NOT NULL, PRIMARY KEY (parent, name)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX owners ON nodes (owner) WHERE owner != 0",
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, boot TEXT NOT NULL,
        timeout_ns INTEGER NOT NULL, expires_ns INTEGER NOT NULL, password BLOB NOT NULL
    ) STRICT""",
    "CREATE TABLE changes (revision INTEGER PRIMARY KEY, paths TEXT) STRICT",
    "INSERT INTO nodes VALUES ('', '', x'', 0, 1, 1, 0, 0, 0)",
    "INSERT INTO changes VALUES (1, '/')",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def prepare(path: str) -> None:
    """Make sure that `path` is a store of this schema: create it where there is none. Raises
    StoreError, and leaves alone what is not bursar's."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise StoreError(f"{path}: there is no folder {folder}: create it, or correct the store's URL")
    _make_private(path)
    until_ns = time.monotonic_ns() + LOCK_PATIENCE_NS
    while True:
        try:
            return _try_to_prepare(path)
        except sqlite3.Error as error:
            # Who switches to a write-ahead log while another does so is told at once, without waiting.
            if not is_busy(error) or time.monotonic_ns() > until_ns:
                raise explain(error, path) from error
            time.sleep(RETRY_S)


def _make_private(path: str) -> None:
    """A new file is its owner's alone; those that SQLite puts beside it take after it. One that exists is
    not even opened here: closing it would end the locks that this process has on it."""
    if not os.path.exists(path):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError:
            return  # another process was first, or SQLite will say what is in its way


def _try_to_prepare(path: str) -> None:
    connection = sqlite3.connect(path, timeout=LOCK_PATIENCE_NS / SECOND_NS, isolation_level=None)
    try:
        connection.execute("BEGIN")  # as it is at one moment: another may be laying out the tables
        is_empty = _inspect(connection, path)
        connection.execute("ROLLBACK")
        if is_empty:
            _create(connection, path)
    finally:
        connection.close()


def _inspect(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the file is empty and waits for a schema. Raises StoreError for a foreign one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return True
    if application != APPLICATION_ID:
        raise StoreError(f"{path}: a SQLite database of another program: give bursar a file of its own")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written with schema {version}, this bursar knows schema {SCHEMA_VERSION}: "
            "use the version of bursar that wrote it, or a new file"
        )
    return False


def _create(connection: sqlite3.Connection, path: str) -> None:
    """Lay out the tables, unless another process was faster."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"{path}: this file system cannot share a write-ahead log (mode {mode}): use a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _inspect(connection, path):
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def explain(error: sqlite3.Error, path: str) -> StoreError:
    """SQLite's error in words that say what to do. A lock that somebody keeps is like a server that does
    not answer: a node waits for it as long as it takes, and does not go down."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    remedy = _REMEDIES.get(code, "see SQLite's result codes")
    kind = StoreUnknownError if code == sqlite3.SQLITE_BUSY else StoreError
    return kind(f"{path}: {error}: {remedy}")


_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process held the write lock for too long (is one stopped?), try again",
    sqlite3.SQLITE_NOTADB: "give bursar a file of its own, or restore this one from a copy",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: stop every user of it and restore it from a copy",
    sqlite3.SQLITE_READONLY: "the file and its folder must be writable for this user",
    sqlite3.SQLITE_CANTOPEN: "the file and its folder must exist and be writable for this user",
    sqlite3.SQLITE_PERM: "the file and its folder must be writable for this user",
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_IOERR: "the disk failed: see the system's log",
    sqlite3.SQLITE_ERROR: "the file was changed by another program: restore it from a copy",
}
