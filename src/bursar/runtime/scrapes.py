"""What a scrape of `/metrics` answers: the node's own figures, and those of each resource."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version

from bursar.resource.door import Resource
from bursar.runtime.exposition import CONTENT_TYPE, Exposition
from bursar.runtime.http_server import Answer
from bursar.runtime.metrics import ResourceMetrics
from bursar.runtime.slices import Steps, run_in_slices

Describe = Callable[[Exposition], None]


class Scrapes:
    """Makes answers, one at a time: whoever asks meanwhile is given the one being made."""

    def __init__(self, tenants_most: int) -> None:
        self._tenants_most = tenants_most
        self._metrics: dict[str, ResourceMetrics] = {}
        self._making: asyncio.Task[Answer] | None = None

    async def answer(self, resources: Mapping[str, Resource], describe: Describe) -> Answer:
        """`describe` adds what is counted beside the resources."""
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make(resources, describe))
        return await asyncio.shield(self._making)

    def close(self) -> None:
        if self._making is not None:
            self._making.cancel()

    async def _make(self, resources: Mapping[str, Resource], describe: Describe) -> Answer:
        text = Exposition()
        add_build(text)
        describe(text)
        self._metrics = {name: found for name, found in self._metrics.items() if name in resources}
        for name, resource in list(resources.items()):
            metrics = self._metrics.setdefault(name, ResourceMetrics(self._tenants_most))
            await run_in_slices(metrics.export(text, await resource.statistics()))
        return await run_in_slices(write_answer(text))


def write_answer(text: Exposition) -> Steps[Answer]:
    pieces = []
    for piece in text.write():
        pieces.append(piece)
        yield
    return Answer(200, CONTENT_TYPE, pieces)


def add_build(text: Exposition) -> None:
    text.add("bursar_build_info", "gauge", "always 1: what runs is in its labels", _find_build(), 1)


@cache
def _find_build() -> Mapping[str, str]:
    return {"version": version("bursar"), "python": platform.python_version()}
