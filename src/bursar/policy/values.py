"""The promise as values: what a policy file says once it has been read and found right.

Everything here is frozen. Quantities are whole numbers with the unit in the name (`period_ns`),
rates are exact (`bursar.units.Rate`), and `capacity=None` means that capacity is estimated
("auto" in the file). The values can be built by hand in tests; only `load` and `parse` check them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import date
from itertools import islice
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

import msgspec

from bursar.errors import UsageError
from bursar.units import ZERO_RATE, Rate

MILLISECOND_NS = 10**6
SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS

ValueT = TypeVar("ValueT")
Kind = Literal["rate", "share", "pool", "quota", "claim"]
KINDS: tuple[Kind, ...] = ("rate", "share", "pool", "quota", "claim")


ANYONE = "*"
"""A template's name: "*" for whoever is not listed, "acme/*" for whoever is below acme and not listed."""

TENANTS_MAX = 100_000


def is_template(name: str) -> bool:
    return name == ANYONE or name.endswith(f"/{ANYONE}")


def find_template(templates: Container[str], name: str) -> str | None:
    """The nearest of these templates that covers a tenant: "acme/*" rather than "*". A name with a star
    in it is nobody's but that of who is listed so."""
    if not templates or ANYONE in name:
        return None
    folder = name.rpartition("/")[0]
    while folder:
        if f"{folder}/{ANYONE}" in templates:
            return f"{folder}/{ANYONE}"
        folder = folder.rpartition("/")[0]
    return ANYONE if ANYONE in templates else None


class Table(dict[str, ValueT]):
    """A mapping that cannot be changed. A dict underneath, so that it is encoded as one."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a policy does not change; load a new one")

    __setitem__ = __delitem__ = update = setdefault = pop = popitem = clear = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (dict(self),)


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every value here: its mappings are frozen too."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, dict) and not isinstance(value, Table):
                msgspec.structs.force_setattr(self, name, Table(value))


class WithoutBursar(Frozen, frozen=True, kw_only=True):
    """What callers do while bursar cannot be reached.

    keep    go on with what was last granted
    refuse  refuse
    safe    let each tenant go on at `rate`, at each place that asks
    """

    mode: Literal["keep", "refuse", "safe"]
    rate: Rate | None = None


KEEP = WithoutBursar(mode="keep")
REFUSE = WithoutBursar(mode="refuse")


class RateTenant(Frozen, frozen=True, kw_only=True):
    """limit None: no limit. burst: tokens that it may use at once, ahead of its pace; None: a
    twentieth of its limit, and at least ten. servers None: the tenant's requests may go to any
    server."""

    reservation: Rate = ZERO_RATE
    limit: Rate | None = None
    burst: int | None = None
    weight: int = 1
    servers: tuple[str, ...] | None = None


class ShareTenant(Frozen, frozen=True, kw_only=True):
    """borrow: the most tokens it may owe; lend: the most it may be owed. None: no cap."""

    weight: int = 1
    borrow: int | None = None
    lend: int | None = None


class PoolTenant(Frozen, frozen=True, kw_only=True):
    reservation: Rate = ZERO_RATE
    limit: Rate | None = None


class QuotaTenant(Frozen, frozen=True, kw_only=True):
    """parent: the tenant whose quota this one's use counts against too ("acme" of "acme/search").
    overdraft: units beyond the limit that only what was used already may be charged to.
    anchor: the day from which its windows are counted; None: the calendar's."""

    limit: int
    parent: str | None = None
    overdraft: int = 0
    anchor: date | None = None


class ClaimTenant(Frozen, frozen=True, kw_only=True):
    weight: int = 1


class Server(Frozen, frozen=True, kw_only=True):
    """capacity None: estimated. backend: where requests go ("memcached://host:port"). zone: where it is,
    if the rate has zones."""

    capacity: Rate | None = None
    backend: str | None = None
    zone: str | None = None


class Descriptor(Frozen, frozen=True, kw_only=True):
    """What a gateway asks about (`bursar.policy.descriptors`). match: its entries, in order; tenant: who
    pays; domain None: the name of the resource."""

    match: tuple[str, ...]
    resource: str
    tenant: str = "{tenant}"
    domain: str | None = None


