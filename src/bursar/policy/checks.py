"""What no single key can say: how the keys of a policy must fit together.

Each check reports to the place where the user would make the change, with the two values that
do not fit. A value that was already found wrong is left out (`is_read`).
"""

from __future__ import annotations

from typing import Any

from bursar.policy.descriptors import check_payer
from bursar.policy.names import check_tenant_name, find_host, is_loopback
from bursar.policy.shapes import Path, Place, is_read
from bursar.policy.values import ANYONE, is_template
from bursar.units import SECOND_NS, Rate, write_duration

HELD_PART = 0.9
TOKENS_MAX = 2**53
"""The most tokens in one period: whole numbers up to here are exact as floats too, which the
allocation's solvers rely on."""

ANCHORED = ("week", "month", "year")

Values = dict[str, Any]


def check_rate(raw: Values, values: Values, place: Place) -> None:
    period_ns, interval = values["period"], values["interval"]
    if is_read(period_ns, interval) and interval != "auto" and interval > period_ns:
        place.at("interval").complain(
            f'"{raw["interval"]}" is longer than the period, {write_duration(period_ns)}',
            f'write an interval that is a part of the period, such as "{write_duration(period_ns // 5)}"',
        )
    _check_zones(values["servers"] or {}, place.at("servers"))
    for name, server in (values["servers"] or {}).items():
        capacity = server.get("capacity") if isinstance(server, dict) else server
        _check_tokens(capacity, period_ns, place.at("servers", name))
    for name, tenant in (values["tenant"] or {}).items():
        if is_read(tenant):
            _check_bounds(name, tenant, period_ns, place.at("tenant", name))
            _check_burst(tenant["burst"], tenant["limit"], period_ns, place.at("tenant", name, "burst"))
            _check_placement(tenant["servers"], values["servers"], place.at("tenant", name, "servers"))


def check_share(raw: Values, values: Values, place: Place) -> None:
    capacity, costs = values["capacity"], values["costs"]
    if is_read(capacity, costs) and capacity.unit != costs:
        place.at("costs").complain(
            f'costs are counted in {costs}, and capacity "{raw["capacity"]}" in {capacity.unit}',
            f'write costs = "{capacity.unit}", or a capacity in {costs}',
        )
    _check_tokens(capacity, values["interval"], place.at("capacity"))
    if values["enforce"] in ("blkio", "io.max") and not values["device"] and "device" not in raw:
        place.at("device").complain(
            f'enforce = "{values["enforce"]}" holds limits at a disk, and none is named',
            'add device = "/dev/vda", the disk or a file on it',
        )
    if values["job_nodes"] and values["enforce"] != "lustre":
        place.at("job_nodes").complain(
            f'jobs have nodes where enforce = "lustre", and here it is "{values["enforce"]}"', "leave it out"
        )
    fallback: Any = values["without_bursar"]
    safe: Any = fallback.rate if is_read(fallback) else None
    expected = costs or (capacity.unit if is_read(capacity) else None)
    if is_read(safe, expected) and safe.unit != expected:
        remedy = f"write a rate in {expected}"
        place.at("without_bursar", "safe").complain(f'"{safe}" is not counted in {expected}', remedy)


def check_pool(raw: Values, values: Values, place: Place) -> None:
    capacity, period_ns = values["capacity"], values["period"]
    _check_tokens(capacity, period_ns, place.at("capacity"))
    client = values["client_capacity"]
    if is_read(capacity, client) and client > capacity:
        place.at("client_capacity").complain(
            f"one client cannot do more ({client}) than the data node can ({capacity})",
            f'write at most "{capacity}"',
        )
    for name, tenant in (values["tenant"] or {}).items():
        if is_read(tenant):
            _check_bounds(name, tenant, period_ns, place.at("tenant", name))
    if values["nodes"]:
        _check_nodes(raw, values, place)


def _check_nodes(raw: Values, values: Values, place: Place) -> None:
    """Of a pool of several data nodes."""
    if "capacity" in raw:
        place.at("capacity").complain("each node has a capacity of its own", "leave it out")
    if is_read(values["period"]) and values["period"] < SECOND_NS:
        place.at("period").complain(
            "with nodes, reservations are placed anew ten times in a period", 'write at least "1s"'
        )
    for name, tenant in (values["tenant"] or {}).items():
        if is_read(tenant) and tenant["limit"] is not None:
            place.at("tenant", name, "limit").complain(
                "nodes do not ask each other before they grant, so no limit holds over all of them",
                "leave it out, or use the kind rate",
            )


