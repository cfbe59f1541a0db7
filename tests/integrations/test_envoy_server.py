"""The quota service over gRPC: ordinary reports, strange ones, and what the door is charged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.rate_limit_quota.v3 import rlqs_pb2, rlqs_pb2_grpc

from bursar.errors import PolicyError
from bursar.integrations.envoy.cells import ABANDON, ALLOW_ALL, FILL_S
from bursar.integrations.envoy.node import Node
from bursar.integrations.envoy.quotas import QuotaService
from bursar.integrations.envoy.wire import write_orders
from bursar.policy import Policy, parse
from bursar.runtime.daemon import Daemon

POLICY = """
[resource.api]
kind = "rate"
servers = {{ service = "1k/s" }}
without_bursar = "refuse"
shadow = {shadow}
[resource.api.tenant]
acme = {{ limit = "100/s" }}
other = {{ limit = "100/s" }}
"team/*" = {{ limit = "10/s" }}
[resource.budget]
kind = "quota"
[resource.budget.tenant]
acme = {{ limit = 5 }}
[daemon]
listen = "127.0.0.1:0"
http = "off"
envoy = "{envoy}"
state = "{state}"
"""


def make_policy(folder: Path, shadow: str = "false", envoy: str = "127.0.0.1:0") -> Policy:
    return parse(POLICY.format(state=folder / "state", shadow=shadow, envoy=envoy))


async def open_daemon(policy: Policy) -> Daemon:
    daemon = await Daemon.open(policy)
    async with daemon.host.resources["api"].acquire("other", wait=20.0):
        pass  # the first period has begun
    return daemon


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    running = await open_daemon(make_policy(tmp_path))
    yield running
    await running.close()


def make_report(domain: str, usages: dict[str, tuple[int, int, int]], key: str = "tenant") -> Any:
    report = rlqs_pb2.RateLimitQuotaUsageReports(domain=domain)
    for name, (elapsed_s, allowed, denied) in usages.items():
        usage = report.bucket_quota_usages.add()
        usage.bucket_id.bucket[key] = name
        usage.time_elapsed.seconds = elapsed_s
        usage.num_requests_allowed, usage.num_requests_denied = allowed, denied
    return report


def open_stream(channel: grpc.aio.Channel) -> Any:
    return rlqs_pb2_grpc.RateLimitQuotaServiceStub(channel).StreamRateLimitQuotas()


async def ask(port: int, report: Any) -> Any:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = open_stream(channel)
        await call.write(report)
        return await asyncio.wait_for(call.read(), 5)


async def until_told(call: Any, per_second: float) -> Any:
    """Until an Envoy is told at least so much; a rise is charged first."""
    async with asyncio.timeout(10):
        while True:
            answer = await call.read()
            fill = answer.bucket_action[-1].quota_assignment_action.rate_limit_strategy.token_bucket
            if fill.tokens_per_fill.value >= per_second * FILL_S:
                return answer.bucket_action[-1]


async def test_a_first_report_is_answered_with_the_limit_and_it_is_charged_where_clients_are(
    daemon: Daemon,
) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.envoy_port}") as channel:
        call = open_stream(channel)
        await call.write(make_report("api", {"acme": (0, 1, 0)}))
        action = await until_told(call, 95)
        assert dict(action.bucket_id.bucket) == {"tenant": "acme"}
        assert action.quota_assignment_action.assignment_time_to_live.seconds == 8
        fill = action.quota_assignment_action.rate_limit_strategy.token_bucket
        assert fill.tokens_per_fill.value <= 100 * FILL_S and fill.fill_interval.seconds == FILL_S
        door = daemon.host.resources["api"]
        async with asyncio.timeout(10):
            while (await door.statistics()).tenants["acme"].granted < 100:
                await asyncio.sleep(0.05)
        call.cancel()


@pytest.mark.parametrize("domain", ["apy", "budget"])
async def test_a_domain_that_is_no_rate_is_refused_with_those_there_are(daemon: Daemon, domain: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(daemon.envoy_port, make_report(domain, {"acme": (0, 1, 0)}))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "set domain to one of: api" in str(caught.value.details())


@pytest.mark.parametrize(
    ("name", "key"), [("stranger", "tenant"), ("acme", "tennant"), ("team/\x07", "tenant")]
)
async def test_a_tenant_that_is_not_in_the_policy_gets_nothing(daemon: Daemon, name: str, key: str) -> None:
    answer = await ask(daemon.envoy_port, make_report("api", {name: (0, 1, 0)}, key))
    (action,) = answer.bucket_action
    assert dict(action.bucket_id.bucket) == {key: name}
    assert action.quota_assignment_action.rate_limit_strategy.blanket_rule == 1
    assert daemon._envoy.quotas.counts["api"]["unknown_tenants"] == 1


async def test_who_a_template_stands_for_has_its_terms(daemon: Daemon) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.envoy_port}") as channel:
        call = open_stream(channel)
        await call.write(make_report("api", {"team/red": (0, 1, 0)}))
        action = await until_told(call, 9)
        fill = action.quota_assignment_action.rate_limit_strategy.token_bucket
        assert fill.tokens_per_fill.value <= 10 * FILL_S
        call.cancel()


async def test_a_changed_policy_reaches_envoys_at_once(daemon: Daemon) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.envoy_port}") as channel:
        call = open_stream(channel)
        await call.write(make_report("api", {"team/red": (0, 1, 0)}))
        await until_told(call, 9)
        text = POLICY.replace('"team/*" = {{ limit = "10/s" }}\n', "")
        policy = parse(text.format(state="x", shadow="false", envoy="127.0.0.1:0"))
        await daemon.host.apply(policy)
        async with asyncio.timeout(5):
            strategy = None
            while strategy != "blanket_rule":
                answer = await call.read()
                found = answer.bucket_action[-1].quota_assignment_action.rate_limit_strategy
                strategy = found.WhichOneof("strategy")
        assert found.blanket_rule == 1
        call.cancel()


@pytest.mark.parametrize("name", ["a", "x" * 100, "é" * 120])
def test_joined_encodings_are_the_message_itself(name: str) -> None:
    orders = {
        name: (2400, 48),
        "none": (0, 1),
        "gone": (ABANDON, 1),
        "free": (ALLOW_ALL, 1),
        "fast": (2**40, 1),
    }
    (response,) = write_orders(orders, 8)
    actions = rlqs_pb2.RateLimitQuotaResponse.FromString(response).bucket_action
    assert [dict(action.bucket_id.bucket)["tenant"] for action in actions] == list(orders)
    first, none, gone, free, fast = (action.quota_assignment_action for action in actions)
    assert first.rate_limit_strategy.token_bucket.tokens_per_fill.value == 2400
    assert first.rate_limit_strategy.token_bucket.max_tokens == 48
    assert none.rate_limit_strategy.blanket_rule == 1
    assert actions[2].HasField("abandon_action") and not actions[2].HasField("quota_assignment_action")
    assert gone.ByteSize() == 0
    assert free.rate_limit_strategy.WhichOneof("strategy") == "blanket_rule"
    assert free.rate_limit_strategy.blanket_rule == 0
    assert fast.rate_limit_strategy.token_bucket.tokens_per_fill.value == 2**32 - 1


def test_many_orders_come_in_pieces() -> None:
    pieces = write_orders({f"t{n}": (n, 1) for n in range(12_000)}, 8)
    counts = [len(rlqs_pb2.RateLimitQuotaResponse.FromString(piece).bucket_action) for piece in pieces]
    assert counts == [5000, 5000, 2000]


async def test_in_shadow_everybody_is_let_through(tmp_path: Path) -> None:
    running = await open_daemon(make_policy(tmp_path, shadow="true"))
    try:
        answer = await ask(running.envoy_port, make_report("api", {"acme": (0, 1, 0)}))
    finally:
        await running.close()
    assigned = answer.bucket_action[0].quota_assignment_action
    assert assigned.rate_limit_strategy.WhichOneof("strategy") == "blanket_rule"
    assert assigned.rate_limit_strategy.blanket_rule == 0


async def test_absurd_numbers_are_bounded(daemon: Daemon) -> None:
    most = 2**64 - 1
    await ask(daemon.envoy_port, make_report("api", {"acme": (2**60, most, most)}))
    (fleet, _) = daemon._envoy.quotas.fleets["api"]
    assert fleet.statistics().tenants["acme"].assigned <= 100


async def test_what_is_not_charged_at_once_waits_its_turn_and_loses_no_pace(daemon: Daemon) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.envoy_port}") as channel:
        call = open_stream(channel)
        await call.write(make_report("api", {"acme": (0, 1, 1)}))
        await until_told(call, 9)
        (fleet, _) = daemon._envoy.quotas.fleets["api"]
        waiting = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            waiting += "acme" in fleet.charging._tickets
        assert waiting >= 25
        call.cancel()


async def test_it_does_not_listen_beyond_loopback_without_tls(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="beyond loopback"):
        make_policy(tmp_path, envoy="0.0.0.0:0")


async def test_a_fleet_that_is_stopped_as_a_report_comes_stops(daemon: Daemon) -> None:
    host = daemon.host
    service = QuotaService(Node(host.resources, lambda: host.policy, host.world.clock.now))
    fleet = service.find("api")
    assert fleet is not None
    stream = fleet.open(service._node.rights.identify(None))
    assert stream is not None
    await asyncio.sleep(0.05)  # it waits for reports
    await fleet.take_in(stream, make_report("api", {"acme": (1, 1, 0)}))
    async with asyncio.timeout(5):
        await service.close()
