"""Rights of certificates: who shows one that a token's record names needs no token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import bursar
from bursar.errors import DeniedError
from bursar.fleet.rights import Scope
from bursar.fleet.tokens import create_token
from bursar.runtime.client import Bursar
from bursar.runtime.daemon import Daemon

from .conftest import MakePolicy, Serve
from .test_tls import tls


async def give(daemon: Daemon, certificate: str = "") -> str:
    world = daemon.host.world
    scope = Scope(tenants=("acme",), verbs=("acquire",))
    _, text = await create_token(
        world.store, [scope], by="test", at_ns=world.clock.wall(), certificate=certificate
    )
    return text


async def connect(url: str, name: str, pem: Path | None) -> Bursar:
    """As soon as the daemon knows of it."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await bursar.connect(url, name=name, tls=None if pem is None else tls(pem, "web"))
            except DeniedError:
                await asyncio.sleep(0.02)


@pytest.mark.needs("openssl")
async def test_a_certificate_that_is_named_has_its_rights_and_no_others(
    pem: Path, make_policy: MakePolicy, serve_policy: Serve
) -> None:
    own = {key: str(pem / f"{file}") for key, file in (("cert", "node-a.crt"), ("key", "node-a.key"))}
    daemon = await serve_policy(make_policy(name="node-a", tls={**own, "ca": str(pem / "ca.crt")}))
    url = f"bursar://{daemon.host.world.listening}".replace("127.0.0.1", "localhost")
    await give(daemon, certificate="web")
    async with await connect(url, "web", pem) as b:
        assert await b.resource("llm").acquire("acme")
        with pytest.raises(DeniedError, match="certificate web may not acquire"):
            await b.resource("llm").acquire("beta")
    with pytest.raises(DeniedError):
        await bursar.connect(url, name="node-a", tls=tls(pem, "node-a"))


async def test_a_name_that_no_certificate_proves_gives_no_rights(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    url = f"bursar://{daemon.host.world.listening}"
    await give(daemon, certificate="web")
    async with asyncio.timeout(10):
        while True:
            try:
                await (await bursar.connect(url, name="web")).close()
            except DeniedError:
                break
            await asyncio.sleep(0.02)
    with pytest.raises(DeniedError, match="wants a token"):
        await bursar.connect(url, name="web")
    assert daemon.clients.counts["token_refused"] >= 2
