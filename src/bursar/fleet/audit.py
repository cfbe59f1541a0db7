"""Who changed what, when: one line a change, written by the transaction that makes it.

The newest `KEPT` lines stay. Whoever has made a change removes the oldest, some at a time, so that the
folder never has more children than a store takes.
"""

from __future__ import annotations

import asyncio

import msgspec

from bursar.errors import NodeMissingError, StoreError
from bursar.fleet import layout
from bursar.fleet.layout import AUDIT, Record
from bursar.world import Create, Store

KEPT = 5_000
SLACK = 100
"""So many more may stand there, so that not every change has to tidy up."""

DETAIL_MAX = 500
HERE = "local"
"""Who made a change, where nobody says: the program that bursar is embedded in."""

AT_ONCE = 50


SORTS = (
    "policy",
    "tenant",
    "token",
    "top-up",
    "limit",
    "adjust",
    "fence",
    "accept",
    "release",
    "node",
    "store",
)


class Entry(Record, frozen=True, kw_only=True):
    """`what` is one of `SORTS`, `name` which one, `detail` what became of it, `version` the policy's
    afterwards.
    `at_ns`: wall time. `by`: "token 7f3a (ops)", "certificate gateway", "local", "cli USER@HOST"."""

    by: str
    at_ns: int
    what: str
    name: str
    detail: str = ""
    version: int = 0
    number: int = 0


def record(by: str, at_ns: int, what: str, name: str, detail: str = "", version: int = 0) -> Create:
    """The operation that writes the line. `layout.prepare` must have made the folder."""
    entry = Entry(by=by, at_ns=at_ns, what=what, name=name, detail=detail, version=version)
    return Create(f"{AUDIT}/n", layout.write(entry), sequential=True)


async def list_entries(store: Store, most: int = KEPT + SLACK) -> list[Entry]:
    """The newest that are kept, at most so many; the oldest of them first."""
    try:
        names = (await store.children(AUDIT))[-most:]
    except NodeMissingError:
        return []
    found: list[Entry] = []
    for at in range(0, len(names), AT_ONCE):
        read = await asyncio.gather(*(_read(store, name) for name in names[at : at + AT_ONCE]))
        found += [entry for entry in read if entry is not None]
    return found


async def _read(store: Store, name: str) -> Entry | None:
    fetched = await layout.fetch(store, f"{AUDIT}/{name}", Entry)
    return None if fetched is None else msgspec.structs.replace(fetched[0], number=int(name[1:]))


async def trim(store: Store) -> None:
    """Remove lines beyond those kept, after a change. The change is made whatever becomes of this."""
    try:
        stat = await store.exists(AUDIT)
        if stat is None or stat.children <= KEPT + SLACK:
            return
        for name in (await store.children(AUDIT))[:-KEPT]:
            await layout.remove(store, f"{AUDIT}/{name}")
    except StoreError:
        return  # the next change finds them
