"""What Envoy needs to know: the filter and the cluster to paste into its configuration.

Two traps of Envoy 1.40 are avoided here. A token bucket as `no_assignment_behavior` crashes it, so
an Envoy without assignment allows or denies everything; and it does not honour
`reuse_last_assignment`, so "keep" is a long time to live instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from bursar.errors import UsageError
from bursar.integrations.envoy.cells import FILL_S
from bursar.integrations.envoy.quotas import KEEP_S
from bursar.integrations.envoy.wire import TENANT
from bursar.policy import RatePolicy, Tls
from bursar.policy.names import is_ip_address, is_loopback
from bursar.policy.values import ANYONE, ResourcePolicy
from bursar.runtime.routes import Address
from bursar.world import SECOND_NS

CLUSTER = "bursar_rlqs"
REPORT_S = 5
"""How often Envoy reports, whatever its configuration says (seen in 1.40)."""

KEEPALIVE_S = 10
"""An Envoy misses a server whose machine is gone by the pings of HTTP/2: a stream alone says nothing."""

ASK_TIMEOUT_S = 0.05
"""Envoy's own default is 20 ms, which one pause of a busy machine is longer than."""

UNKNOWN = "unknown"
_TYPES = "type.googleapis.com/envoy."
_FILTER = _TYPES + "extensions.filters.http.rate_limit_quota.v3."
_HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_TLS = _TYPES + "extensions.transport_sockets.tls.v3.UpstreamTlsContext"


def make_filter(policy: RatePolicy, header: str, *, first: str | None = None, others: str = "deny") -> Any:
    """The HTTP filter. `first`: allow or deny while there is no assignment (otherwise what
    without_bursar says); `others`: what happens to requests of tenants not in the policy."""
    for name, value in (("first", first), ("others", others)):
        if value not in (None, "allow", "deny"):
            raise UsageError(f"{name} is {value!r}: pass allow or deny")
    if not policy.tenants and not policy.templates:
        raise UsageError(
            f"{policy.name} has no tenants: add some, or a template, to [resource.{policy.name}.tenant]"
        )
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
    """Listed tenants by their names, however many there are, and templates by what they stand for: a request
    without the header, or with a name that nobody has, matches none of them and costs Envoy no bucket of its
    own."""
    source = {"@type": _TYPES + "type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": header}
    picked = {"name": "tenant_header", "typed_config": source}
    granted = Shared("tenant", _make_action(policy, "tenant", {"custom_value": picked}, rule))
    unmatched: Any = None
    if others == "deny":
        unmatched = _make_action(policy, UNKNOWN, {"string_value": "1"}, "DENY_ALL", UNKNOWN)
    if policy.templates:
        unmatched = {"matcher": _match_templates(policy, picked, granted, unmatched)}
    matchers = unmatched["matcher"] if policy.templates else {}
    if policy.tenants:
        listed = dict.fromkeys(policy.tenants, granted)
        matchers = {"matcher_tree": {"input": picked, "exact_match_map": {"map": listed}}}
        if unmatched is not None:
            matchers["on_no_match"] = unmatched
    return matchers


def _match_templates(policy: RatePolicy, picked: Any, granted: Any, unmatched: Any) -> Any:
    """A header that is present, and has the name of one that a template stands for."""
    tests = [
        {
            "predicate": {
                "single_predicate": {
                    "input": picked,
                    "value_match": {"safe_regex": {"google_re2": {}, "regex": regex}},
                }
            },
            "on_match": granted,
        }
        for regex in map(write_regex, policy.templates)
    ]
    found: dict[str, Any] = {"matcher_list": {"matchers": tests}}
    if unmatched is not None:
        found["on_no_match"] = unmatched
    return found


def write_regex(template: str) -> str:
    """The names that it stands for, as far as a header has them: printable ASCII, without a space at either
    end. (How long they are is not said: Envoy takes no expression of that size; the node denies them.)"""
    return f"{re.escape(template.removesuffix(ANYONE))}[!-~]([ -~]*[!-~])?"


