"""Nodes that share a store share its policy: a file counts once, changes reach everyone."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bursar.errors import DeniedError, NodeMissingError, Refused, UsageError
from bursar.fleet import changes, documents, layout, tokens
from bursar.fleet.rights import Scope
from bursar.policy import Policy, parse, settle
from bursar.policy.values import ResourcePolicy
from bursar.runtime import kinds
from bursar.runtime.client import Bursar
from bursar.runtime.host import Host
from bursar.runtime.membership import find_address
from bursar.runtime.routes import Address
from bursar.world import Check

TEXT = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 100 }
"""
MORE = TEXT.replace("100", "150")
PATIENCE_S = 10.0


def own(
    folder: Path, name: str, text: str | None = TEXT, *, state: str = "", token: str | None = None
) -> Policy:
    """A node's settings, with the policy of its file or none."""
    policy = None if text is None else parse(text, f"{name}.toml")
    settings = {
        "name": name,
        "state": f"{folder}/{state or name}",
        "session_timeout": "4s",
        "listen": "127.0.0.1:0",
    }
    if token is not None:
        (folder / "token").write_text(token)
        settings["join_token_file"] = f"{folder}/token"
    return settle(policy, settings, f"sqlite://{folder}/store.db")


@asynccontextmanager
async def up(policy: Policy) -> AsyncIterator[Host]:
    host = await Host.open(policy, listen=policy.daemon.listen)
    try:
        yield host
    finally:
        await host.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


async def read_record(host: Host, name: str) -> layout.NodeRecord:
    """What a node says of itself in the store."""
    found = await layout.fetch(host.world.store, layout.node_path(name), layout.NodeRecord)
    assert found is not None
    return found[0]


def runs(host: Host) -> int:
    return host.membership.follower.record.version


async def apply(host: Host, text: str) -> int:
    return (await changes.apply(host.world.store, text, by="ann", at_ns=0)).number


