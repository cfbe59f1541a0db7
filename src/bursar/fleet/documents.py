"""The policy as a document in the store: versions, each a record that points to pieces of text.

What is kept is the text that people wrote, with their comments. `store` and `[daemon]` in it are a
node's own business and count for nothing here. A version is written in two steps: its pieces, which
are named by what is in them, so that writing them twice is writing them once; then, in one
transaction, the version, the head that points to it, and the line of the audit.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bursar.errors import FormatError, NodeExistsError, NodeMissingError, UsageError, VersionError
from bursar.fleet import audit, layout
from bursar.fleet.layout import CHUNKS, HEAD, VERSIONS, Head, Version
from bursar.policy import Policy, parse
from bursar.policy.reading import read_table
from bursar.world import Check, Create, Operation, Set, Stat, Store

SCHEMA = 2
"""Of the language that policies are written in. Raised when a key is added: a node that runs an older
build could not read a policy that uses it."""

CHUNK_BYTES = 256 * 1024
CHUNKS_MAX = 64
HISTORY_MAX = 200
"""Versions that are kept."""


class ConflictError(UsageError):
    """Somebody else changed the policy meanwhile. Nothing was changed here."""


@dataclass(frozen=True)
class Document:
    """One version and its text."""

    version: Version
    text: str

    @property
    def source(self) -> str:
        return f"policy version {self.version.number}"

    @cached_property
    def table(self) -> dict[str, Any]:
        """What is written there, not checked."""
        return read_table(self.text, self.source)

    @cached_property
    def policy(self) -> Policy:
        """Raises PolicyError: this build does not understand it."""
        return parse(self.text, self.source)


async def read_head(store: Store) -> tuple[Head, Stat] | None:
    """What is in force; None before the first policy was applied."""
    return await layout.fetch(store, HEAD, Head)


async def read_document(store: Store, number: int | None = None) -> Document | None:
    """A version, the one in force unless told; None if there is none in force. Raises UsageError for
    one that is not kept, FormatError for one that is damaged."""
    if number is None:
        found = await read_head(store)
        if found is None:
            return None
        number = found[0].version
    return await _read_version(store, number)


async def _read_version(store: Store, number: int) -> Document:
    found = await layout.fetch(store, layout.version_path(number), Version)
    if found is None:
        raise UsageError(f"there is no version {number} of the policy; `bursar history` lists those kept")
    version = found[0]
    data = b"".join([await _read_chunk(store, digest) for digest in version.chunks])
    if hashlib.sha256(data).hexdigest() != version.digest:
        raise FormatError(f"policy version {number} in the store is damaged; apply the policy again")
    return Document(version, data.decode())


async def _read_chunk(store: Store, digest: str) -> bytes:
    try:
        data, _ = await store.get(f"{CHUNKS}/{digest}")
        return zlib.decompressobj().decompress(data, CHUNK_BYTES)
    except (NodeMissingError, zlib.error) as error:
        raise FormatError(f"a piece of the policy is missing in the store, {digest}: {error}") from error


async def list_versions(store: Store) -> list[Version]:
    """Those kept, the newest first."""
    try:
        names = await store.children(VERSIONS)
    except NodeMissingError:
        return []
    found = [await layout.fetch(store, f"{VERSIONS}/{name}", Version) for name in reversed(names)]
    return [each[0] for each in found if each is not None]


async def write_document(
    store: Store,
    text: str,
    *,
    by: str,
    at_ns: int,
    origin: str = "apply",
    note: str = "",
    expected: int | None = None,
) -> Version:
    """Make this text the policy in force. `expected` is the version that it was made from, None for
    whichever is in force. Checks nothing but that: see `bursar.fleet.changes`. Raises ConflictError."""
    await layout.prepare(store)
    await store.sync()
    found = await read_head(store)
    head = Head(version=0) if found is None else found[0]
    if expected is not None and expected != head.version:
        raise _conflict(expected, head.version)
    data = text.encode()
    pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    digests = [await _write_chunk(store, piece) for piece in pieces]
    version = Version(
        number=head.version + 1,
        by=by,
        at_ns=at_ns,
        origin=origin,
        digest=hashlib.sha256(data).hexdigest(),
        chunks=tuple(digests),
        schema=SCHEMA,
        note=note,
    )
    placed = layout.write(Head(version=version.number, tenants=head.tenants))
    operations: list[Operation] = [
        Create(HEAD, placed) if found is None else Set(HEAD, placed, found[1].version),
        Create(layout.version_path(version.number), layout.write(version)),
        *(Check(f"{CHUNKS}/{digest}") for digest in dict.fromkeys(digests)),
        audit.record(by, at_ns, "policy", f"version {version.number}", note or origin, version.number),
    ]
    try:
        await store.transact(operations)
    except (VersionError, NodeExistsError) as error:
        raise _conflict(head.version, head.version + 1) from error
    await _forget_old(store, version.number)
    await audit.trim(store)
    return version


async def _write_chunk(store: Store, piece: bytes) -> str:
    digest = hashlib.sha256(piece).hexdigest()
    try:
        await store.create(f"{CHUNKS}/{digest}", zlib.compress(piece))
    except NodeExistsError:
        pass  # of an earlier version, or of an earlier try
    return digest


async def _forget_old(store: Store, newest: int) -> None:
    """Versions beyond those kept, and the pieces that only they were made of."""
    names = await store.children(VERSIONS)
    old = [name for name in names if int(name) <= newest - HISTORY_MAX]
    if not old:
        return
    for name in old:
        await layout.remove(store, f"{VERSIONS}/{name}")
    used = {digest for version in await list_versions(store) for digest in version.chunks}
    for digest in await store.children(CHUNKS):
        if digest not in used:
            await layout.remove(store, f"{CHUNKS}/{digest}")


def _conflict(expected: int, found: int) -> ConflictError:
    return ConflictError(
        f"the policy was changed meanwhile: version {found} is in force, and this was made from {expected}; "
        "look at `bursar diff` and apply it again"
    )