class Shared(dict[str, Any]):
    """Something that stands in many places. YAML writes it once, under this name, and refers to it."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(value)
        self.name = name


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


def make_asking_filter(resource: ResourcePolicy, header: str) -> Any:
    """The filter that asks about every request (RLS). What is not answered in time is denied."""
    action = {"request_headers": {"header_name": header, "descriptor_key": TENANT}}
    return {
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": _TYPES + "extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": resource.name,
            "timeout": f"{ASK_TIMEOUT_S}s",
            "failure_mode_deny": True,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "grpc_service": {"envoy_grpc": {"cluster_name": CLUSTER}},
                "transport_api_version": "V3",
            },
            "rate_limits": [{"actions": [action]}],
        },
    }


def make_cluster(addresses: str | Sequence[str], tls: Tls | None = None) -> Any:
    """The cluster of the nodes at `addresses`; `tls`: files that Envoy shows and trusts, on its machine."""
    each = [addresses] if isinstance(addresses, str) else list(addresses)
    for address in each:
        if tls is None and not is_loopback(address):
            raise UsageError(f"{address} is beyond loopback, which takes TLS: pass --cert, --key and --ca")
    nodes = [Address.parse(address) for address in each]
    keepalive = {"interval": f"{KEEPALIVE_S}s", "timeout": f"{KEEPALIVE_S // 2}s"}
    http2 = {"explicit_http_config": {"http2_protocol_options": {"connection_keepalive": keepalive}}}
    options = {"@type": f"type.googleapis.com/{_HTTP2}", **http2}
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": node.host, "port_value": node.port}}}}
        for node in nodes
    ]
    cluster = {
        "name": CLUSTER,
        "type": "STRICT_DNS",
        "dns_lookup_family": "ALL",  # else `localhost` is ::1 alone, where nobody listens
        "connect_timeout": "1s",
        # A node that refuses connections is left out for some seconds: streams go to the others.
        "outlier_detection": {
            "consecutive_gateway_failure": 2,
            "consecutive_5xx": 2,
            "base_ejection_time": "5s",
            "interval": "1s",
            "max_ejection_percent": 100 if len(nodes) > 1 else 0,
        },
        "typed_extension_protocol_options": {_HTTP2: options},
        "load_assignment": {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": endpoints}]},
    }
    if tls is not None:
        cluster["transport_socket"] = _make_transport([node.host for node in nodes], tls)
    return cluster


def _make_transport(hosts: Sequence[str], tls: Tls) -> Any:
    """Mutual TLS 1.3, as the nodes want it; a node's certificate must have a name that is dialled."""
    names = [
        {"san_type": "IP_ADDRESS" if is_ip_address(host) else "DNS", "matcher": {"exact": host}}
        for host in dict.fromkeys(hosts)
    ]
    certificate = {"certificate_chain": {"filename": tls.cert}, "private_key": {"filename": tls.key}}
    common = {
        "alpn_protocols": ["h2"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
        "tls_certificates": [certificate],
        "validation_context": {
            "trusted_ca": {"filename": tls.ca},
            "match_typed_subject_alt_names": names,
        },
    }
    context = {"@type": _TLS, "sni": hosts[0], "common_tls_context": common}
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def write_yaml(value: Any) -> str:
    """YAML for people: block style; texts quoted as JSON, which YAML reads too."""
    return _write(value, 0, set())


def _write(value: Any, indent: int, written: set[str]) -> str:
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(_write_pair(pad, key, inner, indent, written) for key, inner in value.items())
    if isinstance(value, list) and value:
        items = (_write(item, indent + 1, written) for item in value)
        return "".join(f"{pad}- {text[len(pad) + 2 :]}" for text in items)
    return f"{pad}{json.dumps(value)}\n"


def _write_pair(pad: str, key: str, inner: Any, indent: int, written: set[str]) -> str:
    start = f"{pad}{_write_key(key)}:"
    if isinstance(inner, Shared):
        if inner.name in written:
            return f"{start} *{inner.name}\n"
        written.add(inner.name)
        start += f" &{inner.name}"
    if isinstance(inner, dict | list) and inner:
        return f"{start}\n{_write(inner, indent + 1, written)}"
    return f"{start} {json.dumps(inner)}\n"


def _write_key(key: str) -> str:
    """Bare where YAML cannot take it for anything but a text (it takes `no` and `1e3` for others)."""
    plain = len(key) > 5 and key.replace("_", "a").isascii() and key.replace("_", "a").isalpha()
    return key if plain or key in ("name", "type", "input", "map", "code") else json.dumps(key)


def write_config(
    policy: ResourcePolicy,
    addresses: str | Sequence[str],
    header: str,
    *,
    first: str | None = None,
    others: str = "deny",
    tls: Tls | None = None,
    asks: bool = False,
) -> str:
    """`asks`: about every request."""
    if asks:
        http_filter = make_asking_filter(policy, header)
    else:
        assert isinstance(policy, RatePolicy), "others are asked about"
        http_filter = make_filter(policy, header, first=first, others=others)
    return (
        "# into http_filters of the HTTP connection manager, before envoy.filters.http.router:\n"
        + write_yaml([http_filter])
        + "\n# into static_resources.clusters:\n"
        + write_yaml([make_cluster(addresses, tls)])
    )
