"""TLS to a real ZooKeeper: with the right certificates, and with each wrong one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar.errors import StoreError, UsageError
from bursar.runtime.clock import BootClock
from bursar.stores import open_store
from bursar.world import SECOND_NS, Create, Set, Store
from bursar_lab.zookeeper_server import ZookeeperServers

from .kept import CERTIFICATES

pytestmark = [pytest.mark.needs("zookeeper"), pytest.mark.needs("openssl")]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("zookeeper-tls")
    subprocess.run(["bash", "-eu", "-c", CERTIFICATES], cwd=directory, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def server(pem: Path) -> Iterator[ZookeeperServers]:
    with ZookeeperServers(1, tls=pem) as servers:
        yield servers


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.stores.zookeeper_link.OPEN_MAX_S", 8.0)


def address(server: ZookeeperServers, options: str, user: str = "", host: str = "127.0.0.1") -> str:
    return f"zookeeper://{user}{host}:{server.tls_ports[0]}/tls?{options}"


async def open_at(url: str) -> Store:
    return await open_store(url, clock=BootClock(), timeout_ns=20 * SECOND_NS)


async def test_a_client_with_its_certificate_uses_the_store(server: ZookeeperServers, pem: Path) -> None:
    store = await open_at(address(server, f"ca={pem}/ca.crt&cert={pem}/client.crt&key={pem}/client.key"))
    watch = await store.watch("/a")
    await store.transact([Create("/a", b"x" * 100_000), Set("/a", b"y", 0)])
    await watch.changed()
    assert (await store.get("/a"))[0] == b"y"
    await store.renew()
    assert (await store.get("/a"))[1].version == 1
    await store.delete("/a")
    await store.close()


async def test_a_user_and_a_password_go_through_tls(
    server: ZookeeperServers, pem: Path, tmp_path: Path
) -> None:
    """Digest: the nodes of a user are closed to whoever does not know the password."""
    options = f"ca={pem}/ca.crt&cert={pem}/client.crt&key={pem}/client.key"
    ann = await open_at(address(server, options, user="ann:secret@"))
    await ann.create("/mine", b"x")
    (tmp_path / "auth").write_text("ann:secret\n")
    again = await open_at(address(server, f"{options}&auth={tmp_path}/auth"))
    assert (await again.get("/mine"))[0] == b"x"
    bob = await open_at(address(server, options, user="bob:guess@"))
    with pytest.raises(StoreError, match="not allowed"):
        await bob.get("/mine")
    await ann.delete("/mine")
    for store in (ann, again, bob):
        await store.close()


@pytest.mark.parametrize(
    ("options", "host", "says"),
    [
        ("ca={pem}/ca.crt", "127.0.0.1", "hung up|certificate required|alert|reset"),
        (
            "ca={pem}/ca.crt&cert={pem}/stranger.crt&key={pem}/stranger.key",
            "127.0.0.1",
            "hung up|alert|reset|unknown ca",
        ),
        ("ca={pem}/other.crt&cert={pem}/client.crt&key={pem}/client.key", "127.0.0.1", "verify failed"),
        ("ca={pem}/ca.crt&cert={pem}/client.crt&key={pem}/client.key", "localhost", "Hostname mismatch"),
    ],
    ids=["no certificate", "a stranger's certificate", "another authority", "another name"],
)
async def test_whoever_shows_the_wrong_thing_is_not_served(
    server: ZookeeperServers,
    pem: Path,
    options: str,
    host: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bursar.stores.zookeeper_link.OPEN_MAX_S", 1.0)
    with pytest.raises(StoreError, match=f"no ZooKeeper server answers.*({says})"):
        await open_at(address(server, options.format(pem=pem), host=host))


async def test_without_tls_its_port_is_no_server(
    server: ZookeeperServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bursar.stores.zookeeper_link.OPEN_MAX_S", 1.0)
    with pytest.raises(StoreError, match="no ZooKeeper server answers"):
        await open_at(f"zookeeper://127.0.0.1:{server.tls_ports[0]}/tls")


async def test_files_that_do_not_belong_together_are_told(server: ZookeeperServers, pem: Path) -> None:
    with pytest.raises(UsageError, match="TLS files cannot be used"):
        await open_at(address(server, f"ca={pem}/ca.crt&cert={pem}/client.crt&key={pem}/stranger.key"))
