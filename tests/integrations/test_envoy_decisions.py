"""RLS v3: one question a request, answered from the resource, over gRPC and by a real Envoy."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

from bursar.demo.ports import find_free_port
from bursar.integrations.envoy import decisions
from bursar.integrations.envoy.config import make_asking_filter, make_cluster
from bursar.integrations.envoy.decisions import DESCRIPTORS_MAX
from bursar.policy import parse
from bursar.runtime.daemon import Daemon
from bursar_lab.experiments.envoy.load import Load
from bursar_lab.experiments.envoy.processes import find_envoy, make_bootstrap
from bursar_lab.processes import Process

POLICY = """
[resource.api]
kind = "rate"
period = "10s"
pacing = false
servers = {{ here = "1k/s" }}
[resource.api.tenant]
few = {{ limit = "3/10s" }}
acme = {{ limit = "1k/s" }}
[resource.budget]
kind = "quota"
window = "month"
[resource.budget.tenant]
acme = {{ limit = 5 }}
[resource.edge]
kind = "rate"
servers = {{ here = "1k/s" }}
[resource.edge.tenant]
"path/*" = {{ limit = "60/s" }}
login = {{ limit = "2/s" }}
[descriptor]
login = {{ match = ["path=/login"], resource = "edge", tenant = "login" }}
any = {{ match = ["path=*"], resource = "edge", tenant = "path/{{path}}" }}
both = {{ match = ["who=*"], resource = "edge", tenant = "path/{{who}}", domain = "web" }}
[daemon]
listen = "127.0.0.1:0"
http = "off"
envoy = "127.0.0.1:0"
state = "{state}"
"""
OK, OVER = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT
UNITS = rls_pb2.RateLimitResponse.RateLimit


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[Daemon, int]]:
    daemon = await Daemon.open(parse(POLICY.format(state=tmp_path / "state")))
    try:
        for name in ("api", "budget", "edge"):
            door = daemon.host.resources[name]
            grant = await door.acquire("path/warm" if name == "edge" else "acme", wait=20.0)
            grant.settle(0)
            await grant.release()  # its first tokens are here
        yield daemon, daemon.envoy_port
    finally:
        await daemon.close()


def make_request(*tenants: str, domain: str = "api", hits: int = 0, key: str = "tenant") -> Any:
    request = rls_pb2.RateLimitRequest(domain=domain, hits_addend=hits)
    for tenant in tenants:
        request.descriptors.add().entries.add(key=key, value=tenant)
    return request


async def ask(port: int, *requests: Any, timeout: float = 10) -> list[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        return [await stub.ShouldRateLimit(request, timeout=timeout) for request in requests]


async def test_a_limit_is_reached_and_the_answers_say_what_is_left_and_when_to_come_back(server: Any) -> None:
    answers = await ask(server[1], *[make_request("few")] * 4)
    assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER]
    assert [answer.statuses[0].limit_remaining for answer in answers] == [2, 1, 0, 0]
    for status in (answer.statuses[0] for answer in answers):
        # Three in ten seconds: Envoy counts in seconds and minutes.
        assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (18, UNITS.MINUTE)
        assert 1 <= status.duration_until_reset.seconds <= 11


async def test_an_exact_quota_answers_and_is_charged_what_was_told(server: Any) -> None:
    daemon, port = server
    answers = await ask(port, *[make_request("acme", domain="budget", hits=hits) for hits in (3, 3, 1, 1, 1)])
    assert [answer.overall_code for answer in answers] == [OK, OVER, OK, OK, OVER]
    assert answers[0].statuses[0].current_limit.unit == UNITS.MONTH
    tally = (await daemon.host.resources["budget"].statistics()).tenants["acme"]
    assert tally.granted - tally.returned == 5


async def test_hits_are_tokens_and_what_was_taken_before_a_refusal_is_put_back(server: Any) -> None:
    daemon, port = server
    (spent,) = await ask(port, make_request("few", hits=3))
    assert spent.overall_code == OK
    (mixed,) = await ask(port, make_request("acme", "few", "acme"))
    assert mixed.overall_code == OVER
    assert [status.code for status in mixed.statuses] == [OK, OVER, OK]
    await daemon._envoy.decisions.close()  # what is put back, is
    tally = (await daemon.host.resources["api"].statistics()).tenants["acme"]
    assert tally.granted == tally.returned


async def test_descriptors_of_the_policy_say_who_pays(server: Any) -> None:
    paths = [make_request(path, domain="edge", key="path") for path in ("/login", "/login", "/login", "/x")]
    answers = await ask(server[1], *paths, make_request("me", domain="web", key="who"))
    assert [answer.overall_code for answer in answers] == [OK, OK, OVER, OK, OK]
    names = [answer.statuses[0].current_limit.name for answer in answers]
    assert names == ["edge/login", "edge/login", "edge/login", "edge/path//x", "edge/path/me"]


async def test_strangers_are_over_their_limit_and_descriptors_of_no_rule_concern_nobody(server: Any) -> None:
    asked = [make_request("stranger"), make_request("\x00"), make_request("/x", key="path")]
    answers = await ask(server[1], *asked)
    assert [answer.overall_code for answer in answers] == [OVER, OVER, OK]


@pytest.mark.parametrize(
    "bad", [make_request("acme", domain="apy"), make_request(*["acme"] * (DESCRIPTORS_MAX + 1))]
)
async def test_a_question_that_makes_no_sense_is_refused_with_a_reason(server: Any, bad: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(server[1], bad)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details()


async def test_what_cannot_be_answered_in_time_is_refused_and_not_charged(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, port = server
    monkeypatch.setattr(decisions, "SPARE_NS", 20 * 10**9)
    (answer,) = await ask(port, make_request("acme", domain="budget"))
    assert answer.overall_code == OVER
    assert daemon._envoy.counts["shed"] == 1
    assert not (await daemon.host.resources["budget"].statistics()).tenants["acme"].unknown


@pytest.mark.needs("envoy")
async def test_a_real_envoy_asks_and_obeys_and_tells_what_is_left(server: Any, tmp_path: Path) -> None:
    policy = server[0].host.policy.resource("api")
    http_filter = make_asking_filter(policy, "x-tenant")
    http_filter["typed_config"]["timeout"] = "2s"
    backend = await asyncio.start_server(answer, "127.0.0.1", 0)
    upstream = make_cluster(f"127.0.0.1:{backend.sockets[0].getsockname()[1]}")
    upstream["name"] = upstream["load_assignment"]["cluster_name"] = "service"
    del upstream["typed_extension_protocol_options"]  # HTTP/1.1
    port, admin_port = find_free_port(), find_free_port()
    clusters = [make_cluster(f"127.0.0.1:{server[1]}"), upstream]
    config = make_bootstrap(http_filter, clusters, port, admin_port)
    connection = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    # This filter asks only about requests that go to a service, not about direct responses.
    (host,) = connection["typed_config"]["route_config"]["virtual_hosts"]
    host["routes"] = [{"match": {"prefix": "/"}, "route": {"cluster": "service"}}]
    file = tmp_path / "asking.json"
    file.write_text(json.dumps(config))
    command = [str(find_envoy()), "-c", str(file), "--disable-hot-restart", "--concurrency", "1"]
    envoy = Process(command, tmp_path / "asking.log")
    try:
        await asyncio.to_thread(wait_for_port, port)
        load = Load({"asking": port})
        load.rates = {("asking", "few"): 10.0}
        await load.run(3)
        await asyncio.sleep(0.5)
        load.close()
        head = await asyncio.to_thread(fetch_head, port)
    finally:
        envoy.stop()
        backend.close()
    seen = sum((load.seen[second] for second in load.seen), start=Counter[Any]())
    assert 1 <= seen["asking", "few", "200"] <= 6
    assert seen["asking", "few", "429"] >= 5
    assert "x-ratelimit-limit: 18" in head and "x-ratelimit-remaining: 0" in head


def fetch_head(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx-tenant: few\r\nconnection: close\r\n\r\n")
        return b"".join(iter(lambda: link.recv(65536), b"")).decode()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    except asyncio.IncompleteReadError:
        writer.close()


def wait_for_port(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")
