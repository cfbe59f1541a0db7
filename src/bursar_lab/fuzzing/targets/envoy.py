"""What Envoys send, as the services decode and handle it; and the YAML of envoyproxy/ratelimit."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import grpc
from envoy.service.rate_limit_quota.v3 import rlqs_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf.message import DecodeError

from bursar.errors import PolicyError, UsageError
from bursar.integrations.envoy import wire
from bursar.integrations.envoy.decisions import DecisionService
from bursar.integrations.envoy.importing import import_file
from bursar.integrations.envoy.node import Node
from bursar.integrations.envoy.quotas import QuotaService
from bursar.policy import parse
from bursar_lab.fuzzing.house import open_daemon
from bursar_lab.fuzzing.pieces import join, run, split
from bursar_lab.fuzzing.target import Target
from bursar_lab.fuzzing.targets.machines import find_folder


class AbortedError(Exception):
    """What gRPC raises where a service ends a call."""


class Context:
    """One call: what was sent in a stream, what was written, and how it was ended."""

    def __init__(self, messages: list[Any], left_s: float = 0.006) -> None:
        self._messages = messages
        self._left_s = left_s
        self.written: list[bytes] = []

    async def read(self) -> Any:
        return self._messages.pop(0) if self._messages else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    async def abort(self, code: Any, why: str) -> None:
        assert code is not grpc.StatusCode.INTERNAL and why, "it was ended without a word"
        raise AbortedError

    def time_remaining(self) -> float | None:
        return self._left_s

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "fuzz"


@cache
def find_node() -> Node:
    host = open_daemon().host
    return Node(host.resources, lambda: host.policy, host.world.clock.now)


# -- quotas (RLQS)


def report(data: bytes) -> None:
    """A stream of reports; what is answered is a response."""
    messages = [rlqs_pb2.RateLimitQuotaUsageReports.FromString(part) for part in split(data)[:20]]
    find_node()
    for cached in (wire._encode_tenant, wire._encode_rate):
        cached.cache_clear()  # each input is read as if it were the first
    run(_report(messages))


async def _report(messages: list[Any]) -> None:
    service = QuotaService(find_node())
    for name in ("cache", "llm"):
        fleet = service.find(name)
        if fleet is None:
            continue
        stream = fleet.open(find_node().rights.identify(None))
        assert stream is not None
        for message in messages:
            await fleet.take_in(stream, message)
            fleet.charging.run(find_node().now())
            for written in fleet.write(stream):
                rlqs_pb2.RateLimitQuotaResponse.FromString(written)
        fleet.statistics()
        fleet.close(stream)
    try:
        await service.StreamRateLimitQuotas(None, Context(messages))
    finally:
        await service.close()


def make_reports() -> Iterator[bytes]:
    form = rlqs_pb2.RateLimitQuotaUsageReports
    one = form(domain="cache")
    for tenant, allowed in (
        ("acme", 5),
        ("free", 2),
        ("other", 2**64 - 1),
        ("", 1),
        ("é" * 200, 1),
        ("a\x00", 1),
    ):
        usage = one.bucket_quota_usages.add()
        usage.bucket_id.bucket["tenant"] = tenant
        usage.num_requests_allowed = allowed
        usage.num_requests_denied = 3
        usage.time_elapsed.seconds = -(2**62) if tenant == "other" else 5
    two = form(domain="llm")
    two.bucket_quota_usages.add().bucket_id.bucket["path"] = "/"
    two.bucket_quota_usages.add()
    many = form(domain="cache")
    for number in range(300):
        many.bucket_quota_usages.add().bucket_id.bucket["tenant"] = f"t{number}"
    for each in ([one], [two], [one, one], [form(domain="nobody")], [form()], []):
        yield join(message.SerializeToString() for message in each)
    yield join([many.SerializeToString()])


# -- decisions (RLS)


def decide(data: bytes) -> None:
    """A question; the answer has a code, and a status for each descriptor. Also where no time is left."""
    request = rls_pb2.RateLimitRequest.FromString(data)
    find_node()
    for left_s in (0.006, 0.0):
        response = run(_decide(request, left_s))
        assert response.overall_code in (1, 2), "it was neither granted nor refused"
        assert len(response.statuses) == len(request.descriptors), "a descriptor has no status"
        response.SerializeToString()


async def _decide(request: Any, left_s: float) -> Any:
    service = DecisionService(find_node())
    try:
        return await service.ShouldRateLimit(request, Context([], left_s))
    finally:
        await service.close()


def make_questions() -> Iterator[bytes]:
    for domain, key, value in (
        *(("cache", "tenant", each) for each in ("acme", "stranger", "", "a\x00b", "x" * 300, "*")),
        *(("llm", "tenant", each) for each in ("acme", "globex")),
        *(("disk", "tenant", "acme"), ("vm", "tenant", "ops"), ("web", "path", "/x"), ("web", "path", "")),
        *(("cache", "path", "/login"), ("nobody", "tenant", "acme")),
    ):
        for hits in (0, 1, 2**32 - 1):
            request = rls_pb2.RateLimitRequest(domain=domain, hits_addend=hits)
            request.descriptors.add().entries.add(key=key, value=value)
            yield request.SerializeToString()
    request = rls_pb2.RateLimitRequest(domain="cache")
    for hits in (0, 1, 2**64 - 1):
        descriptor = request.descriptors.add()
        descriptor.entries.add(key="tenant", value="acme")
        descriptor.hits_addend.value = hits
    yield request.SerializeToString()
    for _ in range(40):
        request.descriptors.add()
    yield request.SerializeToString()


# -- the YAML of envoyproxy/ratelimit


def read_yaml(data: bytes) -> None:
    """What is written is TOML, and a policy or the list of what a policy cannot say."""
    file = find_folder() / "ratelimit.yaml"
    file.write_bytes(data)
    text = import_file(file)
    tomllib.loads(text)
    try:
        parse(text)
    except PolicyError:
        return


def make_yaml() -> Iterator[bytes]:
    whole = b"""domain: web