class Resource(Frozen, frozen=True, kw_only=True, tag_field="kind"):
    """What every kind of resource has. `kind` says which it is."""

    kind: ClassVar[Kind]
    name: str
    without_bursar: WithoutBursar = KEEP
    shadow: bool = False
    max_tenants: int = TENANTS_MAX

    def tenant(self, name: str) -> Any:
        """This tenant's terms. Raises UsageError for one that the policy neither lists nor has a
        template for."""
        found = self.find(name)
        if found is not None:
            return found
        tenants: Mapping[str, Any] = self.tenants  # type: ignore[attr-defined]
        return _find(tenants, name, "tenant", f"[resource.{self.name}.tenant]")

    def find(self, name: str) -> Any:
        """This tenant's terms: those listed for it, else those of the nearest template, else None."""
        found = self.tenants.get(name)  # type: ignore[attr-defined]
        if found is not None:
            return found
        template = self.find_template(name)
        return None if template is None else self.templates[template]  # type: ignore[attr-defined]

    def find_template(self, name: str) -> str | None:
        """The nearest template that covers a tenant: "acme/*" rather than "*"."""
        return find_template(self.templates, name)  # type: ignore[attr-defined]


class RatePolicy(Resource, frozen=True, kw_only=True, tag="rate"):
    """any_server: the terms of a node that joins without being listed under `servers`; None: none may."""

    kind: ClassVar[Kind] = "rate"
    servers: Mapping[str, Server]
    any_server: Server | None = None
    tenants: Mapping[str, RateTenant] = Table()
    templates: Mapping[str, RateTenant] = Table()
    period_ns: int = SECOND_NS
    interval_ns: int = SECOND_NS // 5
    adaptive_interval: bool = False
    drift_ppm: int = 1000
    pacing: bool = True
    zones: tuple[str, ...] = ()

    def list_zones(self) -> dict[str, tuple[str, ...]]:
        """The servers of each zone, in order; nothing where there are no zones."""
        found: dict[str, list[str]] = {zone: [] for zone in self.zones}
        for name, server in self.servers.items():
            if server.zone is not None:
                found[server.zone].append(name)
        return {zone: tuple(sorted(names)) for zone, names in found.items()}


class SharePolicy(Resource, frozen=True, kw_only=True, tag="share"):
    """enforce: where limits hold; device: the disk, where the kernel holds them; job_nodes: who
    knows how many nodes a job runs on."""

    kind: ClassVar[Kind] = "share"
    tenants: Mapping[str, ShareTenant] = Table()
    templates: Mapping[str, ShareTenant] = Table()
    capacity: Rate | None = None
    interval_ns: int = 100 * MILLISECOND_NS
    costs: Literal["requests", "bytes"] = "requests"
    half_life_ns: int | None = None
    enforce: Literal["program", "blkio", "io.max", "lustre"] = "program"
    device: str | None = None
    job_nodes: str | None = None


POOL_INTERVALS = 10
"""In a period of a pool of several nodes: so soon a reservation follows its tenant to another node."""


OWN_WORDS = "shm://"
"""The words of a pool that no other process serves."""


class PoolPolicy(Resource, frozen=True, kw_only=True, tag="pool"):
    """pacing: None where it is decided by what is seen. client_capacity: the most that one client can do
    alone (C_L); None: profiled. nodes: of a pool of several data nodes, of which this is one, all by the
    names of their pools, and what each can do; its period is then an interval of the one that reservations
    hold over."""

    kind: ClassVar[Kind] = "pool"
    tenants: Mapping[str, PoolTenant] = Table()
    templates: Mapping[str, PoolTenant] = Table()
    capacity: Rate | None = None
    client_capacity: Rate | None = None
    period_ns: int = SECOND_NS
    batch: int = 1000
    adaptive_batch: bool = True
    pacing: bool | None = None
    words: str = OWN_WORDS
    nodes: Mapping[str, Rate] = Table()


class QuotaPolicy(Resource, frozen=True, kw_only=True, tag="quota"):
    """block: how much mode fast charges ahead; None: as use wants it."""

    kind: ClassVar[Kind] = "quota"
    without_bursar: WithoutBursar = REFUSE
    tenants: Mapping[str, QuotaTenant] = Table()
    templates: Mapping[str, QuotaTenant] = Table()
    window: Literal["none", "hour", "day", "week", "month", "year"] = "none"
    zone: str = "UTC"
    unit: str = "units"
    mode: Literal["exact", "fast"] = "exact"
    block: int | None = None
    warnings: tuple[int, ...] = (80, 95, 100)
    hold_expiry_ns: int = 5 * MINUTE_NS
    over: Literal["refuse", "take", "overdraft"] = "refuse"
    history_ns: int = 400 * DAY_NS

    def find(self, name: str) -> QuotaTenant | None:
        """As everywhere; and who is below somebody counts against it, so that one must be known too."""
        found: QuotaTenant | None = Resource.find(self, name)
        if found is None or name in self.tenants:
            return found
        parent = name.rpartition("/")[0] or None
        if parent is not None and self.find(parent) is None:
            return None
        if found.parent == parent:
            return found
        return QuotaTenant(limit=found.limit, parent=parent, overdraft=found.overdraft, anchor=found.anchor)


