"""The policy file: TOML to a policy, or to the list of what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from bursar.errors import PolicyError
from bursar.fleet.changes import compare
from bursar.policy import load, parse
from bursar.policy.descriptors import Descriptors
from bursar.policy.kinds import RECORDS
from bursar.policy.schema import make_schema
from bursar.policy.tables import REQUIRED, write_toml
from bursar_lab.fuzzing.target import Target

PARTS = (
    "bursar.policy.reading:-settle,-_read_daemon,-build",
    *(f"bursar.policy.{name}:-schema" for name in ("shapes", "checks", "building", "outline")),
    "bursar.policy.tables:-schema,-describe_key,-write_toml",
    "bursar.policy.keys:-schema,-_kind_is",
    "bursar.policy.kinds:-schema,-_tenants,-_shared",
    "bursar.policy.names",
    "bursar.policy.descriptors:check_entry,check_payer,Descriptors.__init__,Descriptors._add",
    "bursar.units:read_rate,read_duration_ns,read_size_bytes,read_count,_split,_factor,_whole,_short",
)

WHOLE = b"""\
store = "sqlite:///var/lib/bursar/store.db"
[resource.cache]
kind = "rate"
period = "1s"
servers = { a = { capacity = "auto", zone = "us" }, b = { backend = "memcached://h:1", zone = "eu" } }
without_bursar = { safe = "1k/s" }
shadow = true
tenant = { acme = { reservation = "3/s", limit = "60k/s", weight = 2, burst = 9 }, "*" = { limit = "5/s" } }
[resource.ost0]
kind = "share"
capacity = "1GiB/s"
[resource.ost0.tenant]
sim = { weight = 3, borrow = "1GiB", lend = 100 }
[resource.records]
kind = "pool"
capacity = "auto"
words = "redis://localhost:6379"
tenant = { acme = { reservation = "200k/s", limit = "300k/s" } }
[resource.llm]
kind = "quota"
window = "month"
zone = "Europe/Berlin"
mode = "fast"
over = "overdraft"
[resource.llm.tenant]
acme = { limit = 5_000_000, overdraft = 10 }
"acme/search" = { limit = 1_000_000, from = 2026-01-31 }
[resource.datacentre]
kind = "claim"
paths = true
dead_holder = "keep"
counted = { license = 5 }
tenant = { ops = { weight = 2 } }
[descriptor]
login = { match = ["path=/login/*", "who=*"], resource = "cache", tenant = "by/{who}" }
[daemon]
name = "a"
listen = "127.0.0.1:7070"
http = "127.0.0.1:9464"
peers = { b = "127.0.0.1:7071" }
[alert]
url = "https://example.com/hook"
"""


def run(data: bytes) -> None:
    """What is a policy is the same when it is read again, and differs from itself in nothing."""
    file = _open_file()
    os.ftruncate(file, 0)
    os.pwrite(file, data, 0)
    policy = load(f"/proc/self/fd/{file}")
    Descriptors(policy)
    again = parse(policy.text, policy.source)
    assert again == policy, "read twice, and not the same"
    assert not list(compare(policy, again)), "it differs from itself"
    msgspec.json.encode(policy, enc_hook=str)


@cache
def _open_file() -> int:
    return os.memfd_create("policy")


def make_seeds() -> Iterator[bytes]:
    """A whole one; every key of every kind, as the reader's own example has it; and what is broken."""
    yield WHOLE
    for kind, record in RECORDS.items():
        keys = {name: key for name, key in record.keys.items() if key.example is not None}
        required = {name: write_toml(key.example) for name, key in keys.items() if key.default is REQUIRED}
        for name, key in keys.items():
            lines = {**required, name: write_toml(key.example)}
            text = "".join(f"{each} = {value}\n" for each, value in lines.items() if each != "kind")
            yield f'[resource.x]\nkind = "{kind}"\n{text}'.encode()
    tables = WHOLE.split(b"\n[")
    for table in tables[1:]:
        yield b"[" + table
    for wrong in (b"-1", b"1e400", b"[1]", b'"1/0s"', b"nan", b"true", b"{ a = { b = 1 } }", b"1979-05-27"):
        yield WHOLE.replace(b'"60k/s"', wrong).replace(b"5_000_000", wrong)
    yield WHOLE + WHOLE
    yield b"a" * 5000 + b"=" + b"9" * 5000
    yield b"x = " + b"[" * 200
    yield b"\xef\xbb\xbf# a mark\n\xff"
    yield b'a = "\\u00e9"\n"\\u00e9" = 1\n\'b\' = """\n"""\n'


def find_words() -> tuple[bytes, ...]:
    """Keys and words of the schema, and some quantities."""
    found: dict[str, None] = {}
    _collect(make_schema(), found)
    signs = [
        '"100k/s"',
        '"1GiB/s"',
        '"5min"',
        '"auto"',
        "[[",
        "]]",
        '"""',
        "'''",
        " = { ",
        " }",
        '"*"',
        '"acme/*"',
    ]
    return tuple(word.encode() for word in [*found, *signs])


def _collect(schema: Any, found: dict[str, None]) -> None:
    if isinstance(schema, dict):
        found.update(dict.fromkeys(schema.get("properties", ())))
        found.update(dict.fromkeys(f'"{word}"' for word in schema.get("enum", ()) if isinstance(word, str)))
        for each in schema.values():
            _collect(each, found)
    elif isinstance(schema, list):
        for each in schema:
            _collect(each, found)


TARGETS = (Target("policy", PARTS, run, make_seeds, (PolicyError,), find_words()),)