descriptors:
  - key: path
    value: /login
    rate_limit: {unit: second, requests_per_unit: 5, name: x}
    shadow_mode: true
  - key: user
    rate_limit: {unit: Minute, requests_per_unit: 100}
    descriptors:
      - key: action
        value: "a*"
        share_threshold: true
        rate_limit: {unlimited: true}
"""
    yield whole
    yield whole + b"---\n" + whole.replace(b"web", b'"a\\"b"')
    for old, new in (
        *(
            (b"second", b"year"),
            (b"5,", b"-1,"),
            (b"5,", b"true,"),
            (b"5,", b"1e999,"),
            (b"key: path", b"nokey: 1"),
        ),
        *(
            (b"shadow_mode", b"unknown"),
            (b"name:", b"nothing:"),
            (b"domain: web", b"domain: 5"),
            (b"web", b""),
        ),
        *((b"/login", b'"\\u0007"'), (b"/login", b"[1]"), (b"/login", b"1"), (b"key: user", b"key: a}b{c")),
        *(
            (b"{unit: second, requests_per_unit: 5, name: x}", b"5"),
            (b"descriptors:\n  -", b"descriptors: 7\nx:\n  -"),
        ),
    ):
        yield whole.replace(old, new)
    yield from (
        b"",
        b"[" * 500,
        b"a: &a [*a]",
        b"\xff",
        b"domain: x\n",
        b"- 1",
        b"x: !!python/name:os.system",
        b"2026-99-99",
    )
    yield b"a: &a [1]\nb: &b [*a,*a]\nc: [*b,*b]\n" + whole


WORDS = (
    b"descriptors:",
    b"rate_limit:",
    b"requests_per_unit:",
    b"unit: second",
    b"key: ",
    b"value: ",
    b"\n  - ",
    b"---\n",
)
PACKAGE = "bursar.integrations.envoy"

TARGETS = (
    Target(
        "envoy-quotas",
        (
            f"{PACKAGE}.wire",
            f"{PACKAGE}.quotas:Fleet.take_in,Fleet._take_line,Fleet._find_terms,Fleet._tell,Fleet._hold_back",
            f"{PACKAGE}.quotas:Fleet.write,read_terms",
        ),
        report,
        make_reports,
        (DecodeError, AbortedError),
    ),
    Target(
        "envoy-decisions",
        (
            f"{PACKAGE}.decisions:DecisionService.ShouldRateLimit,DecisionService._read,DecisionService._decide",
            f"{PACKAGE}.decisions:DecisionService._take,DecisionService._ask,spend,read_amount,write_grant",
            f"{PACKAGE}.decisions:write_refusal,_write_limit,find_unit",
            "bursar.policy.descriptors:Descriptors.find,Rule",
        ),
        decide,
        make_questions,
        (DecodeError, AbortedError),
        (b"cache", b"llm", b"web", b"tenant", b"acme", b"path"),
    ),
    Target(
        "envoy-import",
        (f"{PACKAGE}.importing",),
        read_yaml,
        make_yaml,
        (UsageError,),
        WORDS,
    ),
)
