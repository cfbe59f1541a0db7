"""Every key of a policy file outside the kinds: the store, the daemon, the table of resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bursar.policy import names
from bursar.policy.descriptors import check_entry
from bursar.policy.kinds import MINUTE_NS, PLAIN, RECORDS
from bursar.policy.shapes import INVALID, Auto, Choice, Flag, Place, Schema, Span, Text, Whole, describe
from bursar.policy.tables import REQUIRED, Key, List, Named, Record
from bursar.policy.values import HTTP, KINDS
from bursar.units import SECOND_NS

PEERS_MAX = 1_000
DESCRIPTORS_MAX = 10_000
RESOURCES_MAX = 1_000
METRICS_TENANTS_MAX = 1_000_000
CONNECTIONS_MIN, CONNECTIONS_MAX = 20, 1_000_000

_ADDRESS = Text('write host:port, such as "127.0.0.1:7070"', names.check_address, names.ADDRESS_PATTERN)
_FILE = Text("write the path of a file")

TLS = Record(
    {
        "cert": Key(_FILE, "this daemon's certificate (PEM)", REQUIRED, "node.crt"),
        "key": Key(_FILE, "its private key (PEM)", REQUIRED, "node.key"),
        "ca": Key(_FILE, "who signs the certificates of its peers and clients (PEM)", REQUIRED, "ca.crt"),
        "crl": Key(_FILE, "which of those are revoked (PEM); none if left out"),
    },
    "tls table",
)

DAEMON = Record(
    {
        "name": Key(PLAIN, "this daemon's name among its peers", "bursar"),
        "listen": Key(_ADDRESS, "where it listens for clients and peers", "127.0.0.1:7070"),
        "advertise": Key(_ADDRESS, "where other nodes reach it; where it listens if left out"),
        "http": Key(
            Auto(_ADDRESS, word="off"),
            'where it serves HTTP: /v1, /metrics, /live and /ready; "off": nowhere',
            HTTP,
        ),
        "envoy": Key(
            _ADDRESS,
            "where Envoys ask it: for quotas (RLQS) and about each request (RLS); nowhere if left out",
            example="127.0.0.1:18081",
        ),
        "metrics_tenants": Key(
            Whole(0, METRICS_TENANTS_MAX),
            "how many tenants of a resource have a label of their own in /metrics; the rest are summed",
            1000,
        ),
        "metrics_token_file": Key(_FILE, "a file with the token that /metrics wants, as a bearer"),
        "state": Key(
            Text("write the path of a directory"),
            "the directory of its journals; one of its name in bursar-state if left out",
        ),
        "connections": Key(
            Whole(CONNECTIONS_MIN, CONNECTIONS_MAX),
            "how many connections it takes at most: three quarters for clients, a fifth for new ones, the "
            "rest for nodes; fewer where open files are fewer",
            4000,
        ),
        "session_timeout": Key(
            Span(SECOND_NS, MINUTE_NS), "after this silence the store counts it as gone", "10s"
        ),
        "tls": Key(TLS, "certificates; needed to listen beyond loopback"),
        "token_file": Key(_FILE, "a file with a token: whoever shows it may do everything"),
        "join_token_file": Key(_FILE, "a file with the token that lets it join a fleet with rights"),
        "peers": Key(
            Named(
                _ADDRESS,
                "peer",
                names.check_plain_name,
                names.PLAIN_PATTERN,
                PEERS_MAX,
                'b = "127.0.0.1:7071"',
                may_be_empty=True,
            ),
            "the other daemons, by name",
            {},
        ),
    },
    "daemon table",
)


DESCRIPTOR = Record(
    {
        "match": Key(
            List(
                Text('write its entries as "key=value", "key=start*" or "key=*"', check_entry),
                'write a list of entries: ["path=/search", "tenant=*"]',
                least=1,
            ),
            "the entries that it matches, in their order",
            REQUIRED,
            ["tenant=*"],
        ),
        "resource": Key(PLAIN, "what is charged", REQUIRED, "api"),
        "tenant": Key(
            Text('write a name, with the value of an entry in braces: "{tenant}"'),
            "who pays, with values of entries in braces",
            "{tenant}",
        ),
        "domain": Key(
            Text("write the domain that the gateway is configured with"),
            "the domain that it asks under; the resource's name if left out",
        ),
    },
    "descriptor",
)

ALERT = Record(
    {
        "url": Key(
            Text('write an address: "https://example.com/bursar"', names.check_url, names.URL_PATTERN),
            "where alerts are posted, as JSON",
            REQUIRED,
            "https://example.com/bursar",
        ),
        "token_file": Key(_FILE, "a file with the token that is sent along, as a bearer"),
        "allow_http": Key(Flag(), "true: post without TLS to another machine, too", False),
    },
    "alert table",
)


@dataclass(frozen=True)
class Resource:
    """A resource of any kind. Read as (what was written, the values of that kind's keys)."""

    def read(self, value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            return place.complain(
                f"{describe(value)} is not a resource", 'write a table with kind = "rate" in it'
            )
        kind = value.get("kind")
        if kind is None:
            return place.complain(
                '"kind" is missing', 'add kind = "rate", or one of "share", "pool", "quota", "claim"'
            )
        if Choice(KINDS).read(kind, place.at("kind")) != kind:
            return INVALID
        return value, RECORDS[kind].read(value, place)

    def schema(self) -> Schema:
        return {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"enum": list(KINDS)}},
            "allOf": [{"if": _kind_is(kind), "then": record.schema()} for kind, record in RECORDS.items()],
        }


def _kind_is(kind: str) -> Schema:
    return {"required": ["kind"], "properties": {"kind": {"const": kind}}}


_BELONGS_TO_A_RESOURCE = "move it below a resource: [resource.NAME], [resource.NAME.tenant]"

POLICY = Record(
    {
        "store": Key(
            Text(
                'write "memory://", "sqlite:///path/store.db", "zookeeper://a:2181,b:2181/bursar", '
                '"postgresql://user@host/database" or "etcd://a:2379,b:2379/bursar"',
                names.check_store,
                names.STORE_PATTERN,
            ),
            "where the daemons agree: memory (one process), SQLite (one host), "
            "ZooKeeper, PostgreSQL or etcd (several)",
            "memory://",
        ),
        "daemon": Key(DAEMON, "how `bursar serve` runs", {}),
        "alert": Key(ALERT, "whom it tells what someone should know; nobody if left out"),
        "descriptor": Key(
            Named(
                DESCRIPTOR,
                "descriptor",
                names.check_plain_name,
                names.PLAIN_PATTERN,
                DESCRIPTORS_MAX,
                'search = { match = ["path=/search", "tenant=*"], resource = "api" }',
                may_be_empty=True,
            ),
            "what Envoys mean that ask about each request, by name",
            {},
        ),
        "resource": Key(
            Named(
                Resource(),
                "resource",
                names.check_plain_name,
                names.PLAIN_PATTERN,
                RESOURCES_MAX,
                '[resource.cache] with kind = "rate"',
            ),
            "what is shared out, by name",
            REQUIRED,
            advice='begin a resource: [resource.cache], with kind = "rate" below it',
        ),
    },
    "policy",
    dict.fromkeys(("tenant", "servers", "kind", "period", "capacity", "limit"), _BELONGS_TO_A_RESOURCE),
)
