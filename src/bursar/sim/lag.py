"""Reads that lag behind: what a replica of the store shows which has not heard of the latest.

The contract allows it: a read sees the latest change that its own session made or was told of,
perhaps no later one, until `sync`. A protocol that takes a read for the present is wrong, and
here it is found out.
"""

from __future__ import annotations

import random
from collections import deque

from bursar.errors import NodeMissingError
from bursar.stores.bounds import check_path
from bursar.stores.tree import Tree
from bursar.world import Stat

PAGES_MAX = 8
"""How many changes a read may lag behind."""

Entry = tuple[bytes, Stat, list[str]]


class Page:
    """The whole tree as it was at one revision, to be read only."""

    def __init__(self, tree: Tree) -> None:
        self.revision = tree.revision
        self._entries: dict[str, Entry] = {}
        self._copy(tree, "/")

    def _copy(self, tree: Tree, path: str) -> None:
        names = tree.children(path)
        data, stat = tree.get(path)
        self._entries[path] = (data, stat, names)
        for name in names:
            self._copy(tree, f"{path.rstrip('/')}/{name}")

    def get(self, path: str) -> tuple[bytes, Stat]:
        data, stat, _ = self._expect(path)
        return data, stat

    def exists(self, path: str) -> Stat | None:
        check_path(path)
        found = self._entries.get(path)
        return None if found is None else found[1]

    def children(self, path: str) -> list[str]:
        return list(self._expect(path)[2])

    def _expect(self, path: str) -> Entry:
        check_path(path)
        found = self._entries.get(path)
        if found is None:
            raise NodeMissingError(f"{path}: no such node")
        return found


View = Page | Tree
"""What a read looks at."""


class Lag:
    """The latest pages, and what each session must not be shown less than."""

    def __init__(self, tree: Tree, stream: random.Random) -> None:
        self._tree = tree
        self._stream = stream
        self._pages: deque[Page] = deque(maxlen=PAGES_MAX)
        self._seen: dict[int, int] = {}

    def keep(self) -> None:
        """Keep the tree as it is now for later reads, if it is not kept already."""
        if not self._pages or self._pages[-1].revision != self._tree.revision:
            self._pages.append(Page(self._tree))

    def saw(self, session: int, revision: int | None = None) -> None:
        """The session made, read or was told of this revision, or of the latest."""
        known = self._tree.revision if revision is None else revision
        self._seen[session] = max(known, self._seen.get(session, 0))

    def pick(self, session: int, stale: bool) -> View:
        """What one read of this session looks at: the tree, or an older page if there is one."""
        view: View = self._tree
        if stale:
            seen = self._seen.get(session, 0)
            views: list[View] = [page for page in self._pages if page.revision >= seen]
            view = self._stream.choice([*views, self._tree])
        self.saw(session, view.revision)
        return view


def differs(view: View, tree: Tree, path: str) -> bool:
    """Whether this path has changed since."""
    return view.exists(path) != tree.exists(path) or (
        tree.exists(path) is not None and view.children(path) != tree.children(path)
    )
