"""Mutual TLS: who shows the right certificate is served, everybody else is told why not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import bursar
from bursar.errors import UnreachableError, UsageError
from bursar.policy import Tls
from bursar.runtime.network import SocketNetwork
from bursar.world import SECOND_NS, Message

from .conftest import MakePolicy, Serve

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"


class Ping(Message, frozen=True):
    pass


async def echo(sender: str, message: Ping) -> Ping:
    return message


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates made by the very commands of docs/security.md."""
    directory = tmp_path_factory.mktemp("pem")
    script = re.search(r"```sh\n(# make the certificates.*?)```", SECURITY.read_text(), re.DOTALL)
    assert script is not None
    subprocess.run(["bash", "-eu", "-c", script[1]], cwd=directory, check=True, capture_output=True)
    return directory


def tls(pem: Path, name: str, ca: str = "ca") -> Tls:
    return Tls(cert=str(pem / f"{name}.crt"), key=str(pem / f"{name}.key"), ca=str(pem / f"{ca}.crt"))


async def call(caller: SocketNetwork, peer: str) -> None:
    try:
        await caller.call(peer, "ping", Ping(), Ping, 3 * SECOND_NS)
    finally:
        await caller.close()


@pytest.mark.needs("openssl")
async def test_peers_with_certificates_in_their_names_talk_and_others_do_not(pem: Path) -> None:
    a = SocketNetwork("node-a", 1, tls=tls(pem, "node-a"))
    a.serve("ping", Ping, echo, anyone=True)
    at = str(await a.listen("0.0.0.0:0")).replace("0.0.0.0", "127.0.0.1")
    try:
        await call(SocketNetwork("web/1234", 1, peers={"node-a": at}, tls=tls(pem, "web")), "node-a")
        wrong_name = SocketNetwork("node-b", 1, peers={"node-a": at}, tls=tls(pem, "web"))
        with pytest.raises(
            UnreachableError, match=r"certificate is for \['web'\], the name claimed is node-b"
        ):
            await call(wrong_name, "node-a")
        with pytest.raises(UnreachableError, match="this is node-a, not node-b"):
            await call(SocketNetwork("web/1", 1, peers={"node-b": at}, tls=tls(pem, "web")), "node-b")
        with pytest.raises(UnreachableError):
            await call(SocketNetwork("web", 1, peers={"node-a": at}), "node-a")
        assert a.counts["cut.identity"] == 1
    finally:
        await a.close()


def make_own_certificate(directory: Path) -> None:
    make = (
        "openssl req -x509 -newkey ed25519 -nodes -days 1 -subj /CN=web"
        " -addext subjectAltName=DNS:web -keyout web.key -out web.crt"
    )
    subprocess.run(["bash", "-eu", "-c", make], cwd=directory, check=True, capture_output=True)


@pytest.mark.needs("openssl")
async def test_a_certificate_of_another_authority_is_worth_nothing(pem: Path, tmp_path: Path) -> None:
    make_own_certificate(tmp_path)
    a = SocketNetwork("node-a", 1, tls=tls(pem, "node-a"))
    a.serve("ping", Ping, echo, anyone=True)
    at = str(await a.listen("127.0.0.1:0"))
    own = Tls(cert=str(tmp_path / "web.crt"), key=str(tmp_path / "web.key"), ca=str(pem / "ca.crt"))
    trusting_itself = Tls(cert=own.cert, key=own.key, ca=own.cert)
    for forged in (own, trusting_itself):
        with pytest.raises(UnreachableError):
            await call(SocketNetwork("web", 1, peers={"node-a": at}, tls=forged), "node-a")
    await a.close()


@pytest.mark.needs("openssl")
async def test_a_client_speaks_only_to_the_host_it_dialled(
    pem: Path, make_policy: MakePolicy, serve_policy: Serve
) -> None:
    files = {key: str(pem / f"node-a.{end}") for key, end in (("cert", "crt"), ("key", "key"))}
    daemon = await serve_policy(make_policy(name="node-a", tls=files | {"ca": str(pem / "ca.crt")}))
    listening = daemon.host.world.listening
    assert listening is not None
    url = f"bursar://localhost:{listening.port}"
    async with await bursar.connect(url, name="web", tls=tls(pem, "web")) as b:
        await (await b.resource("llm").acquire("acme")).release()
    with pytest.raises(UsageError, match="name="):
        await bursar.connect(url, tls=tls(pem, "web"))
    other = SocketNetwork("web", 1, tls=tls(pem, "web"))
    web_url = f"bursar://127.0.0.1:{(await other.listen('127.0.0.1:0')).port}"
    with pytest.raises(UnreachableError, match=r"certificate of web is not for 127.0.0.1"):
        await bursar.connect(web_url, name="web", tls=tls(pem, "web"), timeout=2)
    await other.close()


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nothing")
    path = str(tmp_path / "x")
    with pytest.raises(UsageError, match="readable PEM file"):
        SocketNetwork("a", 1, tls=Tls(cert=path, key=path, ca=path))
