"""What is known of accounts: whoever waits for one is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bursar.errors import StoreError
from bursar.quotas.accounts import Opening
from bursar.quotas.registry import Registry
from bursar.world import Check


async def test_who_opens_an_account_by_terms_that_others_have_replaced_is_told_to_ask_again() -> None:
    unused: Any = None
    registry = Registry(unused, unused, unused, list)
    opening = Opening("acme", None, 5, False)
    older, newer = (Check("/policy/head", version) for version in (1, 2))
    first = asyncio.create_task(registry.open(opening, (older,)))
    await asyncio.sleep(0)
    second = asyncio.create_task(registry.open(opening, (newer,)))
    with pytest.raises(StoreError, match="open it again"):
        await asyncio.wait_for(first, 5)
    assert not second.done()
    second.cancel()
