"""The mark that a node and its store both keep, to tell when one of them was restored from a backup.

Every ten seconds the node writes a new number there, and keeps it in its state directory too. So whichever
of the two comes back as it was earlier is found out when the node starts: the store's mark is lower than
the node's, or higher. A number is a wall clock's time, raised above the one before: it is not written
twice, and says when. It is kept before it is written, so that a crash between leaves two, either of which
may stand in the store.

Both restored to one moment look as they did then, and nothing can tell. What is to be done then is for
people to know (docs/operations.md).
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from bursar.decoding import make_reader
from bursar.errors import JournalError, NodeExistsError, StoreUnknownError, UsageError, VersionError
from bursar.fleet import layout
from bursar.fleet.retries import persist
from bursar.runtime import logs
from bursar.runtime.world import LiveWorld
from bursar.world import SECOND_NS

MARK_FILE = "mark"
RENEW_NS = 10 * SECOND_NS

_read = make_reader(tuple[int, ...], "mark of a store", json=True)


class Mark:
    """Of one node that has a state directory; of one that has none there is none."""

    def __init__(self, world: LiveWorld, url: str) -> None:
        self._world = world
        self._url = url
        self._path = layout.mark_path(world.name)
        data = world.node.recall(MARK_FILE)
        self._known: tuple[int, ...] = () if data is None else _read(data)

    async def check(self) -> None:
        """Raises UsageError: the store, or the state directory, is an older copy."""
        if not self._known or self._world.node.folder is None:
            return
        found = await layout.fetch(self._world.store, self._path, int)
        mark = 0 if found is None else found[0]
        if mark not in self._known:
            raise UsageError(self._explain(mark))

    def _explain(self, mark: int) -> str:
        state = self._world.node.folder
        if mark > max(self._known):
            return (
                f"the state in {state} is a copy from {_say_when(max(self._known))}, and the node was up "
                f"until {_say_when(mark)}: what it handed out since is not in it. Restore the newest state; "
                "without it start with an empty directory under another name, and what it had counts as spent"
            )
        when = f"is as it was at {_say_when(mark)}" if mark else "has not heard of it"
        return (
            f"the store {self._url} was restored from a backup: the state in {state} is from "
            f"{_say_when(max(self._known))}, and the store {when}. Stop every node and run "
            f"`bursar store adopt --store {self._url} --state {state} --yes` to go on with it"
        )

    def forget(self) -> None:
        """The store was adopted: what it has is not compared any more."""
        self._keep(())

    async def renew(self) -> None:
        """Raises UsageError, and JournalError."""
        if self._world.node.folder is not None:
            await persist(self._world, self._renew)

    async def _renew(self) -> None:
        store = self._world.store
        found = await layout.fetch(store, self._path, int)
        mark = 0 if found is None else found[0]
        if self._known and mark not in self._known:
            raise UsageError(self._explain(mark))
        newer = max(self._world.clock.wall(), mark + 1)
        self._keep((mark, newer))
        try:
            if found is None:
                await store.create(self._path, layout.write(newer))
            else:
                await store.set(self._path, layout.write(newer), found[1].version)
        except (NodeExistsError, VersionError):
            raise StoreUnknownError(f"{self._path} was written meanwhile") from None
        self._keep((newer,))

    def _keep(self, marks: tuple[int, ...]) -> None:
        self._world.node.keep(MARK_FILE, msgspec.json.encode(marks))
        self._known = marks

    async def keep_renewing(self) -> None:
        while True:
            await self._world.clock.sleep(RENEW_NS)
            try:
                await self.renew()
            except JournalError as error:  # the disk is full: granting does not wait for this
                logs.warning("mark.kept", node=self._world.name, problem=str(error))


def _say_when(mark: int) -> str:
    return datetime.fromtimestamp(mark / SECOND_NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
