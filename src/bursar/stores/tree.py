"""The tree as a plain book: nodes, sessions, one revision. No I/O, time is an argument.

The memory store and the simulator's store stand on it. Equal calls give equal trees, results and
order of notices: nothing here iterates a set or reads a clock.

Invariants (besides those of `draft`):
- an ephemeral node's owner is an open session;
- the revision grows by one with each change: a transaction that changed something, or the end of
  one session that left ephemeral nodes behind;
- a session id is never given twice;
- a call that raises changed nothing, except that overdue sessions have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bursar.errors import NodeMissingError, SessionExpiredError
from bursar.stores.bounds import check_operations, check_path, check_timeout, name_of, parent_of
from bursar.stores.draft import Draft, Node, Result
from bursar.world import Operation, Stat

Notice = Callable[[], None]
"""Called after a change; it must not call the tree."""

Key = TypeVar("Key")


@dataclass(slots=True)
class Session:
    """Who keeps ephemeral nodes alive, and until when it is overdue."""

    name: str
    timeout_ns: int
    expires_ns: int
    owned: dict[str, None]


class Tree:
    """Nodes by path, and the sessions that may change them.

    `transact` and `heartbeat` first end the sessions that are overdue at `now_ns`, so no call
    succeeds in the name of one. Reads do not ask for a session: `check_session` does.
    """

    def __init__(self) -> None:
        self.revision = 1
        self.sessions: dict[int, Session] = {}
        self._sessions_opened = 0
        self._nodes: dict[str, Node] = {"/": Node(b"", 0, 1, 1, 0, 0, 0)}
        self._names: dict[str, dict[str, None]] = {"/": {}}
        self._notices: dict[str, dict[int, Notice]] = {}
        self._ends: dict[int, dict[int, Notice]] = {}
        self._subscriptions = 0

    # Sessions

    def open_session(self, now_ns: int, timeout_ns: int, name: str = "") -> int:
        """Open a session and return its id."""
        check_timeout(timeout_ns)
        self._sessions_opened += 1
        session = self._sessions_opened
        self.sessions[session] = Session(name, timeout_ns, now_ns + timeout_ns, {})
        return session

    def heartbeat(self, now_ns: int, session: int) -> None:
        """The session was heard from. Raises SessionExpiredError."""
        self.expire_due(now_ns)
        entry = self._session(session)
        entry.expires_ns = max(entry.expires_ns, now_ns + entry.timeout_ns)

    def check_session(self, now_ns: int, session: int) -> None:
        """Raises SessionExpiredError if the session ended or is overdue. Changes nothing."""
        if self._session(session).expires_ns <= now_ns:
            raise SessionExpiredError(_over(session))

    def next_expiry_ns(self) -> int | None:
        """When the first open session will be overdue, None without sessions."""
        return min((entry.expires_ns for entry in self.sessions.values()), default=None)

    def expire_due(self, now_ns: int) -> list[int]:
        """End every overdue session; return their ids, oldest first."""
        due = [session for session, entry in self.sessions.items() if entry.expires_ns <= now_ns]
        for session in due:
            self.end_session(session)
        return due

    def end_session(self, session: int) -> None:
        """End a session, expired or closed: its ephemeral nodes go at a revision of their own.
        Nothing for one that has ended already."""
        entry = self.sessions.pop(session, None)
        if entry is None:
            return
        draft = Draft(self, session, self.revision + 1)
        draft.remove(list(entry.owned))
        self._write_out(draft)
        for notice in self._ends.pop(session, {}).values():
            notice()

    # Changes and reads

    def transact(self, now_ns: int, session: int, operations: Sequence[Operation]) -> list[Result]:
        """All or nothing, as `Store.transact`."""
        check_operations(operations)
        self.expire_due(now_ns)
        self._session(session)
        draft = Draft(self, session, self.revision + 1)
        results = draft.apply(operations)
        self._write_out(draft)
        return results

    def read(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def walk(self) -> list[tuple[str, Node]]:
        """Every node, by its path."""
        return sorted(self._nodes.items())

    def get(self, path: str) -> tuple[bytes, Stat]:
        node = self._expect(path)
        return node.data, node.stat()

    def exists(self, path: str) -> Stat | None:
        check_path(path)
        node = self._nodes.get(path)
        return None if node is None else node.stat()

    def children(self, path: str) -> list[str]:
        self._expect(path)
        return sorted(self._names[path])

    # Notices

    def subscribe(self, path: str, notice: Notice) -> Callable[[], None]:
        """Call `notice` after each change of the node's data, existence or list of children.
        Returns what ends the subscription."""
        check_path(path)
        return self._subscribe(self._notices, path, notice)

    def subscribe_end(self, session: int, notice: Notice) -> Callable[[], None]:
        """Call `notice` once, when the session has ended. Returns what ends the subscription."""
        self._session(session)
        return self._subscribe(self._ends, session, notice)

    def _subscribe(self, table: dict[Key, dict[int, Notice]], key: Key, notice: Notice) -> Callable[[], None]:
        self._subscriptions += 1
        number = self._subscriptions
        table.setdefault(key, {})[number] = notice

        def end() -> None:
            notices = table.get(key, {})
            notices.pop(number, None)
            if not notices:
                table.pop(key, None)

        return end

    def _session(self, session: int) -> Session:
        entry = self.sessions.get(session)
        if entry is None:
            raise SessionExpiredError(_over(session))
        return entry

    def _expect(self, path: str) -> Node:
        check_path(path)
        node = self._nodes.get(path)
        if node is None:
            raise NodeMissingError(f"{path}: no such node")
        return node

    def _write_out(self, draft: Draft) -> None:
        if not draft.touched:
            return
        self.revision = draft.revision
        for path, node in draft.changes.items():
            self._place(path, node)
        for path in draft.touched:
            for notice in list(self._notices.get(path, {}).values()):
                notice()

    def _place(self, path: str, node: Node | None) -> None:
        old = self._nodes.get(path)
        if old is not None and old.owner and old.owner in self.sessions:
            del self.sessions[old.owner].owned[path]
        if node is None:
            self._nodes.pop(path, None)
            self._names.pop(path, None)
        else:
            self._nodes[path] = node
            self._names.setdefault(path, {})
            if node.owner:
                self.sessions[node.owner].owned[path] = None
        if path != "/":
            self._list(path, node is not None)

    def _list(self, path: str, present: bool) -> None:
        """Enter a name in its parent's list or strike it out. The parent may be gone by now, or
        not yet there: a transaction's changes come in the order in which paths were first used."""
        parent = parent_of(path)
        if present:
            self._names.setdefault(parent, {})[name_of(path)] = None
        elif parent in self._names:
            self._names[parent].pop(name_of(path), None)


def _over(session: int) -> str:
    return f"session {session} is over, its ephemeral nodes are gone: renew() opens a new one"
