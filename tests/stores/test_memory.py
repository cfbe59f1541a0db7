from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bursar.errors import NodeMissingError, SessionExpiredError, UsageError
from bursar.runtime.clock import BootClock
from bursar.stores import open_store
from bursar.stores.memory import MemoryStore
from bursar.stores.tree import Tree
from bursar.world import SECOND_NS, Create, Set, Store

from .contract import TIMEOUT_NS, StoreContract


class MemoryVenue:
    patience_s = 1.0

    def __init__(self) -> None:
        self.clock = BootClock()
        self.tree = Tree()
        self.stores: list[MemoryStore] = []

    async def open(self, timeout_ns: int = TIMEOUT_NS) -> MemoryStore:
        self.stores.append(MemoryStore(self.tree, self.clock, timeout_ns=timeout_ns))
        return self.stores[-1]

    async def expire(self, store: Store) -> None:
        self.tree.sessions[store.session].expires_ns = 0
        self.tree.expire_due(self.clock.now())


@pytest.fixture
async def venue() -> AsyncIterator[MemoryVenue]:
    venue = MemoryVenue()
    yield venue
    for store in venue.stores:
        await store.close()


class TestMemoryStore(StoreContract):
    pass


class StillClock:
    """Time that moves only when told to; sleepers never wake."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now(self) -> int:
        return self.time_ns

    def origin(self) -> str:
        return ""

    def wall(self) -> int:
        return self.time_ns

    async def sleep(self, duration_ns: int) -> None:
        import asyncio

        await asyncio.Event().wait()


async def test_a_session_without_heartbeats_ends_exactly_at_its_timeout() -> None:
    clock, tree = StillClock(), Tree()
    store = MemoryStore(tree, clock, timeout_ns=SECOND_NS)
    await store.create("/e", ephemeral=True)
    clock.time_ns = SECOND_NS - 1
    assert await store.exists("/e") is not None
    clock.time_ns = SECOND_NS
    with pytest.raises(SessionExpiredError):
        await store.exists("/e")
    with pytest.raises(SessionExpiredError):
        await store.set("/e", b"")
    assert tree.exists("/e") is None
    await store.close()


async def test_memory_trees_are_shared_by_name_alone() -> None:
    clock = BootClock()
    one, two, other, nameless = [
        await open_store(url, clock=clock) for url in ("memory://x", "memory://x", "memory://y", "memory://")
    ]
    await one.create("/a")
    assert await two.exists("/a") is not None
    assert await other.exists("/a") is None and await nameless.exists("/a") is None
    for store in (one, two, other, nameless):
        await store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://x", "unknown scheme"),
        ("store.db", "unknown scheme"),
        ("memory://x/y", "a name at most"),
        ("sqlite://store.db", "absolute path"),
        ("sqlite:///", "absolute path"),
        ("sqlite:///a?mode=ro", "%3f"),
        ("memory://[", "write memory://"),
    ],
)
async def test_a_url_that_makes_no_sense_says_what_to_write(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        await open_store(url, clock=BootClock())


async def test_a_timeout_that_makes_no_sense_is_refused() -> None:
    for timeout_ns in (0, -1, SECOND_NS // 1000, 10**6 * SECOND_NS):
        with pytest.raises(UsageError, match="timeout"):
            await open_store("memory://", clock=BootClock(), timeout_ns=timeout_ns)


def test_the_tree_is_the_same_for_the_same_calls() -> None:
    def run() -> tuple[object, list[str]]:
        tree, heard = Tree(), []
        session = tree.open_session(0, SECOND_NS)
        for path in ("/", "/a", "/a/b"):
            tree.subscribe(path, lambda path=path: heard.append(path))
        tree.transact(1, session, [Create("/a"), Create("/a/b", ephemeral=True), Set("/a", b"1")])
        assert tree.next_expiry_ns() == SECOND_NS
        assert tree.expire_due(SECOND_NS) == [session]
        return (tree.revision, tree.get("/a"), tree.children("/a")), heard

    first, second = run(), run()
    assert first == second
    assert first[1] == ["/a", "/", "/a/b", "/a/b", "/a"]


def test_a_subscription_ends_when_told_to() -> None:
    tree, heard = Tree(), []
    session = tree.open_session(0, SECOND_NS)
    end = tree.subscribe("/", lambda: heard.append(1))
    end_session = tree.subscribe_end(session, lambda: heard.append(2))
    end()
    end_session()
    tree.transact(0, session, [Create("/a")])
    tree.end_session(session)
    assert heard == []
    with pytest.raises(NodeMissingError):
        tree.get("/b")
