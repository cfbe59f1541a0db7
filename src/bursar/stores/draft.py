"""A transaction under way: what each operation does to a tree of nodes, written once.

A `Draft` reads through to a `Shelf` (a dict, or rows of a database) and keeps what it changes to
itself. An operation that fails raises and the draft is thrown away, so the shelf never holds half
a transaction; a draft that went through is written out by its owner.

Invariants of a shelf that is changed through drafts alone:
- every node but the root has a parent, which is persistent;
- a node's `children` is the number of nodes right below it;
- a node's `counter` never falls while the node lives, so no sequential name is given twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bursar.errors import (
    EphemeralParentError,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    StoreError,
    VersionError,
)
from bursar.stores.bounds import SEQUENCE_DIGITS, SEQUENCE_MAX, parent_of
from bursar.world import Check, Create, Delete, Operation, Set, Stat

Result = str | Stat | None


class Node(NamedTuple):
    """One node. `counter` is the number that its next sequential child gets. (A tuple, for it is
    made twice in every change, and a frozen dataclass takes four times as long.)"""

    data: bytes
    version: int
    created: int
    modified: int
    owner: int
    children: int
    counter: int

    def stat(self) -> Stat:
        return Stat(self.version, self.created, self.modified, self.owner, self.children)


class Shelf(Protocol):
    """Where nodes are kept, by path."""

    def read(self, path: str) -> Node | None: ...


class Draft:
    """Operations of one session at one revision, not yet written.

    changes     path -> the node as it will be, None for deleted
    asked       the path of each operation so far
    touched     every path whose data, existence or list of children changed, in order
    """

    def __init__(self, shelf: Shelf, session: int, revision: int) -> None:
        self.shelf = shelf
        self.session = session
        self.revision = revision
        self.changes: dict[str, Node | None] = {}
        self.asked: list[str] = []
        self.touched: dict[str, None] = {}

    def apply(self, operations: Sequence[Operation]) -> list[Result]:
        """A result for each. Raises the first failing operation's error with its `position`."""
        results: list[Result] = []
        for position, operation in enumerate(operations):
            self.asked.append(operation.path)
            try:
                results.append(self._apply(operation))
            except StoreError as error:
                error.position = position
                raise
        return results

    def remove(self, paths: Sequence[str]) -> None:
        """Delete nodes that have no children: what a session leaves behind."""
        for path in paths:
            self._delete(Delete(path))

    def _apply(self, operation: Operation) -> Result:
        if isinstance(operation, Set):
            return self._set(operation)
        if isinstance(operation, Create):
            return self._create(operation)
        if isinstance(operation, Delete):
            self._delete(operation)
        elif isinstance(operation, Check):
            self._expect(operation.path, operation.version)
        else:
            self._expect_absent(operation.path)
        return None

    def _create(self, operation: Create) -> str:
        path = operation.path
        parent_path = "/" if path == "/" else parent_of(path)
        parent = self._expect_parent(parent_path, path)
        counter = parent.counter
        if operation.sequential:
            if counter > SEQUENCE_MAX:
                raise StoreError(f"{parent_path}: {counter} sequential names were given, use a new parent")
            path = f"{path}{counter:0{SEQUENCE_DIGITS}d}"
            counter += 1
        if self._read(path) is not None:
            raise NodeExistsError(f"{path}: exists already")
        owner = self.session if operation.ephemeral else 0
        node = Node(operation.data, 0, self.revision, self.revision, owner, 0, 0)
        self._write(path, node)
        self._write(parent_path, parent._replace(children=parent.children + 1, counter=counter))
        return path

    def _set(self, operation: Set) -> Stat:
        node = self._expect(operation.path, operation.version)
        node = Node(
            operation.data, node.version + 1, node.created, self.revision, *node[4:]
        )  # not _replace: it takes three times as long
        self._write(operation.path, node)
        return node.stat()

    def _delete(self, operation: Delete) -> None:
        path = operation.path
        node = self._expect(path, operation.version)
        if node.children:
            raise NotEmptyError(f"{path}: has {node.children} children, delete them first")
        self._write(path, None)
        parent = self._expect(parent_of(path), None)
        self._write(parent_of(path), parent._replace(children=parent.children - 1))

    def _expect(self, path: str, version: int | None) -> Node:
        node = self._read(path)
        if node is None:
            raise NodeMissingError(f"{path}: no such node")
        if version is not None and node.version != version:
            raise VersionError(f"{path}: is at version {node.version}, not {version}: read it again")
        return node

    def _expect_parent(self, parent_path: str, path: str) -> Node:
        parent = self._read(parent_path)
        if parent is None:
            raise NodeMissingError(f"{path}: its parent {parent_path} is missing, create it first (ensure)")
        if parent.owner:
            raise EphemeralParentError(f"{path}: its parent {parent_path} is ephemeral, make it persistent")
        return parent

    def _expect_absent(self, path: str) -> None:
        if path != "/" and self._read(parent_of(path)) is None:
            raise NodeMissingError(f"{path}: its parent is missing, create it first (ensure)")
        if self._read(path) is not None:
            raise NodeExistsError(f"{path}: exists already")

    def _read(self, path: str) -> Node | None:
        if path in self.changes:
            return self.changes[path]
        return self.shelf.read(path)

    def _write(self, path: str, node: Node | None) -> None:
        self.changes[path] = node
        self.touched[path] = None
