from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bursar.runtime.clock import BootClock
from bursar.stores.memory import MemoryStore
from bursar.stores.tree import Tree
from bursar.world import SECOND_NS


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    opened = MemoryStore(Tree(), BootClock(), timeout_ns=10 * SECOND_NS)
    yield opened
    await opened.close()
