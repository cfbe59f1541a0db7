"""`bursar serve` as a real process: signals, reloads, metrics, clients, and its death."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import bursar as api
from bursar.errors import Unknown

from .processes import Process, bursar


def write_policy(directory: Path, limit: int = 100, extra: str = "", listen: str = "127.0.0.1:0") -> Path:
    path = directory / "policy.toml"
    path.write_text(
        f'[daemon]\nlisten = "{listen}"\nhttp = "127.0.0.1:0"\nstate = "{directory}/state"\n'
        f'[resource.llm]\nkind = "quota"\nwithout_bursar = "refuse"\n{extra}'
        f"[resource.llm.tenant]\nacme = {{ limit = {limit} }}\n"
    )
    return path


def serve(path: Path, **environment: str) -> Process:
    return bursar("serve", str(path), "--log", "json", **environment)


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_serves_explains_counts_and_stops_within_two_seconds(tmp_path: Path) -> None:
    with serve(write_policy(tmp_path)) as daemon:
        ready = daemon.wait_for("daemon.ready")
        url, metrics = f"bursar://{ready['address']}", f"http://{ready['http']}"
        with api.sync.connect(url) as b:
            with b.resource("llm").acquire("acme", 30) as grant:
                grant.settle(12)
            held = b.resource("llm").acquire("acme", 5).take()
            assert fetch(f"{metrics}/live")[0] == 200
            status, body = fetch(f"{metrics}/ready")
            said = json.loads(body)
            assert (status, said["ready"], said["not_ready"], said["policy_version"]) == (200, True, [], 1)
            status, body = fetch(f"{metrics}/metrics")
            assert status == 200
            for line in (
                'bursar_quota_tenant_spent_total{resource="llm",kind="quota",tenant="acme"} 12',
                'bursar_tenant_granted_total{resource="llm",kind="quota",tenant="acme"} 35',
                'bursar_clients_events_total{event="granted"} 2',
                "bursar_clients_grants 1",
            ):
                assert line in body.splitlines()
            assert fetch(f"{metrics}/other")[0] == 404
            with bursar("why", "llm", "acme", "--at", url) as why:
                assert why.wait() == 0
                assert "acme may use 100." in why.output()
            with bursar("why", "llm", "acme", "--at", url, "--json") as why:
                assert why.wait() == 0
                assert json.loads(why.output())["figures"] == {"limit": 100, "left": 83}
            with bursar("why", "lm", "acme", "--at", url) as why:
                assert why.wait() == 2
                assert "did you mean" in "".join(why.lines)
            began = time.monotonic()
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 0
            assert time.monotonic() - began < 2.0
            assert held.amount == 5
    with bursar("why", "llm", "acme", "--at", url) as why:
        assert why.wait() == 1
        assert "is `bursar serve` running?" in "".join(why.lines)


def test_sighup_takes_a_changed_policy_and_keeps_the_old_one_before_a_broken_one(tmp_path: Path) -> None:
    path = write_policy(tmp_path, limit=10)
    with serve(path) as daemon:
        url = f"bursar://{daemon.wait_for('daemon.ready')['address']}"
        with api.sync.connect(url) as b:
            assert b.explain("llm", "acme").figures["limit"] == 10
            path.write_text("[resource.llm]\nkind = 'quotum'\n")
            daemon.signal(signal.SIGHUP)
            assert "quotum" in daemon.wait_for("policy.kept")["why"]
            assert b.explain("llm", "acme").figures["limit"] == 10
            write_policy(tmp_path, limit=20)
            daemon.signal(signal.SIGHUP)
            assert daemon.wait_for("policy.applied") | {"at": ""} == {
                "at": "",
                "level": "info",
                "event": "policy.applied",
                "resource": "llm",
                "outcome": "changed",
            }
            daemon.wait_for("policy.reloaded")
            assert b.explain("llm", "acme").figures["limit"] == 20
            more = '[resource.more]\nkind = "quota"\n[resource.more.tenant]\nacme = { limit = 1 }\n'
            path.write_text(path.read_text() + more)
            daemon.signal(signal.SIGHUP)
            assert daemon.wait_for("policy.applied")["outcome"] == "added"
            daemon.wait_for("policy.reloaded")
            with api.sync.connect(url) as other:
                assert other.resources == ("llm", "more")
                with other.resource("more").acquire("acme"):
                    pass
        daemon.signal(signal.SIGINT)
        assert daemon.wait() == 0


def test_what_keeps_it_from_starting_is_said_in_a_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with serve(write_policy(tmp_path, listen=at)) as daemon:
            assert daemon.wait() == 1
            assert f"cannot listen on {at}" in daemon.lines[-1]
    bad = tmp_path / "bad.toml"
    bad.write_text("x = 1\n")
    with serve(bad) as daemon:
        assert daemon.wait() == 2
        assert "unknown key" in "".join(daemon.lines)
    with bursar("serve", str(write_policy(tmp_path)), "--log", "xml") as daemon:
        assert daemon.wait() == 2
    for process_lines in (daemon.lines,):
        assert "Traceback" not in "".join(process_lines)


def test_two_daemons_on_one_state_directory_are_one_too_many(tmp_path: Path) -> None:
    path = write_policy(tmp_path)
    with serve(path) as first:
        first.wait_for("daemon.ready")
        with serve(path) as second:
            assert second.wait() == 2
            assert "another node is running" in second.lines[-1]


async def test_kill_9_of_the_daemon_stalls_nobody_and_clients_find_the_next_one(tmp_path: Path) -> None:
    path = write_policy(tmp_path)
    with serve(path) as daemon:
        ready = await asyncio.to_thread(daemon.wait_for, "daemon.ready")
        b = await api.connect(f"bursar://{ready['address']}")
        llm = b.resource("llm")
        await (await llm.acquire("acme")).release()
        daemon.signal(signal.SIGKILL)
        await asyncio.to_thread(daemon.wait)
        for _ in range(10):
            began = time.monotonic()
            with pytest.raises(Unknown) as caught:
                await llm.acquire("acme", wait=0.05)
            assert caught.value.fallback == "refuse"
            assert time.monotonic() - began < 1.0
    write_policy(tmp_path, listen=ready["address"])
    with serve(path) as daemon:
        await asyncio.to_thread(daemon.wait_for, "daemon.ready")
        async with asyncio.timeout(10):
            while True:
                try:
                    await (await llm.acquire("acme", wait=0.1)).release()
                    break
                except Unknown:
                    await asyncio.sleep(0.05)
        await b.close()
        daemon.signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.wait) == 0


def test_garbage_from_the_net_leaves_the_daemon_serving(tmp_path: Path) -> None:
    with serve(write_policy(tmp_path)) as daemon:
        ready = daemon.wait_for("daemon.ready")
        host, _, port = ready["address"].rpartition(":")
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"\x00\x00\x00\x05\xc1\xc1\xc1\xc1\xc1"):
            with socket.create_connection((host, int(port)), timeout=5) as raw:
                raw.sendall(junk)
                while raw.recv(4096):
                    pass
        metrics_host, _, metrics_port = ready["http"].rpartition(":")
        for junk in (b"\xff" * 20_000, b"POST / HTTP/1.1\r\n\r\n", b"GET\r\n\r\n"):
            with socket.create_connection((metrics_host, int(metrics_port)), timeout=10) as raw:
                try:
                    raw.sendall(junk)
                    while raw.recv(4096):
                        pass
                except ConnectionError:
                    continue  # cut off while still sending, which is what is wanted
        with api.sync.connect(f"bursar://{ready['address']}") as b, b.resource("llm").acquire("acme"):
            body = fetch(f"http://{ready['http']}/metrics")[1]
            assert 'bursar_network_events_total{event="cut_garbage"} 3' in body.splitlines()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0


def test_what_a_killed_client_held_counts_as_used(tmp_path: Path) -> None:
    script = (
        "import sys, time, bursar\n"
        "b = bursar.sync.connect(sys.argv[1])\n"
        "grant = b.resource('llm').acquire('acme', 30).take()\n"
        'print(\'{"event": "held"}\', file=sys.stderr, flush=True)\n'
        "time.sleep(60)\n"
    )
    import sys

    with serve(write_policy(tmp_path)) as daemon:
        url = f"bursar://{daemon.wait_for('daemon.ready')['address']}"
        with Process([sys.executable, "-c", script, url]) as client:
            client.wait_for("held")
            with api.sync.connect(url) as b:
                assert b.statistics("llm").part["tenants"]["acme"] == {"held": 30, "spent": 0}
                client.signal(signal.SIGKILL)
                deadline = time.monotonic() + 30
                while (found := b.statistics("llm").part["tenants"]["acme"])["held"]:
                    assert time.monotonic() < deadline, "it is still held"
                    time.sleep(0.1)
                assert found == {"held": 0, "spent": 30}
