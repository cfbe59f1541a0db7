"""The contract of `bursar.world.Store`, held by every store through one suite.

A store joins with a subclass of `StoreContract` and a fixture `venue`: a `Venue` on a tree that
is empty but for its root.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable
from typing import Any, Protocol

import pytest

from bursar.errors import (
    EphemeralParentError,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    SessionExpiredError,
    StoreError,
    TooLargeError,
    UsageError,
    VersionError,
)
from bursar.stores.bounds import OPERATIONS_MIN
from bursar.world import (
    DATA_MAX_BYTES,
    SECOND_NS,
    TRANSACTION_MAX_BYTES,
    Check,
    CheckAbsent,
    Clock,
    Create,
    Delete,
    Set,
    Stat,
    Store,
)

from . import reference

TIMEOUT_NS = 2 * SECOND_NS
BAD_PATHS = (
    "", "a", "a/b", "/a/", "//a", "/a//b", "/a\0b", "/\n", "/a/../b", "/.", "/\ud800", "/" + "x" * 256,
    "/abc" * 257, 7,
)  # fmt: skip


class Venue(Protocol):
    """patience_s    how long the store may take to tell of a change or of an ended session
    clock         the clock that the stores were given"""

    patience_s: float
    clock: Clock

    async def open(self, timeout_ns: int = TIMEOUT_NS) -> Store:
        """A further session on the same tree, closed by the venue at the end."""

    async def expire(self, store: Store) -> None:
        """Make the session die as one does whose heartbeats no longer arrive. Whether the store
        has noticed when this returns is open."""


async def soon(venue: Venue, wanted: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(wanted, venue.patience_s)


async def until_gone(venue: Venue, store: Store, path: str) -> None:
    async with asyncio.timeout(venue.patience_s):
        watch = await store.watch(path)
        while await store.exists(path) is not None:
            await watch.changed()
        watch.close()


class StoreContract:
    # Nodes

    async def test_a_created_node_is_read_back_with_its_stat(self, venue: Venue) -> None:
        store = await venue.open()
        assert await store.create("/a", b"\x00data\xff") == "/a"
        data, stat = await store.get("/a")
        assert data == b"\x00data\xff"
        assert (stat.version, stat.owner, stat.children) == (0, 0, 0)
        assert stat.created == stat.modified == await store.sync()
        assert await store.exists("/a") == stat

    async def test_the_root_exists_from_the_start(self, venue: Venue) -> None:
        store = await venue.open()
        assert await store.children("/") == []
        assert (await store.exists("/")) is not None
        with pytest.raises(NodeExistsError):
            await store.create("/")

    async def test_create_needs_a_free_name_below_a_persistent_node(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a")
        await store.create("/e", ephemeral=True)
        with pytest.raises(NodeExistsError, match="/a"):
            await store.create("/a")
        with pytest.raises(NodeMissingError):
            await store.create("/missing/b")
        with pytest.raises(EphemeralParentError):
            await store.create("/e/b")
        assert await store.children("/") == ["a", "e"]

    async def test_a_missing_node_is_named(self, venue: Venue) -> None:
        store = await venue.open()
        assert await store.exists("/a") is None
        for call in (store.get("/a"), store.children("/a"), store.set("/a", b""), store.delete("/a")):
            with pytest.raises(NodeMissingError, match="/a"):
                await call

    async def test_set_counts_versions_and_obeys_the_one_given(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a", b"0")
        created = (await store.get("/a"))[1].created
        first = await store.set("/a", b"1", 0)
        second = await store.set("/a", b"2")
        assert (first.version, second.version) == (1, 2)
        assert created == second.created < first.modified < second.modified
        with pytest.raises(VersionError):
            await store.set("/a", b"3", 1)
        assert await store.get("/a") == (b"2", second)

    async def test_delete_obeys_version_and_children(self, venue: Venue) -> None:
        store = await venue.open()
        await store.ensure("/a/b")
        with pytest.raises(NotEmptyError):
            await store.delete("/a")
        with pytest.raises(VersionError):
            await store.delete("/a/b", 1)
        await store.delete("/a/b", 0)
        await store.delete("/a")
        assert await store.children("/") == []

    async def test_children_are_names_in_order(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a")
        for name in ("b", "é", "B", "a b", "10", "9"):
            await store.create(f"/a/{name}")
        assert await store.children("/a") == ["10", "9", "B", "a b", "b", "é"]
        stat = await store.exists("/a")
        assert stat is not None and stat.children == 6

    async def test_ensure_makes_a_whole_path_though_many_do(self, venue: Venue) -> None:
        stores = [await venue.open() for _ in range(3)]
        await asyncio.gather(*(store.ensure("/a/b/c") for store in stores for _ in range(3)))
        await stores[0].ensure("/a/b/c")
        await stores[0].ensure("/")
        assert await stores[0].children("/a/b") == ["c"]

    async def test_sequential_names_grow_and_never_come_again(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        await one.create("/q")
        await two.sync()
        names = []
        for store in (one, two, two, one):
            names.append(await store.create("/q/task-", sequential=True))
            await store.delete(names[-1])
        assert names == sorted(set(names))
        assert all(len(name) == len("/q/task-") + 10 and name[-10:].isdigit() for name in names)

    # Transactions

    async def test_a_transaction_gives_a_result_for_each_operation(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a", b"0")
        made, again, none, stat, gone = await store.transact(
            [
                Create("/a/b", b"1"),
                Create("/a/s-", sequential=True),
                Check("/a/b", 0),
                Set("/a", b"2", 0),
                Delete("/a/b"),
            ]
        )
        assert made == "/a/b" and none is None and gone is None
        assert isinstance(again, str) and again.startswith("/a/s-")
        assert isinstance(stat, Stat) and stat.version == 1
        assert await store.children("/a") == [again[3:]]

    async def test_a_transaction_has_one_revision(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a")
        before = await store.sync()
        await store.transact([Create("/b"), Create("/b/c"), Set("/a", b"1")])
        created = [(await store.get(path))[1].created for path in ("/b", "/b/c")]
        modified = (await store.get("/a"))[1].modified
        assert {*created, modified} == {await store.sync()}
        assert modified > before

    async def test_a_failing_operation_undoes_those_before_it(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a", b"0")
        before = await store.get("/a")
        for bad, error in (
            (Create("/a"), NodeExistsError),
            (Create("/x/y"), NodeMissingError),
            (Set("/a", b"9", 7), VersionError),
            (Delete("/a"), NotEmptyError),
            (Check("/a", 7), VersionError),
            (Check("/x"), NodeMissingError),
            (CheckAbsent("/a"), NodeExistsError),
        ):
            with pytest.raises(error) as caught:
                await store.transact([Create("/b"), Create("/a/c"), bad, Create("/d")])
            assert caught.value.position == 2
            assert await store.children("/") == ["a"]
            assert await store.get("/a") == before

    async def test_operations_see_those_before_them(self, venue: Venue) -> None:
        store = await venue.open()
        await store.transact([Create("/a"), Create("/a/b"), Delete("/a/b"), Delete("/a"), CheckAbsent("/a")])
        assert await store.children("/") == []

    async def test_checks_alone_pass_or_fail(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a")
        assert await store.transact([Check("/a", 0), CheckAbsent("/b"), Check("/")]) == [None] * 3
        with pytest.raises(NodeMissingError):
            await store.transact([CheckAbsent("/x/y")])
        assert await store.transact([]) == []

    @pytest.mark.parametrize("seed", range(4))
    async def test_random_transactions_agree_with_the_reference(self, venue: Venue, seed: int) -> None:
        store, chance = await venue.open(), random.Random(seed)
        tree: reference.Tree = {"/": (b"", 0, False)}
        for _ in range(150):
            operations = [reference.invent(chance) for _ in range(chance.choice((1, 1, 2, 4)))]
            tree, expected, position = reference.transact(tree, operations)
            try:
                await store.transact(operations)
            except StoreError as error:
                assert (type(error), error.position) == (expected, position), operations
            else:
                assert expected is None, operations
        for path, (data, version, ephemeral) in tree.items():
            found, stat = await store.get(path)
            assert (found, stat.version, stat.owner) == (data, version, store.session * ephemeral)
            assert await store.children(path) == reference.below(tree, path)
            assert stat.children == len(reference.below(tree, path))

    # Many at once

    async def test_of_many_creators_one_wins(self, venue: Venue) -> None:
        stores = [await venue.open() for _ in range(4)]
        for round_ in range(5):
            path = f"/leader-{round_}"
            answers = await asyncio.gather(
                *(store.create(path, ephemeral=True) for store in stores for _ in range(3)),
                return_exceptions=True,
            )
            assert answers.count(path) == 1
            assert sum(isinstance(answer, NodeExistsError) for answer in answers) == 11

    async def test_versions_lose_no_increment(self, venue: Venue) -> None:
        stores = [await venue.open() for _ in range(3)]
        await stores[0].create("/n", b"0")

        async def add(store: Store) -> None:
            for _ in range(10):
                while True:
                    await store.sync()
                    data, stat = await store.get("/n")
                    try:
                        await store.set("/n", b"%d" % (int(data) + 1), stat.version)
                        break
                    except VersionError:
                        await asyncio.sleep(0)

        await asyncio.gather(*(add(store) for store in stores))
        await stores[0].sync()
        assert (await stores[0].get("/n"))[0] == b"30"

    async def test_the_revision_grows_with_every_change_of_anyone(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        seen = [await one.sync()]
        for number in range(6):
            store = (one, two)[number % 2]
            await store.create(f"/{number}", ephemeral=number == 3)
            seen.append(await (two, one)[number % 2].sync())
        await two.close()
        await until_gone(venue, one, "/3")
        seen.append(await one.sync())
        assert all(later > earlier for earlier, later in itertools.pairwise(seen))

    async def test_after_sync_others_changes_are_seen(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        for number in range(10):
            await one.create(f"/{number}")
            await two.sync()
            assert await two.exists(f"/{number}") is not None

    # Sessions

    async def test_sessions_differ_and_own_their_ephemeral_nodes(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        assert 0 not in (one.session, two.session) and one.session != two.session
        await one.create("/e", ephemeral=True)
        await two.sync()
        assert (await two.get("/e"))[1].owner == one.session

    async def test_closing_takes_the_ephemeral_nodes_along(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        await one.create("/a")
        await one.create("/a/e", ephemeral=True)
        await one.close()
        await until_gone(venue, two, "/a/e")
        assert await two.children("/") == ["a"]
        with pytest.raises(StoreError):
            await one.get("/a")

    async def test_a_dead_session_loses_its_ephemeral_nodes(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        await one.create("/a", b"kept")
        await one.create("/e", ephemeral=True)
        await one.create("/a/e-", ephemeral=True, sequential=True)
        await venue.expire(one)
        await until_gone(venue, two, "/e")
        assert await two.children("/") == ["a"]
        data, stat = await two.get("/a")
        assert (data, stat.children) == (b"kept", 0)

    async def test_an_expired_session_does_nothing_more(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        await one.create("/e", ephemeral=True)
        await venue.expire(one)
        await until_gone(venue, two, "/e")
        calls = (
            one.get("/"), one.exists("/"), one.children("/"), one.create("/b"), one.set("/", b""),
            one.delete("/e"), one.transact([Check("/")]), one.ensure("/c"), one.watch("/"), one.sync(),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(SessionExpiredError):
                await call
        assert one.trusted_until() <= venue.clock.now()
        await two.sync()
        assert await two.children("/") == []

    async def test_an_expired_session_can_be_renewed(self, venue: Venue) -> None:
        store = await venue.open()
        old = store.session
        await venue.expire(store)
        new = await store.renew()
        assert new == store.session != old
        await store.create("/e", ephemeral=True)
        assert (await store.get("/e"))[1].owner == new
        assert store.trusted_until() > venue.clock.now()

    async def test_renewals_at_the_same_time_leave_one_session(self, venue: Venue) -> None:
        store = await venue.open()
        await asyncio.gather(store.renew(), store.renew())
        await store.create("/mine", ephemeral=True)
        stat = await store.exists("/mine")
        assert stat is not None and stat.owner == store.session

    async def test_renewing_gives_up_the_old_ephemeral_nodes(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/e", ephemeral=True)
        watch = await store.watch("/e")
        await store.renew()
        assert await store.exists("/e") is None
        with pytest.raises(SessionExpiredError):
            await soon(venue, watch.changed())
            await soon(venue, watch.changed())

    async def test_a_session_is_trusted_for_two_thirds_of_its_timeout(self, venue: Venue) -> None:
        store = await venue.open(TIMEOUT_NS)
        first = store.trusted_until()
        for _ in range(5):
            now = venue.clock.now()
            assert now < store.trusted_until() <= now + TIMEOUT_NS * 2 // 3
            await venue.clock.sleep(TIMEOUT_NS // 4)
        assert store.trusted_until() > first

    async def test_heartbeats_outlive_the_timeout(self, venue: Venue) -> None:
        store = await venue.open(SECOND_NS)
        await store.create("/e", ephemeral=True)
        await venue.clock.sleep(SECOND_NS * 5 // 2)
        assert (await store.get("/e"))[1].owner == store.session

    # Watches

    async def test_a_watch_tells_of_data_existence_and_children(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        watch = await one.watch("/a")
        for change in (
            two.create("/a"), two.set("/a", b"1"), two.create("/a/b"), two.delete("/a/b"), two.delete("/a"),
        ):  # fmt: skip
            waiting = asyncio.ensure_future(watch.changed())
            await asyncio.sleep(0)
            await change
            await soon(venue, waiting)
        watch.close()

    async def test_a_change_while_nobody_waits_is_told_later(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        watch = await one.watch("/a")
        await two.create("/a")
        await two.delete("/a")
        await soon(venue, watch.changed())

    async def test_a_watch_tells_of_ones_own_changes(self, venue: Venue) -> None:
        store = await venue.open()
        watch = await store.watch("/a")
        await store.create("/a")
        await soon(venue, watch.changed())

    async def test_who_reads_after_each_notice_sees_the_last_change(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        await two.create("/a", b"0")
        await one.sync()
        watch = await one.watch("/a")

        async def follow() -> None:
            while (await one.get("/a"))[0] != b"50":
                await watch.changed()

        following = asyncio.ensure_future(follow())
        for number in range(1, 51):
            await two.set("/a", b"%d" % number)
        await soon(venue, following)

    async def test_every_watch_of_a_node_is_told(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        watches = [await one.watch("/a") for _ in range(3)] + [await two.watch("/a")]
        watches.pop(0).close()
        await two.create("/a")
        await soon(venue, asyncio.gather(*(watch.changed() for watch in watches)))

    async def test_closing_a_watch_lets_its_waiter_go(self, venue: Venue) -> None:
        store = await venue.open()
        watch = await store.watch("/a")
        waiting = asyncio.ensure_future(watch.changed())
        await asyncio.sleep(0)
        watch.close()
        await soon(venue, waiting)

    async def test_a_watch_tells_when_the_session_is_over(self, venue: Venue) -> None:
        store = await venue.open()
        watch = await store.watch("/a")
        waiting = asyncio.ensure_future(watch.changed())
        await asyncio.sleep(0)
        await venue.expire(store)
        with pytest.raises(SessionExpiredError):
            await soon(venue, waiting)
        with pytest.raises(SessionExpiredError):
            await soon(venue, watch.changed())

    # Bad input

    @pytest.mark.parametrize("path", BAD_PATHS)
    async def test_a_path_that_makes_no_sense_is_refused(self, venue: Venue, path: Any) -> None:
        store = await venue.open()
        before = await store.sync()
        for call in (
            store.create(path), store.get(path), store.exists(path), store.children(path), store.watch(path),
            store.set(path, b""), store.delete(path), store.ensure(path), store.transact([Check(path)]),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                await call
        assert await store.sync() == before

    async def test_arguments_that_make_no_sense_are_refused(self, venue: Venue) -> None:
        store = await venue.open()
        bad: Any
        for bad in (Create("/a", "text"), Set("/", b"", -1), Set("/", b"", "1"), Delete("/"), "create /a"):
            with pytest.raises(UsageError):
                await store.transact([bad])

    async def test_data_is_bounded(self, venue: Venue) -> None:
        store = await venue.open()
        await store.create("/a", b"x" * DATA_MAX_BYTES)
        assert len((await store.get("/a"))[0]) == DATA_MAX_BYTES
        with pytest.raises(TooLargeError, match=f"{DATA_MAX_BYTES + 1}.*{DATA_MAX_BYTES}") as caught:
            await store.transact([Check("/a"), Set("/a", b"x" * (DATA_MAX_BYTES + 1))])
        assert caught.value.position == 1

    async def test_a_transaction_is_bounded(self, venue: Venue) -> None:
        store = await venue.open()
        half = b"x" * (TRANSACTION_MAX_BYTES // 2)
        with pytest.raises(TooLargeError, match=str(TRANSACTION_MAX_BYTES)):
            await store.transact([Create("/a", half), Create("/b", half)])
        with pytest.raises(TooLargeError):
            await store.transact([Check("/")] * 100_000)
        assert await store.children("/") == []
        await store.transact([Create("/a", half), Create("/b", half[:-200])])

    async def test_a_transaction_of_many_nodes_fires_their_watches(self, venue: Venue) -> None:
        one, two = await venue.open(), await venue.open()
        most = min(1000, one.operations_max)
        watch = await one.watch(f"/node-{most - 1}-" + "x" * 200)
        await two.transact([Create(f"/node-{number}-" + "x" * 200) for number in range(most)])
        await soon(venue, watch.changed())
        await one.sync()
        assert len(await one.children("/")) == most

    async def test_a_transaction_has_as_many_operations_as_the_store_says(self, venue: Venue) -> None:
        store = await venue.open()
        assert store.operations_max >= OPERATIONS_MIN
        await store.transact([Check("/")] * store.operations_max)
        with pytest.raises(TooLargeError, match=f"{store.operations_max + 1} .*{store.operations_max}"):
            await store.transact([Check("/")] * (store.operations_max + 1))

    async def test_as_many_nodes_of_as_many_parents_go_at_once_as_the_least_engine_takes(
        self, venue: Venue
    ) -> None:
        """Every kind of operation, each on a node and a parent of its own."""
        store = await venue.open()
        parents = [f"/p{number}" for number in range(OPERATIONS_MIN)]
        for parent in parents:
            await store.create(parent)
        nodes = [f"{parent}/n" for parent in parents]
        names = await store.transact([Create(f"{node}-", sequential=True) for node in nodes])
        await store.transact([Delete(str(name)) for name in names])
        await store.transact([CheckAbsent(node) for node in nodes])
        await store.transact([Create(node) for node in nodes])
        stats = await store.transact([Set(parent, b"x") for parent in parents])
        assert [stat.children for stat in stats if isinstance(stat, Stat)] == [1] * OPERATIONS_MIN
        await store.transact([Delete(node, 0) for node in nodes])
        await store.transact([Delete(parent) for parent in parents])
        assert await store.children("/") == []
