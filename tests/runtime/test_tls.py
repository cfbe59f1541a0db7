"""Mutual TLS: who shows the right certificate is served, everybody else is told why not."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

import bursar
from bursar.errors import NetworkError, UnreachableError, UsageError
from bursar.policy import Tls
from bursar.runtime.limits import Limits
from bursar.runtime.network import SocketNetwork
from bursar.runtime.revocation import read_revoked
from bursar.world import MILLISECOND_NS, SECOND_NS, Message

from .conftest import SECURITY, MakePolicy, Serve


class Ping(Message, frozen=True):
    pass


async def echo(sender: str, message: Ping) -> Ping:
    return message


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


# -- certificates that change


def run_script(directory: Path, title: str, *, but: str = "nothing", then: str = "") -> None:
    """The commands of docs/security.md that begin with this comment, but for some lines, and some more."""
    script = re.search(rf"```sh\n(# {title}.*?)```", SECURITY.read_text(), re.DOTALL)
    assert script is not None
    lines = [line for line in script[1].splitlines() if but not in line]
    command = "\n".join([*lines, then])
    subprocess.run(["bash", "-eu", "-c", command], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def own_pem(tmp_path: Path) -> Path:
    """Certificates of this test's own, which it may change."""
    run_script(tmp_path, "make the certificates", then='make_certificate other "DNS:other"')
    return tmp_path


@contextlib.asynccontextmanager
async def serving(settings: Tls) -> AsyncIterator[tuple[SocketNetwork, str]]:
    a = SocketNetwork("node-a", 1, tls=settings)
    a.serve("ping", Ping, echo, anyone=True)
    try:
        yield a, str(await a.listen("127.0.0.1:0"))
    finally:
        await a.close()


@pytest.mark.needs("openssl")
async def test_new_certificates_count_for_the_next_connection(own_pem: Path) -> None:
    async with serving(tls(own_pem, "node-a")) as (a, at):
        held = SocketNetwork("web/1", 1, peers={"node-a": at}, tls=tls(own_pem, "web"))
        await held.call("node-a", "ping", Ping(), Ping, 3 * SECOND_NS)
        run_script(own_pem, "make the certificates")  # another authority
        a.reload_certificates(only_changed=True)
        await held.call("node-a", "ping", Ping(), Ping, 3 * SECOND_NS)
        await held.close()
        await call(SocketNetwork("web/2", 1, peers={"node-a": at}, tls=tls(own_pem, "web")), "node-a")


@pytest.mark.needs("openssl")
async def test_a_broken_certificate_changes_nothing_and_is_said(
    own_pem: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tls(own_pem, "node-a")) as (a, at):
        for broken in ("", "nothing", (own_pem / "web.crt").read_text()):
            (own_pem / "node-a.crt").write_text(broken)
            a.reload_certificates()
            await call(SocketNetwork("web/1", 1, peers={"node-a": at}, tls=tls(own_pem, "web")), "node-a")
        (own_pem / "node-a.key").unlink()
        a.reload_certificates(only_changed=True)
        await call(SocketNetwork("web/1", 1, peers={"node-a": at}, tls=tls(own_pem, "web")), "node-a")
    assert [record.getMessage() for record in caplog.records].count("certificates.kept") == 4


@pytest.mark.needs("openssl")
async def test_changed_files_are_found_without_being_told(own_pem: Path) -> None:
    limits = Limits(hello_timeout_ns=40 * MILLISECOND_NS)
    a = SocketNetwork("node-a", 1, tls=tls(own_pem, "node-a"), limits=limits)
    await a.listen("127.0.0.1:0")
    assert a.certificates is not None
    before = a.certificates.listening
    run_script(own_pem, "make the certificates")
    async with asyncio.timeout(5):
        while a.certificates.listening is before:
            await asyncio.sleep(0.01)
    await a.close()


@pytest.mark.needs("openssl")
async def test_a_revoked_certificate_is_cut_off_and_opens_nothing_new(own_pem: Path) -> None:
    run_script(own_pem, "revoke a certificate", but="-revoke")
    settings = msgspec.structs.replace(tls(own_pem, "node-a"), crl=str(own_pem / "ca.crl"))
    async with serving(settings) as (a, at):
        web = SocketNetwork("web/1", 1, peers={"node-a": at}, tls=tls(own_pem, "web"))
        other = SocketNetwork("other/1", 1, peers={"node-a": at}, tls=tls(own_pem, "other"))
        for each in (web, other):
            await each.call("node-a", "ping", Ping(), Ping, 3 * SECOND_NS)
        run_script(own_pem, "revoke a certificate")
        a.reload_certificates()
        assert a.counts["cut.revoked"] == 1
        await other.call("node-a", "ping", Ping(), Ping, 3 * SECOND_NS)
        async with asyncio.timeout(5):
            while web.is_connected("node-a"):
                await asyncio.sleep(0.005)
        with pytest.raises(NetworkError):
            await web.call("node-a", "ping", Ping(), Ping, 3 * SECOND_NS)
        await web.close()
        await other.close()


def test_a_list_of_revoked_certificates_is_read_as_others_write_it() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    serials = {1, 127, 128, 2**64, 2**158 - 1}
    builder = x509.CertificateRevocationListBuilder(
        issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")]), last_update=now
    ).next_update(now + datetime.timedelta(days=1))
    empty = builder.sign(key, None).public_bytes(serialization.Encoding.PEM)
    for serial in serials:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    pem = builder.sign(key, None).public_bytes(serialization.Encoding.PEM)
    assert read_revoked(pem) == serials
    assert read_revoked(empty) == frozenset()
    assert read_revoked(empty + pem) == serials
    for broken in (b"", b"nothing", pem[:80] + b"\n-----END X509 CRL-----", pem.replace(b"MI", b"AA", 1)):
        with pytest.raises(ValueError, match="list of revoked"):
            read_revoked(broken)
