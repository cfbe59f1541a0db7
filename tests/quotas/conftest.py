from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from quota_town import Town


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path)
    yield town
    for name in list(town.worlds):
        if name in town.resources:
            await town.close(name)
        else:
            await town.worlds[name].close()