def check_quota(raw: Values, values: Values, place: Place) -> None:
    tenants = values["tenant"] or {}
    for name, tenant in tenants.items():
        at = place.at("tenant", name)
        if "/" in name and not check_tenant_name(name):
            _check_parent(name, tenant, tenants, at)
        if is_read(tenant, values["over"]) and is_read(tenant["overdraft"]):
            _check_overdraft(tenant["overdraft"], values["over"], at)
        if is_read(tenant, values["window"]) and tenant["from"] and values["window"] not in ANCHORED:
            what = f'window = "{values["window"]}" does not begin on a day of its own'
            at.at("from").complain(what, f"leave it out, or write window = one of {', '.join(ANCHORED)}")
        if is_read(tenant, values["unit"]) and values["unit"] != "bytes":
            written = raw["tenant"][name].get("limit")
            if isinstance(written, str) and written.endswith("B"):
                remedy = f'add unit = "bytes" to the resource, or write a count of {values["unit"]}'
                at.at("limit").complain(f'"{written}" is a size, and the unit is "{values["unit"]}"', remedy)


def _check_overdraft(overdraft: int, over: str, place: Place) -> None:
    if overdraft and over != "overdraft":
        place.at("overdraft").complain(
            f'there is an overdraft, and over = "{over}" uses none',
            'add over = "overdraft" to the resource, or leave this out',
        )


def check_claim(raw: Values, values: Values, place: Place) -> None:
    if is_read(values["tracker"]) and values["tracker"] is not None:
        _check_clear(values["tracker"], "tasks", place.at("tracker"))


CHECKS = {
    "rate": check_rate,
    "share": check_share,
    "pool": check_pool,
    "quota": check_quota,
    "claim": check_claim,
}


def check_daemon(daemon: Values, store: Any, place: Place) -> None:
    peers = daemon["peers"] if is_read(daemon["peers"]) else {}
    addresses: dict[Path, Any] = {("listen",): daemon["listen"]}
    if daemon["http"] is not None:
        addresses["http",] = daemon["http"]
    if daemon["envoy"] is not None:
        addresses["envoy",] = daemon["envoy"]
    addresses |= {("peers", name): address for name, address in peers.items()}
    beyond = {path: host for path, host in addresses.items() if is_read(host) and not is_loopback(host)}
    if daemon["tls"] is None:
        for path, address in beyond.items():
            place.at(*path).complain(
                f'"{address}" is beyond loopback, and there is no tls: tokens would be sent in clear',
                'add tls = { cert = "node.crt", key = "node.key", ca = "ca.crt" }, or keep to 127.0.0.1',
            )
    _check_reach(store, peers, any(path[0] == "peers" for path in beyond), place)


ENVOY_LEAST = Rate(1, 600 * SECOND_NS)
"""The least that an Envoy can be told."""


def check_envoy(resources: Values, place: Place) -> None:
    """Limits that Envoys hold must be ones that they, and the periods, can hold."""
    for name, found in resources.items():
        raw, values = found if is_read(found) else ({}, {})
        if raw.get("kind") == "rate" and is_read(values["period"], values["tenant"]):
            for tenant, terms in values["tenant"].items():
                limit = terms["limit"] if is_read(terms) else None
                if limit is not None and is_read(limit) and limit.count:
                    _check_held(limit, values["period"], place.at(name, "tenant", tenant, "limit"))


def _check_held(limit: Rate, period_ns: int, place: Place) -> None:
    if limit < ENVOY_LEAST:
        place.complain(
            f"{limit} is less than one in ten minutes, the least that an Envoy can be told",
            "write a larger rate, or make it a quota that is asked about each request",
        )
    elif limit.per(period_ns) * limit.per_ns < HELD_PART * limit.count * period_ns:
        length, better = write_duration(period_ns), write_duration(limit.per_ns)
        place.complain(
            f"{limit} is only {limit.per(period_ns)} whole tokens in {length}",
            f'write period = "{better}" for the resource',
        )


def check_descriptors(descriptors: Any, resources: Values, place: Place) -> None:
    for name, each in (descriptors or {}).items():
        if not is_read(each) or not is_read(*each.values()):
            continue
        if each["resource"] not in resources:
            some = ", ".join(list(resources)[:8])
            wrong = f'there is no resource "{each["resource"]}"'
            place.at(name, "resource").complain(wrong, f"write one of: {some}")
        wrong_payer = check_payer(each["tenant"], each["match"])
        if wrong_payer:
            keys = ", ".join("{" + entry.partition("=")[0] + "}" for entry in each["match"])
            place.at(name, "tenant").complain(wrong_payer, f"write a name, with values in braces: {keys}")


def check_alert(alert: Values, place: Place) -> None:
    _check_clear(alert, "alerts", place)


