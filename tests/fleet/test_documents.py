"""The policy as a document: versions, pieces, and two people who apply at the same time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from texts import BOTH, CACHE, LLM

from bursar.errors import FormatError, UsageError
from bursar.fleet import audit, documents, layout
from bursar.fleet.documents import SCHEMA, ConflictError, read_document, write_document
from bursar.policy.schema import make_schema
from bursar.world import Store


async def test_a_store_without_a_policy_has_none(store: Store) -> None:
    assert await read_document(store) is None
    assert await documents.list_versions(store) == []


async def test_what_is_applied_is_read_back_as_it_was_written(store: Store) -> None:
    version = await write_document(store, BOTH, by="ann", at_ns=5, note="first")
    found = await read_document(store)
    assert found is not None and found.text == BOTH and found.version == version
    assert (version.number, version.by, version.note) == (1, "ann", "first")
    assert list(found.policy.resources) == ["cache", "llm"]


async def test_every_version_can_be_read_and_is_listed_newest_first(store: Store) -> None:
    for text in (CACHE, LLM, BOTH):
        await write_document(store, text, by="ann", at_ns=0)
    assert [version.number for version in await documents.list_versions(store)] == [3, 2, 1]
    second = await read_document(store, 2)
    assert second is not None and second.text == LLM
    with pytest.raises(UsageError, match="no version 9"):
        await read_document(store, 9)


async def test_a_text_larger_than_a_node_is_kept_in_pieces_that_versions_share(store: Store) -> None:
    large = BOTH + "".join(f"# {number:080d}\n" for number in range(20_000))
    await write_document(store, large, by="ann", at_ns=0)
    pieces = len(await store.children(layout.CHUNKS))
    assert pieces > 5
    await write_document(store, large + "# one more\n", by="ann", at_ns=0)
    assert len(await store.children(layout.CHUNKS)) == pieces + 1
    found = await read_document(store)
    assert found is not None and found.text == large + "# one more\n"


async def test_only_one_of_two_who_apply_from_the_same_version_succeeds(store: Store) -> None:
    await write_document(store, CACHE, by="ann", at_ns=0)
    outcomes = await asyncio.gather(
        write_document(store, BOTH, by="ann", at_ns=0, expected=1),
        write_document(store, LLM, by="bob", at_ns=0, expected=1),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError", "Version"]
    with pytest.raises(ConflictError, match="version 2 is in force, and this was made from 1"):
        await write_document(store, CACHE, by="cid", at_ns=0, expected=1)


async def test_a_damaged_document_is_named_and_not_used(store: Store) -> None:
    version = await write_document(store, BOTH, by="ann", at_ns=0)
    await store.set(f"{layout.CHUNKS}/{version.chunks[0]}", b"something else")
    with pytest.raises(FormatError, match="policy"):
        await read_document(store)


async def test_old_versions_and_their_pieces_are_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "HISTORY_MAX", 3)
    for number in range(6):
        await write_document(store, f"{CACHE}# {number}\n", by="ann", at_ns=0)
    assert [version.number for version in await documents.list_versions(store)] == [6, 5, 4]
    assert len(await store.children(layout.CHUNKS)) == 3


async def test_every_version_has_its_line_in_the_audit(store: Store) -> None:
    await write_document(store, CACHE, by="ann", at_ns=7, note="why not")
    entries = await audit.list_entries(store)
    assert [(each.by, each.what, each.name, each.detail, each.at_ns) for each in entries] == [
        ("ann", "policy", "version 1", "why not", 7)
    ]


KEYS = {2: "21c96477ea7d524c"}
"""Of the keys that policies of each form may have: those of a form that nodes may run do not change."""


def list_keys(schema: Any, path: str = "") -> Iterator[str]:
    if isinstance(schema, Mapping):
        for name in schema.get("properties", {}):
            yield f"{path}.{name}"
        for name, below in schema.items():
            yield from list_keys(below, f"{path}.{name}")
    elif isinstance(schema, list):
        for number, below in enumerate(schema):
            yield from list_keys(below, f"{path}.{number}")


def test_a_key_is_added_together_with_a_new_form_of_the_policy() -> None:
    digest = hashlib.sha256("\n".join(sorted(set(list_keys(make_schema())))).encode()).hexdigest()[:16]
    assert KEYS.get(SCHEMA) == digest, (
        "the policy has other keys than before, which a node of an earlier build could not read: raise "
        f"SCHEMA in bursar.fleet.documents, and write {digest} here for it"
    )
