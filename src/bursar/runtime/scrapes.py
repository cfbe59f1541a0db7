"""What a scrape of `/metrics` answers."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.metadata import version

from bursar.api.pages import Answer
from bursar.resource.door import Resource
from bursar.runtime.exposition import CONTENT_TYPE, Exposition
from bursar.runtime.metrics import ResourceMetrics
from bursar.runtime.slices import Steps, run_in_slices

Export = Callable[[Exposition], Awaitable[None]]


class Scrapes:
    """Makes answers of what `export` adds, one at a time: whoever asks meanwhile is given the one
    being made."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._making: asyncio.Task[Answer] | None = None

    async def answer(self) -> Answer:
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make())
        return await asyncio.shield(self._making)

    def close(self) -> None:
        if self._making is not None:
            self._making.cancel()

    async def _make(self) -> Answer:
        text = Exposition()
        text.add("bursar_build_info", "gauge", "always 1: what runs is in its labels", _find_build(), 1)
        await self._export(text)
        return await run_in_slices(_write(text))


class ResourcesMetrics:
    """The metrics of all resources, scrape by scrape."""

    def __init__(self, tenants_most: int) -> None:
        self._tenants_most = tenants_most
        self._metrics: dict[str, ResourceMetrics] = {}

    def of(self, name: str) -> ResourceMetrics:
        return self._metrics.setdefault(name, ResourceMetrics(self._tenants_most))

    async def export(self, text: Exposition, resources: Mapping[str, Resource]) -> None:
        self._metrics = {name: found for name, found in self._metrics.items() if name in resources}
        for name, resource in list(resources.items()):
            await run_in_slices(self.of(name).export(text, await resource.statistics()))


def _write(text: Exposition) -> Steps[Answer]:
    pieces = []
    for piece in text.write():
        pieces.append(piece)
        yield
    return Answer(200, CONTENT_TYPE, pieces)


@cache
def _find_build() -> Mapping[str, str]:
    return {"version": version("bursar"), "python": platform.python_version()}