async def test_the_first_nodes_file_becomes_the_policy_and_others_need_none(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a, up(own(tmp_path, "b", None)) as b:
        assert (runs(a), runs(b)) == (1, 1)
        assert list(b.resources) == ["llm"]


async def test_a_node_that_loads_its_kinds_answers_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling takes seconds; whoever asks over HTTP in that time hears that the node is being started."""
    answered = threading.Event()
    loop, prepare = asyncio.get_running_loop(), kinds.prepare

    def load(policies: Iterable[ResourcePolicy]) -> None:
        if wanted := list(policies):
            prepare(wanted)
            loop.call_soon_threadsafe(answered.set)
            assert answered.wait(PATIENCE_S), "nothing ran while the kinds were loaded"

    async with up(own(tmp_path, "a")):
        monkeypatch.setattr(kinds, "prepare", load)
        async with up(own(tmp_path, "b", None)) as b:
            assert list(b.resources) == ["llm"]


async def test_nodes_with_one_file_may_start_all_at_once(tmp_path: Path) -> None:
    hosts = await asyncio.gather(
        *(Host.open(own(tmp_path, name), listen="127.0.0.1:0") for name in ("a", "b", "c", "d"))
    )
    try:
        assert [runs(host) for host in hosts] == [1, 1, 1, 1]
    finally:
        await asyncio.gather(*(host.close() for host in hosts))


async def test_a_node_may_start_before_there_is_a_policy(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a", None)) as a:
        assert not a.resources
        await apply(a, TEXT)
        await until(lambda: "llm" in a.resources)


async def test_a_change_reaches_every_node(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a, up(own(tmp_path, "b")) as b:
        await apply(a, MORE)
        await until(lambda: runs(a) == runs(b) == 2)
        assert b.policies["llm"].tenants["acme"].limit == 150
        async with b.resources["llm"].acquire("acme", 140, wait=5):
            pass


async def test_a_file_that_says_something_else_than_the_fleet_is_refused(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")):
        with pytest.raises(UsageError) as caught:
            async with up(own(tmp_path, "b", MORE)):
                pass
    message = str(caught.value)
    assert "b.toml differs from the policy in the store" in message
    assert "~ resource.llm.tenant.acme.limit: 100 -> 150" in message
    assert "`bursar apply b.toml`" in message


async def test_a_file_edited_between_two_starts_of_a_lone_node_counts(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")):
        pass
    async with up(own(tmp_path, "a", MORE)) as a:
        assert runs(a) == 2
        assert a.policies["llm"].tenants["acme"].limit == 150


async def test_what_was_applied_is_not_undone_by_an_old_file(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a:
        await apply(a, MORE)
        await until(lambda: runs(a) == 2)
    with pytest.raises(UsageError, match="version 2 by ann"):
        async with up(own(tmp_path, "a")):
            pass


async def test_two_nodes_of_one_name_are_not_up_at_once(tmp_path: Path) -> None:
    twin = own(tmp_path, "a", state="twin")
    async with up(own(tmp_path, "a")) as a:
        with pytest.raises(UsageError, match="another node named a is up"):
            async with up(twin):
                pass
        assert await a.world.store.exists(layout.node_path("a")) is not None


async def test_nodes_know_of_each_other_and_of_who_left(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a:
        async with up(own(tmp_path, "b")) as b:
            await until(lambda: set(a.membership.view.up) == {"a", "b"})
            assert a.membership.view.is_member("b") and b.membership.view.is_member("a")
            assert a.world.network.peers() == ["b"]
            assert a.membership.view.nodes()["b"] == str(b.world.listening)
        await until(lambda: set(a.membership.view.up) == {"a"})
        assert not a.membership.view.is_member("b")


async def test_a_policy_that_a_node_does_not_understand_is_left_alone(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a:
        before = a.membership.view.head
        later = f"{MORE}\n[resource.llm.colour]\nred = 1\n"
        await documents.write_document(a.world.store, later, by="a later build", at_ns=0)
        await until(lambda: bool(a.membership.follower.record.problem))
        record = a.membership.follower.record
        assert (
            record.version == 1 and "version 2 is not taken" in record.problem and "colour" in record.problem
        )
        assert a.world.fleet.guards() == (Check(layout.HEAD, before),)
        assert a.policies["llm"].tenants["acme"].limit == 100
        async with asyncio.timeout(PATIENCE_S):
            while (await read_record(a, "a")).problem != record.problem:
                await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="version 2 in the store was written by another build"):
            await apply(a, MORE)
        await documents.write_document(a.world.store, MORE, by="a later build", at_ns=0)
        await until(lambda: runs(a) == 3 and not a.membership.follower.record.problem)


async def test_a_node_is_entered_again_after_its_session_expired(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a, up(own(tmp_path, "b")) as b:
        await until(lambda: set(b.membership.view.up) == {"a", "b"})
        session = await a.world.store.renew()

        async def entered() -> bool:
            stat = await b.world.store.exists(layout.node_path("a"))
            return stat is not None and stat.owner == session

        async with asyncio.timeout(PATIENCE_S):
            while not await entered():
                await asyncio.sleep(0.01)


def lose_store(folder: Path) -> None:
    for file in folder.glob("store.db*"):
        file.unlink()


async def test_a_node_of_another_store_is_stopped_and_a_rebuilt_one_is_adopted(tmp_path: Path) -> None:
    from bursar.cli import main

    async with up(own(tmp_path, "a")):
        pass
    lose_store(tmp_path)
    async with up(own(tmp_path, "b")):
        pass
    with pytest.raises(UsageError, match="bursar store adopt"):
        async with up(own(tmp_path, "a")):
            pass
    url = f"sqlite://{tmp_path}/store.db"
    with pytest.raises(SystemExit) as caught:
        await asyncio.to_thread(main, ["store", "adopt", "--store", url, "--state", f"{tmp_path}/a", "--yes"])
    assert caught.value.code == 0
    with pytest.raises(UsageError, match="belongs to the store"):
        async with up(own(tmp_path, "b")):
            pass


async def test_tenants_are_set_in_python_and_refused_once_removed(tmp_path: Path) -> None:
    async with Bursar(own(tmp_path, "a")) as b:
        llm = b.resource("llm")
        with pytest.raises(Refused, match='no tenant "joe"'):
            await llm.acquire("joe", 1)
        await b.set_tenants("llm", {"joe": {"limit": 5}})
        async with llm.acquire("joe", 5, wait=5):
            pass
        assert await b.tenants("llm") == {"joe": {"limit": 5}}
        await b.set_tenants("llm", {"joe": None})
        with pytest.raises(Refused, match='no tenant "joe"'):
            await llm.acquire("joe", 1)


async def test_the_record_of_a_node_that_left_is_gone(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a:
        async with up(own(tmp_path, "b")):
            pass
        with pytest.raises(NodeMissingError):
            await a.world.store.get(layout.node_path("b"))
        with pytest.raises(NodeMissingError):
            await a.world.store.get(layout.member_path("b"))


async def test_a_node_joins_a_fleet_with_rights_only_by_one(tmp_path: Path) -> None:
    async with up(own(tmp_path, "a")) as a:
        _, may_read = await tokens.create_token(a.world.store, [Scope(verbs=("read",))], by="ann", at_ns=0)
        _, may_join = await tokens.create_token(a.world.store, [Scope(verbs=("join",))], by="ann", at_ns=0)
        for text, says in (
            (None, "shows no token"),
            (may_read, "may not join"),
            ("x" * 40, "shows no token"),
        ):
            with pytest.raises(DeniedError, match=says):
                async with up(own(tmp_path, "b", token=text)):
                    pass
        async with up(own(tmp_path, "b", token=may_join)):
            member = await layout.fetch(a.world.store, layout.member_path("b"), layout.Member)
            assert member is not None and member[0].by.startswith("token ")


def test_a_node_that_listens_everywhere_is_reached_by_its_machines_name() -> None:
    assert find_address(Address("10.0.0.7", 7070)) == "10.0.0.7:7070"
    assert find_address(Address("0.0.0.0", 7070)) == f"{socket.gethostname()}:7070"
    assert find_address(None) == ""