DeadHolder = Literal["auto", "keep", "requeue", "fail"]


class Tracker(Frozen, frozen=True, kw_only=True):
    """Where the tasks of a resource are done: by a service that is asked over HTTP."""

    url: str
    timeout_ns: int = 30 * SECOND_NS
    poll_ns: int = SECOND_NS
    token_file: str | None = None
    at_once: int = 32
    allow_http: bool = False


class ClaimPolicy(Resource, frozen=True, kw_only=True, tag="claim"):
    kind: ClassVar[Kind] = "claim"
    without_bursar: WithoutBursar = REFUSE
    paths: bool = False
    dead_holder: DeadHolder = "auto"
    attempts: int = 5
    aging_ns: int = 10 * MINUTE_NS
    history_ns: int = HOUR_NS
    dead_history_ns: int = 30 * DAY_NS
    tracker: Tracker | None = None
    counted: Mapping[str, int] = Table()
    order: Literal["conflicts", "learned"] = "conflicts"
    tenants: Mapping[str, ClaimTenant] = Table()
    templates: Mapping[str, ClaimTenant] = Table()

    def find(self, name: str) -> ClaimTenant | None:
        """Where nobody is listed, anybody may claim."""
        if not self.tenants and not self.templates:
            return ClaimTenant()
        found: ClaimTenant | None = Resource.find(self, name)
        return found


ResourcePolicy = RatePolicy | SharePolicy | PoolPolicy | QuotaPolicy | ClaimPolicy


class Tls(Frozen, frozen=True, kw_only=True):
    """Paths of PEM files: this node's certificate and key, who signs its peers', and which of those
    are revoked."""

    cert: str
    key: str
    ca: str
    crl: str | None = None


HTTP = "127.0.0.1:9464"
"""Where a daemon serves HTTP unless told."""


class DaemonPolicy(Frozen, frozen=True, kw_only=True):
    """How `bursar serve` runs. advertise None: others reach it where it listens; http None: nothing
    is served over HTTP; metrics_tenants: how many of a resource's tenants have a label of their own there;
    envoy None: no Envoys are served."""

    name: str = "bursar"
    listen: str = "127.0.0.1:7070"
    advertise: str | None = None
    http: str | None = HTTP
    envoy: str | None = None
    metrics_tenants: int = 1000
    metrics_token_file: str | None = None
    state: str = "bursar-state/bursar"
    connections: int = 4_000
    session_timeout_ns: int = 10 * SECOND_NS
    tls: Tls | None = None
    token_file: str | None = None
    join_token_file: str | None = None
    peers: Mapping[str, str] = Table()


class AlertPolicy(Frozen, frozen=True, kw_only=True):
    """Where alerts are posted. allow_http: also without TLS to another machine."""

    url: str
    token_file: str | None = None
    allow_http: bool = False


class Policy(Frozen, frozen=True, kw_only=True):
    """A whole policy. `source` is where it was read, for messages, `text` what was read there (nothing if
    it was built by hand); alert None: nothing is posted."""

    resources: Mapping[str, ResourcePolicy]
    store: str = "memory://"
    daemon: DaemonPolicy = DaemonPolicy()
    alert: AlertPolicy | None = None
    descriptors: Mapping[str, Descriptor] = Table()
    source: str = "policy"
    text: str = ""

    def resource(self, name: str) -> ResourcePolicy:
        """Raises UsageError, with the nearest name there is, for one that is not in the policy."""
        return _find(self.resources, name, "resource", self.source)


def _find(table: Mapping[str, ValueT], name: str, what: str, where: str) -> ValueT:
    if name in table:
        return table[name]
    raise UsageError(f'there is no {what} "{name}" in {where}{suggest(name, table)}')


SUGGESTED_MAX = 1_000
"""Comparing one name with 100,000 would take a second of a node that has others to answer."""


def suggest(name: str, names: Iterable[str]) -> str:
    """'; did you mean "cache"?' for a name that is nearly one of `names`, else what there is."""
    import difflib  # only a mistake needs it

    known = list(islice(names, SUGGESTED_MAX))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return f"; there is {listed}" if known else "; there are none yet"
