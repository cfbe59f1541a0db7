"""Who changed what, when: one line a change, written by the transaction that makes it."""

from __future__ import annotations

from bursar.errors import NodeMissingError
from bursar.fleet import layout
from bursar.fleet.layout import AUDIT, Record
from bursar.world import Create, Store


class Entry(Record, frozen=True, kw_only=True):
    """`what` is the sort of thing ("policy", "tenant", "token", "top-up", "fence", "release"), `name`
    which one, `detail` what became of it, `version` the policy's afterwards. `at_ns`: wall time."""

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


async def list_entries(store: Store) -> list[Entry]:
    """All that are kept, the oldest first."""
    try:
        names = await store.children(AUDIT)
    except NodeMissingError:
        return []
    found: list[Entry] = []
    for name in names:
        fetched = await layout.fetch(store, f"{AUDIT}/{name}", Entry)
        if fetched is not None:
            found.append(_number(fetched[0], int(name[1:])))
    return found


def _number(entry: Entry, number: int) -> Entry:
    return Entry(**{**{name: getattr(entry, name) for name in entry.__struct_fields__}, "number": number})
