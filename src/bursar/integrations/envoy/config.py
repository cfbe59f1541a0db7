"""What Envoy needs to know: the filter and the cluster to paste into its configuration.

Two traps of Envoy 1.40 are avoided here. A token bucket as `no_assignment_behavior` crashes it, so
an Envoy without assignment allows or denies everything; and it does not honour
`reuse_last_assignment`, so "keep" is a long time to live instead.
"""

from __future__ import annotations

import json
from typing import Any

from bursar.errors import UsageError
from bursar.integrations.envoy.fleet import FILL_S
from bursar.integrations.envoy.settings import KEEP_S, REPORT_S
from bursar.integrations.envoy.wire import TENANT
from bursar.policy import RatePolicy
from bursar.runtime.routes import Address
from bursar.world import SECOND_NS

CLUSTER = "bursar_rlqs"
LISTED_MAX = 2_000
"""Tenants listed by name in the filter; more are taken from the header as they come, and then
the names of strangers cost Envoy memory."""

UNKNOWN = "unknown"
_TYPES = "type.googleapis.com/envoy."
_FILTER = _TYPES + "extensions.filters.http.rate_limit_quota.v3."
_HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def make_filter(policy: RatePolicy, header: str, *, first: str | None = None, others: str = "deny") -> Any:
    """The HTTP filter. `first`: allow or deny while there is no assignment (otherwise what
    without_bursar says); `others`: what happens to requests of tenants not in the policy."""
    for name, value in (("first", first), ("others", others)):
        if value not in (None, "allow", "deny"):
            raise UsageError(f"{name} is {value!r}: pass allow or deny")
    keeps = policy.without_bursar.mode == "keep"
    rule = f"{(first or ('allow' if keeps else 'deny')).upper()}_ALL"
    return {
        "name": "envoy.filters.http.rate_limit_quota",
        "typed_config": {
            "@type": _FILTER + "RateLimitQuotaFilterConfig",
            "domain": policy.name,
            "rlqs_server": {"envoy_grpc": {"cluster_name": CLUSTER}},
            "bucket_matchers": _make_matchers(policy, header, rule, others),
        },
    }


def _make_matchers(policy: RatePolicy, header: str, rule: str, others: str) -> Any:
    source = {"@type": _TYPES + "type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": header}
    picked = {"name": "tenant_header", "typed_config": source}
    if len(policy.tenants) > LISTED_MAX:
        return {"on_no_match": _make_action(policy, "tenant", {"custom_value": picked}, rule)}
    listed = {name: _make_action(policy, name, {"string_value": name}, rule) for name in policy.tenants}
    matchers: dict[str, Any] = {"matcher_tree": {"input": picked, "exact_match_map": {"map": listed}}}
    if others == "deny":
        matchers["on_no_match"] = _make_action(policy, UNKNOWN, {"string_value": "1"}, "DENY_ALL", UNKNOWN)
    return matchers


def _make_action(policy: RatePolicy, name: str, value: Any, rule: str, key: str = TENANT) -> Any:
    settings: dict[str, Any] = {
        "@type": _FILTER + "RateLimitQuotaBucketSettings",
        "bucket_id_builder": {"bucket_id_builder": {key: value}},
        "reporting_interval": f"{REPORT_S}s",
        "no_assignment_behavior": {"fallback_rate_limit": {"blanket_rule": rule}},
        "deny_response_settings": {"http_status": {"code": "TooManyRequests"}},
    }
    safe = policy.without_bursar.rate
    if policy.without_bursar.mode == "safe" and safe is not None:
        settings["expired_assignment_behavior"] = {
            "expired_assignment_behavior_timeout": f"{KEEP_S}s",
            "fallback_rate_limit": {
                "token_bucket": {
                    "max_tokens": max(1, safe.per(SECOND_NS // 5)),
                    "tokens_per_fill": max(1, safe.per(FILL_S * SECOND_NS)),
                    "fill_interval": f"{FILL_S}s",
                }
            },
        }
    elif policy.without_bursar.mode == "refuse":
        settings["expired_assignment_behavior"] = {
            "expired_assignment_behavior_timeout": f"{KEEP_S}s",
            "fallback_rate_limit": {"blanket_rule": "DENY_ALL"},
        }
    return {"action": {"name": name, "typed_config": settings}}


def make_cluster(address: str) -> Any:
    """The cluster of the server at `address`."""
    at = Address.parse(address)
    socket = {"socket_address": {"address": at.host, "port_value": at.port}}
    http2: dict[str, Any] = {"explicit_http_config": {"http2_protocol_options": {}}}
    options = {"@type": f"type.googleapis.com/{_HTTP2}", **http2}
    return {
        "name": CLUSTER,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {_HTTP2: options},
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket}}]}],
        },
    }


def write_yaml(value: Any, indent: int = 0) -> str:
    """YAML for people: block style; texts quoted as JSON, which YAML reads too."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(_write_pair(pad, _write_key(key), inner, indent) for key, inner in value.items())
    if isinstance(value, list) and value:
        items = (write_yaml(item, indent + 1) for item in value)
        return "".join(f"{pad}- {text[len(pad) + 2 :]}" for text in items)
    return f"{pad}{json.dumps(value)}\n"


def _write_pair(pad: str, key: str, inner: Any, indent: int) -> str:
    if isinstance(inner, dict | list) and inner:
        return f"{pad}{key}:\n{write_yaml(inner, indent + 1)}"
    return f"{pad}{key}: {json.dumps(inner)}\n"


def _write_key(key: str) -> str:
    """Bare where YAML cannot take it for anything but a text (it takes `no` and `1e3` for others)."""
    plain = len(key) > 5 and key.replace("_", "a").isascii() and key.replace("_", "a").isalpha()
    return key if plain or key in ("name", "type", "input", "map", "code") else json.dumps(key)


def write_config(
    policy: RatePolicy, address: str, header: str, *, first: str | None = None, others: str = "deny"
) -> str:
    return (
        "# into http_filters of the HTTP connection manager, before envoy.filters.http.router:\n"
        + write_yaml([make_filter(policy, header, first=first, others=others)])
        + "\n# into static_resources.clusters:\n"
        + write_yaml([make_cluster(address)])
    )
