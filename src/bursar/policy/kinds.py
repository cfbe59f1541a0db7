"""Every key of the five kinds of resource: one table for reading and for the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bursar.policy import names
from bursar.policy.shapes import (
    Amount,
    Auto,
    Choice,
    Day,
    Flag,
    Place,
    Schema,
    Shape,
    Span,
    Speed,
    Text,
    Whole,
    describe,
)
from bursar.policy.tables import REQUIRED, Either, Key, List, Named, Record, write_toml
from bursar.policy.values import KEEP, REFUSE, TENANTS_MAX, WithoutBursar
from bursar.units import SECOND_NS

MILLISECOND_NS = 10**6
MINUTE_NS = 60 * SECOND_NS
DAY_NS = 86400 * SECOND_NS

SERVERS_MAX = 10_000
WEIGHT_MAX = 1_000_000
BURST_MAX = 2**53


@dataclass(frozen=True)
class Fallback:
    """What happens without bursar: "keep", "refuse", or a safe rate where the kind can bear one."""

    safe: Speed | None
    keep: bool = True
    reason: str = ""

    def read(self, value: Any, place: Place) -> Any:
        if value == "refuse":
            return REFUSE
        if value == "keep" and self.keep:
            return KEEP
        if isinstance(value, dict) and list(value) == ["safe"] and self.safe:
            rate = self.safe.read(value["safe"], place.at("safe"))
            return WithoutBursar(mode="safe", rate=rate) if rate else rate
        shown = "{ safe = ... }" if isinstance(value, dict) and "safe" in value else describe(value)
        return place.complain(f"{shown} is not one of its values", self._remedy())

    def _remedy(self) -> str:
        options = ['"keep"'] * self.keep + ['"refuse"'] + ['{ safe = "1k/s" }'] * bool(self.safe)
        return f"write {' or '.join(options)}{self.reason and f' ({self.reason})'}"

    def schema(self) -> Schema:
        plain = {"enum": ["keep", "refuse"] if self.keep else ["refuse"]}
        if self.safe is None:
            return plain
        table = Record({"safe": Key(self.safe, "each tenant goes on at this rate", REQUIRED)})
        return {"anyOf": [plain, table.schema()]}


def _tenants(shape: Shape, example: dict[str, Any]) -> Key:
    written = f"acme = {write_toml(example)}"
    table = Named(
        shape,
        "tenant",
        names.check_tenant_name,
        names.TENANT_PATTERN,
        TENANTS_MAX,
        written,
        may_be_empty=True,
    )
    purpose = 'who may use it, by name; "*": whoever is not listed, "acme/*": whoever is below acme'
    return Key(table, purpose, {}, {"acme": example})


def _shared(kind: str, fallback: Fallback, default: str = "keep") -> dict[str, Key]:
    return {
        "kind": Key(Choice([kind]), "what the tenants get of it", REQUIRED, kind),
        "without_bursar": Key(fallback, "what callers do while bursar cannot be reached", default),
        "shadow": Key(Flag(), "true: decide and count, refuse nobody", False),
        "max_tenants": Key(
            Whole(1, TENANTS_MAX), "how many tenants it has at once, those of templates too", TENANTS_MAX
        ),
    }


_PERIOD = Span(MILLISECOND_NS, DAY_NS)
_WEIGHT = Key(Whole(1, WEIGHT_MAX), "its part, beside the other tenants', of what nobody reserved", 1)
PLAIN = Text("write a name of letters, digits, '.', '_' and '-'", names.check_plain_name, names.PLAIN_PATTERN)

SERVER = Record(
    {
        "capacity": Key(Auto(Speed(positive=True)), 'what the server can do; "auto": estimated', "auto"),
        "backend": Key(
            Text(
                'write "memcached://host:port" or "file:///path"', names.check_backend, names.BACKEND_PATTERN
            ),
            "where the server sends requests",
        ),
        "zone": Key(
            PLAIN,
            "where it is: servers of a zone have a controller of their own there",
            example="eu",
        ),
    },
    "server",
)

RATE = Record(
    {
        **_shared("rate", Fallback(Speed())),
        "period": Key(_PERIOD, "the time over which reservations and limits hold", "1s"),
        "interval": Key(
            Auto(Span(MILLISECOND_NS, DAY_NS), "auto"),
            "how often tokens are placed anew, a fifth of the period if left out; "
            '"auto": shorter while demand moves, longer while it does not',
            example="200ms",
        ),
        "drift_ppm": Key(Whole(0, 100_000), "how far clocks may run apart, in parts per million", 1000),
        "pacing": Key(Flag(), "spread a limit over the period, so that no two bursts meet", True),
        "servers": Key(
            Named(
                Either(Auto(Speed(positive=True)), SERVER),
                "server",
                names.check_server_name,
                names.SERVER_PATTERN,
                SERVERS_MAX,
                'a = "100k/s"',
            ),
            'the servers that do the requests, and what each can do; "*": any other node that joins',
            REQUIRED,
            {"a": "100k/s"},
        ),
        "tenant": _tenants(
            Record(
                {
                    "reservation": Key(Speed(), "what it gets at least, if it asks for it", "0/s"),
                    "limit": Key(Speed(), "what it gets at most; none if left out", example="60k/s"),
                    "burst": Key(
                        Whole(1, BURST_MAX),
                        "tokens it may use at once, ahead of its pace; "
                        "if left out a twentieth of its limit, and at least ten",
                        example=3000,
                    ),
                    "weight": _WEIGHT,
                    "servers": Key(
                        List(PLAIN, 'write the names of its servers: ["a", "b"]', least=1),
                        "the servers that hold its data; all if left out",
                    ),
                },
                "tenant",
            ),
            {"reservation": "30k/s", "limit": "60k/s"},
        ),
    },
    "rate",
)

SHARE = Record(
    {
        **_shared("share", Fallback(Speed(sizes=True))),
        "capacity": Key(
            Auto(Speed(sizes=True, positive=True)),
            'what the target can do; "auto": estimated',
            "auto",
            "1GiB/s",
        ),
        "interval": Key(Span(MILLISECOND_NS, MINUTE_NS), "how often tokens are handed out anew", "100ms"),
        "costs": Key(
            Choice(["requests", "bytes"]),
            "what a token pays for; as in capacity if left out",
            example="bytes",
        ),
        "half_life": Key(
            Span(MILLISECOND_NS, 365 * DAY_NS),
            "in this time half of what is owed is forgotten; never if left out",
            example="10min",
        ),
        "enforce": Key(
            Choice(["program", "blkio", "io.max", "lustre"]),
            "where limits hold: in programs that acquire, in the kernel's I/O controller (cgroup version 1 "
            "or 2), or in a Lustre server",
            "program",
        ),
        "device": Key(
            Text('write a disk, or a file on it: "/dev/vda"'),
            "the disk, where the kernel holds the limits",
            example="/dev/vda",
        ),
        "job_nodes": Key(
            Text(
                'write "squeue", "qstat", "file:///path" or "command:program arguments"',
                names.check_job_nodes,
                names.JOB_NODES_PATTERN,
            ),
            "who knows how many nodes a job runs on, where Lustre holds the limits: so many times its "
            "weight it has",
            example="squeue",
        ),
        "tenant": _tenants(
            Record(
                {
                    "weight": _WEIGHT,
                    "borrow": Key(Amount(), "the most tokens it may owe; no cap if left out"),
                    "lend": Key(Amount(), "the most tokens it may be owed; no cap if left out"),
                },
                "tenant",
            ),
            {"weight": 3},
        ),
    },
    "share",
)

POOL_NODES_MAX = 64

POOL = Record(
    {
        **_shared("pool", Fallback(Speed())),
        "capacity": Key(
            Auto(Speed(positive=True)), 'what the data node can do; "auto": estimated', "auto", "1570k/s"
        ),
        "client_capacity": Key(
            Auto(Speed(positive=True)), 'what one client can do alone; "auto": profiled', "auto", "400k/s"
        ),
        "period": Key(_PERIOD, "the time over which reservations hold", "1s"),
        "batch": Key(
            Auto(Whole(1, 2**32), "auto"), 'tokens taken at once; "auto": from 1000, as it goes', "auto", 1000
        ),
        "pacing": Key(
            Auto(Flag()),
            'spread a reservation over the period; "auto": of those who used up their last one and had '
            "more waiting",
            "auto",
            True,
        ),
        "nodes": Key(
            Named(
                Speed(positive=True),
                "node",
                names.check_server_name,
                names.SERVER_PATTERN,
                POOL_NODES_MAX,
                'a = "100k/s"',
            ),
            "the data nodes, where there are several, and what each can do: one reservation holds over all",
            example={"a": "100k/s", "b": "100k/s"},
        ),
        "words": Key(
            Text(f"write {names.WORDS_FORM}", names.check_words, names.WORDS_PATTERN),
            "where clients and monitor share their words",
            "shm://",
        ),
        "tenant": _tenants(
            Record(
                {
                    "reservation": Key(Speed(), "what it gets at least", "0/s"),
                    "limit": Key(Speed(), "what it gets at most; none if left out", example="300k/s"),
                },
                "tenant",
            ),
            {"reservation": "200k/s"},
        ),
    },
    "pool",
)

QUOTA = Record(
    {
        **_shared(
            "quota",
            Fallback(
                None, keep=False, reason="a quota is never exceeded, so nothing is lent that is not charged"
            ),
            "refuse",
        ),
        "window": Key(
            Choice(["none", "hour", "day", "week", "month", "year"]),
            "when it begins anew, in its time zone",
            "none",
        ),
        "zone": Key(
            Text('write a name of the time zone database: "UTC", "Europe/Berlin"', names.check_zone),
            "the time zone in which days, weeks, months and years begin; hours are those of UTC",
            "UTC",
        ),
        "unit": Key(Text('write what is counted: "tokens", "bytes"'), "what is counted, for people", "units"),
        "mode": Key(
            Choice(["exact", "fast"]),
            "exact: each use is on disk before it is granted; "
            "fast: a block at a time, of which a crash loses what is left",
            "exact",
        ),
        "block": Key(
            Auto(Amount(least=1)),
            'how much mode fast charges ahead; "auto": as much as is asked for at once, 1000 at least and an '
            "eighth of what is left at most",
            "auto",
        ),
        "warnings": Key(
            List(Whole(1, 100), "write whole percentages: [80, 95, 100]"),
            "percentages at which to warn",
            [80, 95, 100],
        ),
        "hold_expiry": Key(
            Span(SECOND_NS, 30 * DAY_NS),
            "what was reserved and never settled counts as used after it",
            "5min",
        ),
        "over": Key(
            Choice(["refuse", "take", "overdraft"]),
            "when more was used than was reserved. refuse: it is not charged; take: as far as it is left; "
            "overdraft: then from the tenant's overdraft. What is not charged is counted as unpaid",
            "refuse",
        ),
        "history": Key(
            Span(DAY_NS, 3_660 * DAY_NS), "how long the use of windows that are over is remembered", "400d"
        ),
        "tenant": _tenants(
            Record(
                {
                    "limit": Key(Amount(), "all that it may use", REQUIRED, 5_000_000),
                    "overdraft": Key(
                        Amount(), 'debt beyond it, for what was used already; with over = "overdraft"', 0
                    ),
                    "from": Key(Day(), "its weeks, months or years are counted from that day"),
                },
                "tenant",
            ),
            {"limit": 5_000_000},
        ),
    },
    "quota",
)

TRACKER = Record(
    {
        "url": Key(
            Text('write an address: "https://example.com/tasks"', names.check_url, names.URL_PATTERN),
            "where tasks are posted, as JSON",
            REQUIRED,
            "https://example.com/tasks",
        ),
        "timeout": Key(Span(10 * MILLISECOND_NS, DAY_NS), "how long one answer may take", "30s"),
        "poll": Key(
            Span(10 * MILLISECOND_NS, MINUTE_NS), "how often it is asked for what it answered 202 to", "1s"
        ),
        "at_once": Key(Whole(1, 10_000), "so many tasks a daemon has done at a time", 32),
        "token_file": Key(Text("write the path of a file"), "a file with the token that is sent along"),
        "allow_http": Key(Flag(), "true: post without TLS to another machine, too", False),
    },
    "tracker",
)

CLAIM = Record(
    {
        **_shared(
            "claim",
            Fallback(None, keep=False, reason="holders keep what they hold; nobody is granted unseen"),
            "refuse",
        ),
        "paths": Key(Flag(), 'names are paths: "dc/host/vm" takes what is above it shared', False),
        "dead_holder": Key(
            Choice(["auto", "keep", "requeue", "fail"]),
            "what becomes of names whose holder died: kept until released by hand, "
            "given to the next try of its task, or its task is failed; auto: tasks are tried again, "
            "claims are kept",
            "auto",
        ),
        "attempts": Key(
            Whole(1, 1_000), "so often a task is tried whose process dies; then it is given up", 5
        ),
        "aging": Key(
            Span(SECOND_NS, 30 * DAY_NS), "nobody who asked later passes one that waits longer", "10min"
        ),
        "history": Key(
            Span(MINUTE_NS, 30 * DAY_NS), "how long tasks that are over are remembered, and their keys", "1h"
        ),
        "dead_history": Key(
            Span(MINUTE_NS, 366 * DAY_NS), "how long tasks that were given up wait for somebody", "30d"
        ),
        "tracker": Key(TRACKER, "the service that does the tasks; if left out, `bursar work` does them"),
        "order": Key(
            Choice(["conflicts", "learned"]),
            "who is next of those of one priority and tenant. conflicts: the task that most others would "
            "have to wait for; learned: the one that the most work would, by how long such tasks took",
            "conflicts",
        ),
        "tenant": _tenants(Record({"weight": _WEIGHT}, "tenant"), {"weight": 2}),
        "counted": Key(
            Named(
                Whole(1, 10**9),
                "counted name",
                names.check_plain_name,
                names.PLAIN_PATTERN,
                100,
                "gpu = 16",
                may_be_empty=True,
            ),
            'names of which there are several alike, and how many: claimed as "gpu:4"',
            {},
            {"gpu": 16},
        ),
    },
    "claim",
)

RECORDS = {"rate": RATE, "share": SHARE, "pool": POOL, "quota": QUOTA, "claim": CLAIM}
