"""Changes as `apply` takes them, and what its rows say of each. (See `postgresql_schema`.)"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from bursar.errors import (
    EphemeralParentError,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    StoreError,
    StoreUnknownError,
    VersionError,
)
from bursar.stores.bounds import parent_of
from bursar.stores.draft import Result
from bursar.world import Check, CheckAbsent, Create, Delete, Operation, Set, Stat

_KINDS: dict[type[Operation], int] = {Create: 1, Set: 2, Delete: 3, Check: 4, CheckAbsent: 5}
EPHEMERAL, SEQUENTIAL = 1, 2


class Change(NamedTuple):
    """One transaction, from its making to its answer."""

    operations: tuple[Operation, ...]
    session: int
    made_ns: int
    reply: asyncio.Future[list[Result]]


def pack(group: Sequence[Change]) -> tuple[list[Any], ...]:
    """The arguments of `apply` after the session: where each change begins, and its operations."""
    starts, kinds, paths, parents, datas, versions, flags = [0], [], [], [], [], [], []
    for change in group:
        for operation in change.operations:
            path = operation.path
            kinds.append(_KINDS[type(operation)])
            paths.append(path)
            parents.append("/" if path == "/" else parent_of(path))
            datas.append(getattr(operation, "data", b""))
            versions.append(getattr(operation, "version", None))
            flags.append(
                operation.ephemeral * EPHEMERAL + operation.sequential * SEQUENTIAL
                if isinstance(operation, Create)
                else 0
            )
        starts.append(len(kinds))
    return starts, kinds, paths, parents, datas, versions, flags


def settle(group: Sequence[Change], rows: Sequence[Any]) -> bool:
    """Answer each change; False if the session is over. Raises StoreUnknownError for rows that are no answer,
    before anybody is answered."""
    try:
        found = _read_rows(group, rows)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreUnknownError(
            f"PostgreSQL's answer makes no sense ({error!r}): are its functions of this version? Read back"
        ) from error
    if found is None:
        return False
    results, failed = found
    for number, each in enumerate(group):
        if each.reply.done():
            continue  # the caller was cancelled: the change stands
        if number in failed:
            each.reply.set_exception(failed[number])
        else:
            each.reply.set_result(results[number])
    return True


def _read_rows(
    group: Sequence[Change], rows: Sequence[Any]
) -> tuple[list[list[Result]], dict[int, StoreError]] | None:
    """What each change brought, and which failed; None if the session is over."""
    results: list[list[Result]] = [
        [op.path if isinstance(op, Create) else None for op in change.operations] for change in group
    ]
    failed: dict[int, StoreError] = {}
    for change, at, what, version, created, modified, owner, children in rows:
        if change < 0:
            return None
        if what is None:
            results[change][at] = Stat(version, created, modified, owner, children)
        elif what.startswith("/"):
            results[change][at] = what
        else:
            failed[change] = _make_error(what[1:], group[change].operations[at], version)
            failed[change].position = at
    return results, failed


def _make_error(what: str, operation: Operation, number: int | None) -> StoreError:
    path = operation.path
    match what:
        case "exists":
            return NodeExistsError(f"{path}: exists already")
        case "missing":
            return NodeMissingError(f"{path}: no such node")
        case "parent":
            return NodeMissingError(f"{path}: its parent is missing, create it first (ensure)")
        case "ephemeral":
            return EphemeralParentError(f"{path}: its parent is ephemeral, make it persistent")
        case "version":
            asked = getattr(operation, "version", None)
            return VersionError(f"{path}: is at version {number}, not {asked}: read it again")
        case "children":
            return NotEmptyError(f"{path}: has {number} children, delete them first")
        case _:
            return StoreError(f"{parent_of(path)}: {number} sequential names were given, use a new parent")