def _check_clear(table: Values, what: str, place: Place) -> None:
    url = table["url"]
    if not is_read(url, table["allow_http"]) or table["allow_http"] or url.startswith("https:"):
        return
    if not is_loopback(find_host(url)):
        place.at("url").complain(
            f'"{url}" is beyond loopback, and not https: {what} would be sent in clear',
            "write https://, or add allow_http = true if that is what you want",
        )


def _check_reach(store: Any, peers: Values, several_hosts: bool, place: Place) -> None:
    """Daemons that are peers must be able to see one store."""
    if not is_read(store) or not peers:
        return
    remedy = 'set store = "zookeeper://a:2181,b:2181,c:2181/bursar" at the top of the file'
    if store == "memory://":
        place.at("peers").complain("its peers cannot see a store in the memory of one process", remedy)
    elif store.startswith("sqlite:") and several_hosts:
        place.at("peers").complain("peers on other hosts cannot see an SQLite store", remedy)


def _check_bounds(name: str, tenant: Values, period_ns: Any, place: Place) -> None:
    reservation, limit = tenant["reservation"], tenant["limit"]
    if is_template(name) and is_read(reservation) and reservation.count:
        place.at("reservation").complain(
            f'"{name}" stands for any number of tenants, and no server could reserve for all of them',
            "leave it out, or list the tenants that have a reservation",
        )
    if is_read(reservation, limit) and limit < reservation:
        place.at("limit").complain(
            f"the limit, {limit}, is below the reservation, {reservation}",
            f'write a limit of at least "{reservation}", or a smaller reservation',
        )
    _check_tokens(reservation, period_ns, place.at("reservation"))
    _check_tokens(limit, period_ns, place.at("limit"))


def _check_tokens(rate: Rate | Any, period_ns: Any, place: Place) -> None:
    """A rate must come to whole tokens in a period: neither none of them, nor too many."""
    if not is_read(rate, period_ns):
        return
    length = write_duration(period_ns)
    if rate.count and rate.per(period_ns) == 0:
        enough = write_duration(-(-rate.per_ns // rate.count))
        remedy = f'write a larger rate, or a period (or interval) of at least "{enough}"'
        place.complain(f"{rate} is less than one token in {length}", remedy)
    if rate.per(period_ns) > TOKENS_MAX:
        place.complain(
            f"{rate} is more than 2^53 tokens in {length}", "write a smaller rate or a shorter period"
        )


def _check_burst(burst: Any, limit: Any, period_ns: Any, place: Place) -> None:
    """Tokens ahead of a limit's pace are tokens of the limit."""
    if is_read(burst, limit, period_ns) and burst > limit.per(period_ns):
        most = limit.per(period_ns)
        place.complain(
            f"a burst of {burst} is more than the limit, {most} tokens in {write_duration(period_ns)}",
            f"write at most {most}, or leave it out",
        )


def _check_zones(servers: Values, place: Place) -> None:
    """Each server is in a zone, or none is."""
    zones = {
        name: server.get("zone") if isinstance(server, dict) else None for name, server in servers.items()
    }
    zoned = [zone for zone in zones.values() if is_read(zone)]
    if not zoned:
        return
    for name, zone in zones.items():
        if name == ANYONE:
            place.at(name).complain(
                "a rate with zones must know of each server which zone it is in",
                "list the servers by name, or leave the zones out",
            )
        elif zone is None:
            place.at(name).complain(
                "other servers of this rate are in a zone, and this one is in none",
                f'write {{ capacity = ..., zone = "{zoned[0]}" }}, with the zone that it is in',
            )


def _check_placement(chosen: Any, servers: Any, place: Place) -> None:
    for name in chosen or ():
        if servers and name not in servers and ANYONE not in servers:
            some = ", ".join(list(servers)[:8])
            wrong = f'there is no server "{name}" in this resource'
            place.complain(wrong, f"write some of its servers: {some}")


def _check_parent(name: str, tenant: Any, tenants: Values, place: Place) -> None:
    parent = name.rpartition("/")[0]
    if parent not in tenants:
        remedy = f'add "{parent}" = {{ limit = ... }} to the table, above this line'
        place.complain(f'it is nested below "{parent}", which is not in the table', remedy)
    elif is_read(tenant, tenants[parent]) and is_read(tenant["limit"], tenants[parent]["limit"]):
        most = tenants[parent]["limit"]
        if tenant["limit"] > most:
            place.at("limit").complain(
                f'the limit, {tenant["limit"]}, is above the one of "{parent}", {most}',
                f'write at most {most}, or raise the limit of "{parent}"',
            )
