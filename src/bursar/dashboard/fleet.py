"""The figures of a whole fleet, found through any of its daemons.

Each daemon that answers says which nodes are up; those that nobody is connected to yet are connected
to. So one address is enough, and the fleet is still seen when the node at that address is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bursar.dashboard.source import Reading, Rows, put_together
from bursar.errors import BursarError
from bursar.fleet.layout import NodeRecord
from bursar.resource.wire import FleetTold
from bursar.runtime.client import Bursar
from bursar.runtime.figures import read_figures

CONNECT_TIMEOUT_S = 2.0
"""A node that does not answer holds up the others' figures no longer than this."""

RETRY_S = 5.0

TENANTS_READ = 500
"""Of each resource at each node: those that used most since it started. Others are found by name."""

Connect = Callable[[str], Awaitable[Bursar]]
"""Reaches a daemon by its address."""

T = TypeVar("T")


@dataclass
class Link:
    """A daemon that was connected to: `node` is who answers there, `head` the terms it had when it said
    which resources there are."""

    b: Bursar
    node: str = ""
    head: int | None = None


class FleetSource:
    """`seeds` are addresses of daemons; they stay, whatever the fleet says."""

    def __init__(self, seeds: Iterable[str], connect: Connect) -> None:
        self._seeds = tuple(dict.fromkeys(seeds))
        self._connect = connect
        self._links: dict[str, Link] = {}
        self._retry_at: dict[str, float] = {}
        self._problems: dict[str, str] = {}

    async def open(self) -> None:
        """Connect to the seeds. Raises BursarError if one does not answer."""
        try:
            for url in self._seeds:
                self._links[url] = Link(await self._connect(url))
        except BaseException:
            await self.close()
            raise

    async def read(self, find: Sequence[str] = ()) -> Reading:
        told = await self._ask(self._links)
        nodes = _join(told)
        links = {link.node for link in self._links.values() if link.node}
        found = [url for name, url in _addresses(nodes).items() if name not in links]
        wanted = [url for url in (*self._seeds, *found) if url not in self._links]
        await asyncio.gather(*(self._reach(url) for url in wanted))
        told |= await self._ask({url: self._links[url] for url in wanted if url in self._links})
        nodes = _join(told)
        await asyncio.gather(*(self._renew(url, nodes) for url in list(told)))
        rows = await self._count({told[url].name: self._links[url] for url in reversed(told)}, find)
        await self._forget(nodes)
        return put_together(rows, nodes, self._list_silent(nodes, rows))

    async def close(self) -> None:
        for link in self._links.values():
            await link.b.close()
        self._links.clear()

    # -- connections

    async def _reach(self, url: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._retry_at.get(url, now):
            return
        try:
            self._links[url] = Link(await self._connect(url))
            self._retry_at.pop(url, None)
            self._problems.pop(url, None)
        except BursarError as error:
            self._retry_at[url] = now + RETRY_S
            self._problems[url] = str(error)

    async def _renew(self, url: str, nodes: Mapping[str, NodeRecord]) -> None:
        """Under other terms a node may have other resources, which are told when one connects."""
        link, head = self._links[url], nodes[self._links[url].node].head
        if link.head is None:
            link.head = head
        elif link.head != head:
            b = await _try(self._connect(url), self._problems, url)
            if b is not None:
                await link.b.close()
                self._links[url] = Link(b, link.node, head)

    async def _forget(self, nodes: Mapping[str, NodeRecord]) -> None:
        """Those that left. A seed is asked again for ever."""
        for url, link in list(self._links.items()):
            if link.node and link.node not in nodes and url not in self._seeds:
                del self._links[url]
                self._problems.pop(url, None)
                await link.b.close()

    # -- asking

    async def _ask(self, links: Mapping[str, Link]) -> dict[str, FleetTold]:
        """Everyone at once; those that answered, in the order of the links."""
        asking = (_try(link.b.fleet(), self._problems, url) for url, link in links.items())
        answers = await asyncio.gather(*asking)
        told = {url: answer for url, answer in zip(links, answers, strict=True) if answer is not None}
        for url, answer in told.items():
            if links[url].node != answer.name:
                links[url].node, links[url].head = answer.name, None
        return told

    async def _count(self, links: Mapping[str, Link], find: Sequence[str]) -> dict[str, Rows]:
        """Of each node, once, however many addresses lead to it."""
        counting = (_try(_count_all(link.b, find), self._problems, node) for node, link in links.items())
        answers = await asyncio.gather(*counting)
        found = zip(links, answers, strict=True)
        return dict(sorted((node, rows) for node, rows in found if rows is not None))

    def _list_silent(self, nodes: Mapping[str, NodeRecord], counted: Mapping[str, Any]) -> dict[str, str]:
        """Nodes that can be asked and did not answer, with why; a seed that never did, by its address."""
        wanted = _addresses(nodes)
        for url in self._seeds:
            link = self._links.get(url)
            wanted.setdefault(link.node if link is not None and link.node else url, url)
        urls = {link.node: url for url, link in self._links.items()}
        return {
            name: next(
                (self._problems[key] for key in (urls.get(name, url), url, name) if key in self._problems),
                "it does not answer",
            )
            for name, url in wanted.items()
            if name not in counted
        }


async def _count_all(b: Bursar, find: Sequence[str]) -> Rows:
    return [
        (name, b.resource(name).kind, read_figures(await b.statistics(name, most=TENANTS_READ, find=find)))
        for name in b.resources
    ]


async def _try(work: Awaitable[T], problems: dict[str, str], key: str) -> T | None:
    """What it gives; None if it failed, with why among the problems."""
    try:
        answer = await work
    except BursarError as error:
        problems[key] = str(error)
        return None
    problems.pop(key, None)
    return answer


def _join(told: Mapping[str, FleetTold]) -> dict[str, NodeRecord]:
    """All nodes that anyone says are up; each as it says of itself, if it was asked."""
    nodes = {name: record for answer in told.values() for name, record in answer.nodes.items()}
    return dict(sorted((nodes | {each.name: each.nodes[each.name] for each in told.values()}).items()))


def _addresses(nodes: Mapping[str, NodeRecord]) -> dict[str, str]:
    return {name: f"bursar://{record.address}" for name, record in nodes.items() if record.address}
