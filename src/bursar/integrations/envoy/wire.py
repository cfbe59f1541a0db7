"""Between the book and Envoy's messages. Whatever an Envoy sends is bounded and checked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from envoy.service.rate_limit_quota.v3 import rlqs_pb2
from envoy.type.v3 import ratelimit_strategy_pb2

from bursar.integrations.envoy.cells import ABANDON, ALLOW_ALL, FILL_S

COUNT_MAX = 2**40
ELAPSED_MAX_S = 3600
UNKNOWN_MAX = 1000
"""Lines of one report about tenants that the policy does not have, that are answered."""

TENANT = "tenant"
RATE_MAX = 2**32 - 1
"""Tokens a fill interval: Envoy counts them in 32 bits."""

ACTIONS_MAX = 5_000
"""Tenants in one response: a few hundred kilobytes."""

_DENY = ratelimit_strategy_pb2.RateLimitStrategy.DENY_ALL
_ALLOW = ratelimit_strategy_pb2.RateLimitStrategy.ALLOW_ALL


Line = tuple[str, int, int, int, Any]
"""tenant, whole seconds that passed, requests allowed and denied, and the bucket's id as it came"""


def read_report(message: Any) -> tuple[list[Line], list[Any]]:
    """The lines of one report; and the ids of buckets that are no tenant's."""
    lines: list[Line] = []
    unknown: list[Any] = []
    for usage in message.bucket_quota_usages:
        bucket = usage.bucket_id.bucket
        # A missing key would be added by reading it: `get` does not.
        tenant = bucket.get(TENANT, "") if len(bucket) == 1 else ""
        if tenant:
            elapsed_s = min(max(usage.time_elapsed.seconds, 0), ELAPSED_MAX_S)
            allowed, denied = usage.num_requests_allowed, usage.num_requests_denied
            line = tenant, elapsed_s, min(allowed, COUNT_MAX), min(denied, COUNT_MAX), usage.bucket_id
            lines.append(line)
        elif bucket:
            unknown.append(usage.bucket_id)
    return lines, unknown


def deny_unknown(bucket_ids: Sequence[Any], time_to_live_s: int) -> bytes:
    """Tenants that the policy does not have get nothing, and are not remembered here."""
    response = rlqs_pb2.RateLimitQuotaResponse()
    for bucket_id in bucket_ids[:UNKNOWN_MAX]:
        action = response.bucket_action.add()
        action.bucket_id.CopyFrom(bucket_id)
        assigned = action.quota_assignment_action
        assigned.assignment_time_to_live.seconds = time_to_live_s
        assigned.rate_limit_strategy.blanket_rule = _DENY
    return bytes(response.SerializeToString())


def write_orders(orders: Mapping[str, tuple[int, int]], time_to_live_s: int) -> list[bytes]:
    """Responses with a rate and a burst for each tenant (or ALLOW_ALL, ABANDON), in pieces of bounded size.

    Protocol buffers that stand one after the other are one message with the fields of both, so a
    tenant's id and a rate are each encoded once and joined: five times as fast as building it."""
    responses, piece = [], bytearray()
    for number, (tenant, (rate, burst)) in enumerate(orders.items(), start=1):
        action = _encode_tenant(tenant) + _encode_rate(rate, time_to_live_s, burst)
        piece += _ACTION + _encode_length(len(action)) + action
        if number % ACTIONS_MAX == 0:
            responses.append(bytes(piece))
            piece.clear()
    if piece:
        responses.append(bytes(piece))
    return responses


_ACTION = b"\x0a"
"""The tag of `bucket_action`: field 1, a message."""


def _encode_length(length: int) -> bytes:
    """A varint of at most 14 bits: a tenant's name has 255 bytes at most."""
    return bytes((length,)) if length < 128 else bytes((length & 127 | 128, length >> 7))


@lru_cache(maxsize=200_000)
def _encode_tenant(tenant: str) -> bytes:
    action = rlqs_pb2.RateLimitQuotaResponse.BucketAction()
    action.bucket_id.bucket[TENANT] = tenant
    return bytes(action.SerializeToString())


@lru_cache(maxsize=50_000)
def _encode_rate(rate: int, time_to_live_s: int, burst: int) -> bytes:
    action = rlqs_pb2.RateLimitQuotaResponse.BucketAction()
    if rate == ABANDON:
        action.abandon_action.SetInParent()
    else:
        assigned = action.quota_assignment_action
        assigned.assignment_time_to_live.seconds = time_to_live_s
        write_strategy(assigned.rate_limit_strategy, rate, burst)
    return bytes(action.SerializeToString())


def write_strategy(strategy: Any, rate: int, burst: int) -> None:
    if rate <= 0:
        strategy.blanket_rule = _ALLOW if rate == ALLOW_ALL else _DENY
        return
    bucket = strategy.token_bucket
    bucket.max_tokens = min(max(1, burst), RATE_MAX)
    bucket.tokens_per_fill.value = min(rate, RATE_MAX)
    bucket.fill_interval.seconds = FILL_S
