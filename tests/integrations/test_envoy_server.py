"""The quota service over gRPC: ordinary reports, strange ones, and real Envoys when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.rate_limit_quota.v3 import rlqs_pb2, rlqs_pb2_grpc

from bursar.demo.ports import find_free_port
from bursar.errors import UsageError
from bursar.integrations.envoy.fleet import ABANDON, ALLOW_ALL
from bursar.integrations.envoy.server import EnvoyServer
from bursar.integrations.envoy.settings import Settings
from bursar.integrations.envoy.wire import write_orders
from bursar.policy import Policy, RatePolicy, parse
from bursar_lab.experiments.envoy.load import Load
from bursar_lab.experiments.envoy.processes import Bursar, start_envoy

POLICY = """
[resource.api]
kind = "rate"
servers = {{ service = "400/s" }}
without_bursar = "refuse"
shadow = {shadow}
[resource.api.tenant]
acme = {{ limit = "240/s" }}
other = {{ limit = "100/s" }}
[daemon]
http = "off"
state = "{state}"
"""


def make_policy(folder: Path, shadow: str = "false") -> Policy:
    return parse(POLICY.format(state=folder / "state", shadow=shadow))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[EnvoyServer, int]]:
    running = EnvoyServer(make_policy(tmp_path))
    port = await running.start("127.0.0.1:0")
    yield running, port
    await running.stop()


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


async def test_a_first_report_is_answered_with_the_limit_as_an_even_fill(server: Any) -> None:
    answer = await ask(server[1], make_report("api", {"acme": (0, 1, 0)}))
    (action,) = answer.bucket_action
    assert dict(action.bucket_id.bucket) == {"tenant": "acme"}
    assigned = action.quota_assignment_action
    assert assigned.assignment_time_to_live.seconds == 8
    fill = assigned.rate_limit_strategy.token_bucket
    assert (fill.max_tokens, fill.tokens_per_fill.value, fill.fill_interval.seconds) == (48, 2400, 10)


async def test_a_domain_that_is_no_resource_is_refused_with_those_there_are(server: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(server[1], make_report("apy", {"acme": (0, 1, 0)}))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "set domain to one of: api" in str(caught.value.details())


@pytest.mark.parametrize(("name", "key"), [("stranger", "tenant"), ("acme", "tennant")])
async def test_a_tenant_that_is_not_in_the_policy_gets_nothing_and_costs_nothing(
    server: Any, name: str, key: str
) -> None:
    answer = await ask(server[1], make_report("api", {name: (0, 1, 0)}, key))
    (action,) = answer.bucket_action
    assert dict(action.bucket_id.bucket) == {key: name}
    assert action.quota_assignment_action.rate_limit_strategy.blanket_rule == 1
    assert server[0].fleets["api"].counts["unknown_tenants"] == 1


async def test_two_envoys_share_a_limit(server: Any) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server[1]}") as channel:
        calls = [open_stream(channel), open_stream(channel)]
        for call in calls:
            await call.write(make_report("api", {"acme": (0, 1, 0)}))
            await asyncio.wait_for(call.read(), 5)
        book = server[0].fleets["api"].book
        assert book.current[0].sum() <= 2400
        assert (book.current[0] > 500).all()
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("name", ["a", "x" * 100, "é" * 120])
def test_joined_encodings_are_the_message_itself(name: str) -> None:
    rates = {name: 2400, "none": 0, "gone": ABANDON, "free": ALLOW_ALL, "fast": 2**40}
    (response,) = write_orders(rates, 8, 0.2)
    actions = rlqs_pb2.RateLimitQuotaResponse.FromString(response).bucket_action
    assert [dict(action.bucket_id.bucket)["tenant"] for action in actions] == list(rates)
    first, none, gone, free, fast = (action.quota_assignment_action for action in actions)
    assert first.rate_limit_strategy.token_bucket.tokens_per_fill.value == 2400
    assert none.rate_limit_strategy.blanket_rule == 1
    assert actions[2].HasField("abandon_action") and not actions[2].HasField("quota_assignment_action")
    assert gone.ByteSize() == 0
    assert free.rate_limit_strategy.WhichOneof("strategy") == "blanket_rule"
    assert free.rate_limit_strategy.blanket_rule == 0
    assert fast.rate_limit_strategy.token_bucket.tokens_per_fill.value == 2**32 - 1


def test_many_orders_come_in_pieces() -> None:
    pieces = write_orders({f"t{n}": n for n in range(12_000)}, 8, 0.2)
    counts = [len(rlqs_pb2.RateLimitQuotaResponse.FromString(piece).bucket_action) for piece in pieces]
    assert counts == [5000, 5000, 2000]


async def test_in_shadow_everybody_is_let_through(tmp_path: Path) -> None:
    server = EnvoyServer(make_policy(tmp_path, shadow="true"))
    port = await server.start("127.0.0.1:0")
    try:
        answer = await ask(port, make_report("api", {"acme": (0, 1, 0)}))
    finally:
        await server.stop()
    assigned = answer.bucket_action[0].quota_assignment_action
    assert assigned.rate_limit_strategy.WhichOneof("strategy") == "blanket_rule"
    assert assigned.rate_limit_strategy.blanket_rule == 0


async def test_absurd_numbers_are_bounded(server: Any) -> None:
    most = 2**64 - 1
    await ask(server[1], make_report("api", {"acme": (2**60, most, most)}))
    assert 0 < server[0].fleets["api"].book.current.sum() <= 2400


async def test_it_does_not_listen_beyond_loopback_without_tls(tmp_path: Path) -> None:
    server = EnvoyServer(make_policy(tmp_path))
    with pytest.raises(UsageError, match="beyond loopback"):
        await server.start("0.0.0.0:0")
    await server.stop()


@pytest.mark.parametrize("bad", [{"time_to_live_s": 5}, {"overlap": -0.1}, {"burst_s": 0.0}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="pass"):
        Settings(**bad)


async def test_a_restart_learns_and_a_first_start_does_not(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)
    first = EnvoyServer(policy)
    assert first.fleets["api"].book.learnt_at <= first.fleets["api"]._clock.now()
    await first.start("127.0.0.1:0")
    await first.stop()
    second = EnvoyServer(policy)
    assert second.fleets["api"].book.learnt_at > second.fleets["api"]._clock.now()


# --- real Envoys --------------------------------------------------------------------------------

MODES = {"keep": '"keep"', "refuse": '"refuse"', "safe": '{ safe = "10/s" }'}
RESOURCE = """
[resource.{name}]
kind = "rate"
servers = {{ service = "auto" }}
without_bursar = {mode}
[resource.{name}.tenant]
acme = {{ limit = "40/s" }}
"""


SENT = 80


def rate_of(load: Load, envoy: str, start: float, end: float) -> float:
    """Admitted a second, over the seconds in which a busy machine did send the load."""
    seconds = [s for s in range(int(start), int(end)) if load.offered((envoy,), "acme", s) >= 0.9 * SENT]
    assert seconds, f"the machine is too busy to send {SENT} requests a second"
    return sum(load.admitted((envoy,), "acme", second) for second in seconds) / len(seconds)


@pytest.mark.needs("envoy")
async def test_without_bursar_real_envoys_do_what_the_policy_says_and_a_restart_brings_no_burst(
    tmp_path: Path,
) -> None:
    text = "".join(RESOURCE.format(name=name, mode=mode) for name, mode in MODES.items())
    text += f'[daemon]\nhttp = "off"\nstate = "{tmp_path / "state"}"\n'
    file, port = tmp_path / "policy.toml", find_free_port()
    file.write_text(text)
    policies = parse(text).resources
    options = ("--time-to-live", "6")
    bursar = Bursar(file, port, tmp_path / "bursar.log", options)
    envoys = {}
    try:
        for name, policy in policies.items():
            assert isinstance(policy, RatePolicy)
            envoys[name] = start_envoy(tmp_path, name, policy, port)
        load = Load({name: envoy.port for name, envoy in envoys.items()})
        load.rates = {(name, "acme"): float(SENT) for name in envoys}
        await load.run(4)
        for name in envoys:
            assert 34 <= rate_of(load, name, 1, 4) <= 46, name
        bursar.kill()
        killed_at = load.now_s
        await load.run(killed_at + 12)
        alone = {name: rate_of(load, name, killed_at + 9, killed_at + 12) for name in envoys}
        assert 34 <= alone["keep"] <= 46
        assert alone["refuse"] == 0
        assert 7 <= alone["safe"] <= 13
        bursar = Bursar(file, port, tmp_path / "bursar.log", options)
        back_at = load.now_s
        await load.run(back_at + 14)
        for name in envoys:
            seconds = range(int(back_at), int(back_at) + 13)
            most = max(load.admitted((name,), "acme", second) for second in seconds)
            assert most <= 40 * 1.5 + 8, name
            assert 34 <= rate_of(load, name, back_at + 11, back_at + 14) <= 46, name
        load.close()
    finally:
        for process in (bursar, *envoys.values()):
            process.stop()
