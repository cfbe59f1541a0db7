"""What operations do to a tree, a second time and as plainly as possible: the independent judge of
the stores. A tree is a dict path -> (data, version, ephemeral); no revisions, no counters."""

from __future__ import annotations

import random

from bursar.errors import (
    EphemeralParentError,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    VersionError,
)
from bursar.world import Check, CheckAbsent, Create, Delete, Operation, Set

Tree = dict[str, tuple[bytes, int, bool]]
NAMES = ("a", "b", "c")


def above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def below(tree: Tree, path: str) -> list[str]:
    return sorted(p.rpartition("/")[2] for p in tree if p != "/" and above(p) == path)


def judge(tree: Tree, operation: Operation) -> type[Exception] | None:
    """Apply in place, or say which error it deserves."""
    path = operation.path
    if isinstance(operation, Create | CheckAbsent):
        if above(path) not in tree:
            return NodeMissingError
        if isinstance(operation, Create) and tree[above(path)][2]:
            return EphemeralParentError
        if path in tree:
            return NodeExistsError
        if isinstance(operation, Create):
            tree[path] = (operation.data, 0, operation.ephemeral)
        return None
    if path not in tree:
        return NodeMissingError
    if operation.version is not None and operation.version != tree[path][1]:
        return VersionError
    if isinstance(operation, Delete):
        if below(tree, path):
            return NotEmptyError
        del tree[path]
    elif isinstance(operation, Set):
        tree[path] = (operation.data, tree[path][1] + 1, tree[path][2])
    return None


def transact(tree: Tree, operations: list[Operation]) -> tuple[Tree, type[Exception] | None, int | None]:
    """The tree afterwards, and the error with its position."""
    new = dict(tree)
    for position, operation in enumerate(operations):
        error = judge(new, operation)
        if error is not None:
            return tree, error, position
    return new, None, None


def invent(chance: random.Random) -> Operation:
    """An operation on a small tree, so that most meet a node that matters."""
    depth = chance.choice((1, 1, 2, 2, 2, 3))
    path = "".join("/" + chance.choice(NAMES) for _ in range(depth))
    version = chance.choice((None, None, 0, 1))
    data = bytes([chance.randrange(256)])
    kind = chance.choice((Create, Create, Create, Set, Set, Delete, Delete, Check, CheckAbsent))
    if kind is Create:
        return Create(path, data, ephemeral=chance.random() < 0.2)
    if kind is Set:
        return Set(path, data, version)
    if kind is CheckAbsent:
        return CheckAbsent(path)
    return kind(path, version)
