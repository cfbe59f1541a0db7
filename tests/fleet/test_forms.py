"""One form of the store for all its nodes: a build of another is refused by name, with the remedy."""

from __future__ import annotations

import msgspec
import pytest

from bursar.errors import UsageError
from bursar.fleet import layout
from bursar.fleet.copying import copy
from bursar.fleet.identity import adopt, check_form, check_identity, identify, read_identity
from bursar.fleet.layout import BEFORE_FORMS, FORM, IDENTITY, Identity
from bursar.runtime.clock import BootClock
from bursar.stores.memory import MemoryStore
from bursar.stores.tree import Tree
from bursar.world import SECOND_NS, Store

OLDER = Identity(uuid="first", epoch=3)


async def use_before_forms(store: Store) -> None:
    """As a build did that knew of none."""
    await layout.prepare(store)
    await store.create(BEFORE_FORMS, layout.write(OLDER))


async def test_a_store_of_an_older_form_is_refused_until_it_is_adopted(store: Store) -> None:
    await use_before_forms(store)
    found = await identify(store, "second")
    assert found == OLDER
    with pytest.raises(UsageError, match=r"is of form 1.*Stop every node.*store adopt --store the-store"):
        check_form(found, "the-store")
    adopted = await adopt(store, None, by="ann", at_ns=7)
    assert (adopted.uuid, adopted.epoch, adopted.form) == ("first", 4, FORM)
    assert await identify(store, "second") == adopted
    check_form(adopted, "the-store")


async def test_a_store_of_a_newer_form_is_refused_and_not_adopted(store: Store) -> None:
    await identify(store, "first")
    newer = Identity(uuid="first", form=FORM + 1)
    await store.set(IDENTITY, layout.write(newer))
    found = await identify(store, "second")
    with pytest.raises(UsageError, match=rf"is of form {FORM + 1}.*Upgrade this one"):
        check_form(found, "the-store")
    with pytest.raises(UsageError, match="Upgrade this one"):
        await adopt(store, None, by="ann", at_ns=7)
    assert await read_identity(store) == newer


@pytest.mark.parametrize("adopted", [False, True])
async def test_a_build_from_before_forms_finds_the_store_sealed(store: Store, adopted: bool) -> None:
    if adopted:
        await use_before_forms(store)
        await adopt(store, None, by="ann", at_ns=7)
    else:
        await identify(store, "first")
    data, _ = await store.get(BEFORE_FORMS)
    with pytest.raises(UsageError, match=rf"was copied to form {FORM}.*upgrade this node"):
        check_identity(OLDER, msgspec.json.decode(data, type=Identity), "the-store", "a-state")


async def test_a_store_of_an_older_form_is_not_copied(store: Store) -> None:
    await use_before_forms(store)
    target = MemoryStore(Tree(), BootClock(), timeout_ns=SECOND_NS)
    with pytest.raises(UsageError, match="is of form 1"):
        await copy(store, target, "elsewhere", by="ann", at_ns=7)
    assert await read_identity(store) == OLDER
    await target.close()
