"""Rights at real daemons of one store: given out, revoked and audited by the commands."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import bursar
from bursar.cli import make_app
from bursar.errors import DeniedError
from bursar.resource import wire
from bursar.runtime.client import Bursar
from bursar.runtime.network import SocketNetwork
from bursar.runtime.routes import Address
from bursar.world import SECOND_NS

from .engine import store_url
from .processes import Process

POLICY = """
[resource.cache]
kind = "share"
capacity = "10k/s"
[resource.cache.tenant]
acme = { weight = 1 }
globex = { weight = 1 }
"""


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(make_app(), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def serve(folder: Path, name: str) -> Process:
    command = [
        sys.executable,
        "-m",
        "bursar",
        "serve",
        "--store",
        store_url(folder),
        "--log",
        "json",
    ]
    own = ["--name", name, "--listen", "127.0.0.1:0", "--http", "off", "--state", f"{folder}/{name}"]
    return Process([*command, *own])


class Pair:
    def __init__(self, store: str, daemons: list[Process]) -> None:
        self.store = store
        self.daemons = daemons
        self.urls = [f"bursar://{each.wait_for('daemon.ready')['address']}" for each in daemons]

    def token(self, *arguments: str) -> Any:
        return json.loads(invoke("token", "create", *arguments, "--store", self.store, "--json"))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    store = store_url(tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    invoke("apply", str(tmp_path / "policy.toml"), "--store", store, "--yes")
    with serve(tmp_path, "a") as a, serve(tmp_path, "b") as b:
        yield Pair(store, [a, b])


async def connect(url: str, token: str) -> Bursar:
    async with asyncio.timeout(10):
        while True:
            try:
                return await bursar.connect(url, token=token)
            except DeniedError:
                await asyncio.sleep(0.02)


async def be_granted(b: Bursar, tenant: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await b.resource("cache").acquire(tenant, wait=1)
                return
            except bursar.Unknown:
                await asyncio.sleep(0.05)


async def test_a_revoked_token_is_worth_nothing_at_any_daemon(pair: Pair) -> None:
    async with await bursar.connect(pair.urls[0]) as b:
        await be_granted(b, "globex")  # nobody is asked who it is
        made = await asyncio.to_thread(
            pair.token, "--tenant", "acme", "--verb", "acquire", "--note", "search"
        )
        await denied(b, "globex")
    clients = [await connect(url, made["token"]) for url in pair.urls]
    for client in clients:
        await be_granted(client, "acme")
        with pytest.raises(DeniedError, match='may not acquire for "globex" of cache'):
            await client.resource("cache").acquire("globex")
        with pytest.raises(DeniedError, match="--verb read"):
            await client.explain("cache", "acme")
        client.resource("cache").try_acquire("acme")
    said = await asyncio.to_thread(invoke, "token", "revoke", made["id"], "--store", pair.store)
    assert said == f"token {made['id']} (search): revoked\n"
    for client in clients:
        await denied(client, "acme")
    for client in clients:
        assert client.resource("cache").try_acquire("acme") is None
        await client.close()
    exported = await asyncio.to_thread(invoke, "audit", "--store", pair.store, "--json", "--what", "token")
    details = [json.loads(line)["detail"] for line in exported.splitlines()]
    assert details == ["created: acquire for tenant acme of every resource", "revoked"]


async def denied(b: Bursar, tenant: str) -> None:
    """From some moment on, soon."""
    async with asyncio.timeout(10):
        while True:
            try:
                await b.resource("cache").acquire(tenant)
            except DeniedError:
                return
            except bursar.Unknown:
                pass  # the daemon was asked while the token was being revoked


async def test_a_thousand_wrong_tokens_cost_whoever_shows_them_and_nobody_else(pair: Pair) -> None:
    made = await asyncio.to_thread(pair.token, "--tenant", "acme")
    good = await connect(pair.urls[0], made["token"])
    await be_granted(good, "acme")
    address = Address.parse(pair.urls[0].removeprefix("bursar://"))
    network = SocketNetwork("guesser/1", 1)
    network.add_route("daemon", address, any_name=True)
    guesses = [asyncio.create_task(guess(network, n)) for n in range(1_000)]
    began, used_s, waits = time.monotonic(), read_processor_s(pair.daemons[0]), []
    while not all(task.done() for task in guesses):
        asked_at = time.monotonic()
        await good.explain("cache", "acme")
        waits.append(time.monotonic() - asked_at)
        await asyncio.sleep(0.01)
    assert {type(await task) for task in guesses} == {wire.Denied}
    took_s, used_s = time.monotonic() - began, read_processor_s(pair.daemons[0]) - used_s
    assert took_s > 1.9, "they are kept waiting"
    assert used_s < 2.0, "the daemon spent next to nothing on them"
    lines = [line for line in pair.daemons[0].lines if "token.refused" in line]
    assert 1 <= len(lines) <= took_s + 2
    await network.close()
    await good.close()


def read_processor_s(process: Process) -> float:
    fields = Path(f"/proc/{process.child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def guess(network: SocketNetwork, number: int) -> Any:
    message = wire.Open(f"bursar_{number:012x}_{'x' * 43}")
    return await network.call("daemon", wire.TOPIC, message, wire.Replies, 30 * SECOND_NS)


def test_the_commands_say_what_there_is_and_what_to_do(tmp_path: Path) -> None:
    store = store_url(tmp_path)
    assert "may do everything" in invoke("token", "list", "--store", store)
    text = invoke("token", "create", "--administrator", "--store", store).splitlines()[0]
    assert text.startswith("bursar_")
    invoke(
        "token", "create", "--certificate", "gateway", "--verb", "join", "--expires", "30d", "--store", store
    )
    listed = invoke("token", "list", "--store", store)
    assert "certificate gateway" in listed and "administrator" in listed and text not in listed
    described = json.loads(invoke("token", "list", "--store", store, "--json"))
    assert [each["scopes"][0]["verbs"] for each in described][1] == ["join"]
    assert "digest" not in described[0] and described[1]["expires_ns"] > described[1]["at_ns"]
    for wrong, why in (
        (("create", "--verb", "fly"), "acquire, read, change, join"),
        (("create", "--tenant", "ac*"), "names no tenant"),
        (("create", "--administrator", "--verb", "read"), "leave out"),
        (("revoke",), "--all"),
        (("revoke", "--all"), "--yes"),
        (("revoke", "nothing"), "token list"),
    ):
        with pytest.raises(bursar.UsageError, match=why):
            invoke("token", *wrong, "--store", store)
    invoke("token", "revoke", text, "--store", store)
    assert invoke("token", "revoke", "--all", "--yes", "--store", store) == "1 revoked, rights are off\n"
    assert "may do everything" in invoke("token", "list", "--store", store)
    table = invoke("audit", "--store", store)
    assert table.count("token") >= 4 and "cli " in table
    assert invoke("audit", "--store", store, "--since", "2099-01-01") == "nothing was changed since then\n"
    assert invoke("audit", "--store", store, "--what", "policy") == "nothing of policy was changed\n"
    assert len(invoke("audit", "--store", store, "--since", "1h", "--json").splitlines()) == 4
    with pytest.raises(bursar.UsageError, match="2026-11-18"):
        invoke("audit", "--store", store, "--since", "yesterday")
