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

import bursar
from bursar.demo.ports import find_free_port
from bursar.integrations.envoy.config import CLUSTER, make_cluster
from bursar.integrations.envoy.decisions import AT_ONCE_MAX, DESCRIPTORS_MAX, DecisionServer
from bursar.policy import parse
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
[daemon]
http = "off"
state = "{state}"
"""
OK, OVER = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[DecisionServer, int]]:
    async with await bursar.connect(parse(POLICY.format(state=tmp_path / "state"))) as held:
        async with held.resource("api").acquire("acme", wait=20.0):
            pass  # the first period has begun
        running = DecisionServer(held)
        port = await running.start("127.0.0.1:0")
        yield running, port
        await running.stop()


def make_request(*tenants: str, domain: str = "api", hits: int = 0) -> Any:
    request = rls_pb2.RateLimitRequest(domain=domain, hits_addend=hits)
    for tenant in tenants:
        request.descriptors.add().entries.add(key="tenant", value=tenant)
    return request


async def ask(port: int, *requests: Any) -> list[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        return [await stub.ShouldRateLimit(request, timeout=10) for request in requests]


async def test_a_limit_is_reached_and_the_answer_says_when_to_come_back(server: Any) -> None:
    answers = await ask(server[1], *[make_request("few")] * 4)
    assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER]
    status = answers[-1].statuses[0]
    assert (status.code, status.limit_remaining) == (OVER, 0)
    assert 1 <= status.duration_until_reset.seconds <= 11


async def test_hits_are_tokens_and_any_descriptor_over_its_limit_decides(server: Any) -> None:
    (spent,) = await ask(server[1], make_request("few", hits=3))
    assert spent.overall_code == OK
    (mixed,) = await ask(server[1], make_request("acme", "few", "acme"))
    assert mixed.overall_code == OVER
    assert [status.code for status in mixed.statuses] == [OK, OVER, OK]


async def test_strangers_are_over_their_limit_and_descriptors_without_tenant_concern_nobody(
    server: Any,
) -> None:
    plain = rls_pb2.RateLimitRequest(domain="api")
    plain.descriptors.add().entries.add(key="path", value="/x")
    answers = await ask(server[1], make_request("stranger"), plain)
    assert [answer.overall_code for answer in answers] == [OVER, OK]


@pytest.mark.parametrize(
    "bad", [make_request("acme", domain="apy"), make_request(*["acme"] * (DESCRIPTORS_MAX + 1))]
)
async def test_a_question_that_makes_no_sense_is_refused_with_a_reason(server: Any, bad: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(server[1], bad)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details()


async def test_more_questions_than_can_be_answered_in_time_are_shed(server: Any) -> None:
    server[0].service._under_way = AT_ONCE_MAX
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(server[1], make_request("acme"))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server[0].service.counts["shed"] == 1


@pytest.mark.needs("envoy")
async def test_a_real_envoy_asks_and_obeys(server: Any, tmp_path: Path) -> None:
    kind = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit"
    service = {"grpc_service": {"envoy_grpc": {"cluster_name": CLUSTER}}, "transport_api_version": "V3"}
    action = {"request_headers": {"header_name": "x-tenant", "descriptor_key": "tenant"}}
    http_filter = {
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": kind,
            "domain": "api",
            "timeout": "2s",
            "rate_limit_service": service,
            "rate_limits": [{"actions": [action]}],
        },
    }
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
    finally:
        envoy.stop()
        backend.close()
    seen = sum((load.seen[second] for second in load.seen), start=Counter[Any]())
    assert 1 <= seen["asking", "few", "200"] <= 6
    assert seen["asking", "few", "429"] >= 5


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
