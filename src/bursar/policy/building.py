"""From tables that were read and found right to the frozen values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bursar.policy.values import (
    ANYONE,
    POOL_INTERVALS,
    AlertPolicy,
    ClaimPolicy,
    ClaimTenant,
    DaemonPolicy,
    Descriptor,
    PoolPolicy,
    PoolTenant,
    QuotaPolicy,
    QuotaTenant,
    RatePolicy,
    RateTenant,
    ResourcePolicy,
    Server,
    SharePolicy,
    ShareTenant,
    Table,
    Tls,
    Tracker,
    is_template,
)
from bursar.units import Rate

DEFAULT_BATCH = 1000
INTERVALS_IN_A_PERIOD = 5
STATE = "bursar-state"

Values = dict[str, Any]


def build_rate(name: str, values: Values) -> RatePolicy:
    interval = values["interval"]
    fifth_ns = max(1, values["period"] // INTERVALS_IN_A_PERIOD)
    servers = {key: _build_server(server) for key, server in values["servers"].items()}
    any_server = servers.pop(ANYONE, None)
    return RatePolicy(
        name=name,
        **_shared(values),
        period_ns=values["period"],
        interval_ns=fifth_ns if interval in (None, "auto") else interval,
        adaptive_interval=interval == "auto",
        drift_ppm=values["drift_ppm"],
        pacing=values["pacing"],
        servers=Table(servers),
        any_server=any_server,
        zones=tuple(sorted({server.zone for server in servers.values() if server.zone is not None})),
        **_tenants(RateTenant, values),
    )


def _build_server(server: Any) -> Server:
    return Server(**server) if isinstance(server, dict) else Server(capacity=server)


def build_share(name: str, values: Values) -> SharePolicy:
    capacity = values["capacity"]
    return SharePolicy(
        name=name,
        **_shared(values),
        capacity=capacity,
        interval_ns=values["interval"],
        costs=values["costs"] or (capacity.unit if capacity else "requests"),
        half_life_ns=values["half_life"],
        enforce=values["enforce"],
        device=values["device"],
        job_nodes=values["job_nodes"],
        **_tenants(ShareTenant, values),
    )


def build_pool(name: str, values: Values) -> PoolPolicy:
    batch = values["batch"]
    return PoolPolicy(
        name=name,
        **_shared(values),
        capacity=values["capacity"],
        client_capacity=values["client_capacity"],
        period_ns=values["period"],
        batch=DEFAULT_BATCH if batch == "auto" else batch,
        adaptive_batch=batch == "auto",
        pacing=values["pacing"],
        words=values["words"],
        **_tenants(PoolTenant, values),
    )


def build_pools(name: str, values: Values) -> dict[str, PoolPolicy]:
    """The one pool, or one for each of its data nodes: `records.a`, `records.b`."""
    pool = build_pool(name, values)
    if not values["nodes"]:
        return {name: pool}
    nodes: Table[Rate] = Table({f"{name}.{node}": rate for node, rate in values["nodes"].items()})
    interval_ns = pool.period_ns // POOL_INTERVALS
    return {
        each: msgspec.structs.replace(pool, name=each, capacity=rate, period_ns=interval_ns, nodes=nodes)
        for each, rate in nodes.items()
    }


def build_quota(name: str, values: Values) -> QuotaPolicy:
    tenants = {
        key: QuotaTenant(
            limit=tenant["limit"],
            parent=key.rpartition("/")[0] or None,
            overdraft=tenant["overdraft"],
            anchor=tenant["from"],
        )
        for key, tenant in values["tenant"].items()
    }
    return QuotaPolicy(
        name=name,
        **_shared(values),
        window=values["window"],
        zone=values["zone"],
        unit=values["unit"],
        mode=values["mode"],
        block=values["block"],
        warnings=tuple(sorted(values["warnings"])),
        hold_expiry_ns=values["hold_expiry"],
        over=values["over"],
        history_ns=values["history"],
        **_split(tenants),
    )


def build_claim(name: str, values: Values) -> ClaimPolicy:
    return ClaimPolicy(
        name=name,
        **_shared(values),
        paths=values["paths"],
        dead_holder=values["dead_holder"],
        attempts=values["attempts"],
        aging_ns=values["aging"],
        history_ns=values["history"],
        dead_history_ns=values["dead_history"],
        tracker=_build_tracker(values["tracker"]),
        counted=Table(values["counted"]),
        order=values["order"],
        **_tenants(ClaimTenant, values),
    )


def _build_tracker(values: Values | None) -> Tracker | None:
    if values is None:
        return None
    rest = {key: values[key] for key in ("url", "at_once", "token_file", "allow_http")}
    return Tracker(timeout_ns=values["timeout"], poll_ns=values["poll"], **rest)


BUILDERS: dict[str, Callable[[str, Values], ResourcePolicy]] = {
    "rate": build_rate,
    "share": build_share,
    "pool": build_pool,
    "quota": build_quota,
    "claim": build_claim,
}


def build_daemon(values: Values) -> DaemonPolicy:
    plain = (
        "name",
        "listen",
        "advertise",
        "http",
        "envoy",
        "metrics_tenants",
        "metrics_token_file",
        "token_file",
        "join_token_file",
        "connections",
    )
    return DaemonPolicy(
        **{key: values[key] for key in plain},
        state=values["state"] or f"{STATE}/{values['name']}",
        session_timeout_ns=values["session_timeout"],
        tls=Tls(**values["tls"]) if values["tls"] else None,
        peers=Table(values["peers"]),
    )


def build_alert(values: Values | None) -> AlertPolicy | None:
    return AlertPolicy(**values) if values is not None else None


def build_descriptors(values: Values) -> Table[Descriptor]:
    return Table({name: Descriptor(**each) for name, each in values.items()})


def _shared(values: Values) -> Values:
    return {key: values[key] for key in ("without_bursar", "shadow", "max_tenants")}


def _tenants(kind: type[Any], values: Values) -> Values:
    return _split({name: kind(**tenant) for name, tenant in values["tenant"].items()})


def _split(terms: Values) -> Values:
    """Those of tenants, and the templates for others."""
    listed = {name: each for name, each in terms.items() if not is_template(name)}
    templates = {name: each for name, each in terms.items() if is_template(name)}
    return {"tenants": Table(listed), "templates": Table(templates)}
