"""What may be asked of a store at all: checked before anything is sent, by every store alike.

The characters refused in paths are those that ZooKeeper refuses, so that a tree which one store
takes can be moved to any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from bursar.errors import StoreError, TooLargeError, UsageError
from bursar.world import (
    DATA_MAX_BYTES,
    NAME_MAX_BYTES,
    OPERATIONS_MAX,
    SECOND_NS,
    TRANSACTION_MAX_BYTES,
    Check,
    CheckAbsent,
    Create,
    Delete,
    Operation,
    Set,
)

PATH_MAX_BYTES = 1024
SEQUENCE_DIGITS = 10
SEQUENCE_MAX = 2**31 - 1
"""The counter of a parent is a signed 32-bit number in ZooKeeper; past it, names would sort wrongly."""

OPERATION_OVERHEAD_BYTES = 50
"""What one operation takes on ZooKeeper's wire besides its path and data. Counted in every store,
so that many small operations are bounded too."""

OPERATIONS_MIN = 60
"""No engine takes fewer operations in one transaction; one that is set up to is refused."""

TIMEOUT_MIN_NS = SECOND_NS // 10
TIMEOUT_MAX_NS = 3600 * SECOND_NS

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def parent_of(path: str) -> str:
    """The path above: "/a" for "/a/b", "/" for "/a"."""
    return path[: path.rindex("/")] or "/"


def name_of(path: str) -> str:
    """The last segment: "b" for "/a/b"."""
    return path[path.rindex("/") + 1 :]


@lru_cache(maxsize=4096)
def check_path(path: str) -> int:
    """The length of a valid path in bytes. Raises UsageError, saying what is wrong with it."""
    if not isinstance(path, str):
        raise UsageError(f"a path is a string such as '/rates/cache', not {type(path).__name__}")
    if not path.startswith("/"):
        raise UsageError(f"path {path[:80]!r} does not begin with '/': write it from the root")
    found = _FORBIDDEN.search(path)
    if found is not None:
        raise UsageError(
            f"path {path[:80]!r} has {found.group()!r} at position {found.start()}: "
            "leave out NUL, control and private characters (percent-encode names from outside)"
        )
    size = len(path.encode())
    if size > PATH_MAX_BYTES:
        raise UsageError(f"path {path[:40]!r}... has {size} bytes, at most {PATH_MAX_BYTES} are taken")
    if path != "/":
        _check_segments(path)
    return size


def _check_segments(path: str) -> None:
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise UsageError(f"path {path[:80]!r} has the segment {name!r}: give every segment a name")
        if len(name.encode()) > NAME_MAX_BYTES:
            raise UsageError(
                f"path {path[:40]!r}... has a segment of {len(name.encode())} bytes, "
                f"at most {NAME_MAX_BYTES} are taken: use a digest of long names"
            )


def check_operations(operations: Sequence[Operation], operations_max: int = OPERATIONS_MAX) -> None:
    """Refuse what no store would take. Raises UsageError or TooLargeError; nothing was sent."""
    if len(operations) > operations_max:
        raise TooLargeError(
            f"the transaction has {len(operations)} operations, this store takes {operations_max}: split it"
        )
    total = 0
    for position, operation in enumerate(operations):
        try:
            total += _check_operation(operation)
        except StoreError as error:
            error.position = position
            raise
    if total > TRANSACTION_MAX_BYTES:
        raise TooLargeError(
            f"the transaction carries {total} bytes in {len(operations)} operations, at most "
            f"{TRANSACTION_MAX_BYTES} are taken: split it"
        )


def _check_operation(operation: Operation) -> int:
    """The bytes that the operation counts for."""
    if not isinstance(operation, Create | Set | Delete | Check | CheckAbsent):
        raise UsageError(f"{operation!r:.80} is no store operation: use those of bursar.world")
    size = check_path(operation.path) + OPERATION_OVERHEAD_BYTES
    if isinstance(operation, Create | Set):
        size += _check_data(operation)
    if isinstance(operation, Set | Delete | Check):
        _check_version(operation)
    if isinstance(operation, Delete) and operation.path == "/":
        raise UsageError("the root cannot be deleted")
    return size


def _check_data(operation: Create | Set) -> int:
    if not isinstance(operation.data, bytes):
        raise UsageError(f"{operation.path}: data is bytes, not {type(operation.data).__name__}: encode it")
    size = len(operation.data)
    if size > DATA_MAX_BYTES:
        raise TooLargeError(
            f"{operation.path}: {size} bytes of data, at most {DATA_MAX_BYTES} are taken: "
            "split it over several nodes"
        )
    return size


def _check_version(operation: Set | Delete | Check) -> None:
    version = operation.version
    if version is not None and (not isinstance(version, int) or version < 0):
        raise UsageError(f"{operation.path}: version {version!r} is neither None nor a whole number from 0")


def check_timeout(timeout_ns: int) -> int:
    """The timeout of a session, if it makes sense."""
    if not TIMEOUT_MIN_NS <= timeout_ns <= TIMEOUT_MAX_NS:
        raise UsageError(
            f"a session timeout of {timeout_ns / SECOND_NS} s is not between "
            f"{TIMEOUT_MIN_NS / SECOND_NS} s and {TIMEOUT_MAX_NS / SECOND_NS:.0f} s"
        )
    return timeout_ns
