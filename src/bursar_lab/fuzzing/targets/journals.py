"""Journals: files that were torn, flipped and put in another order; and lines that do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from bursar.errors import JournalError
from bursar.policy import parse
from bursar.quotas import entries
from bursar.quotas.history import Adjusted, Used, encode, read_line
from bursar.quotas.ledger import Ledger
from bursar.quotas.replay import compact, replay
from bursar.rates.blocks import Began, Blocks, Charged
from bursar.runtime.journal import HEADER, pack, read_records
from bursar.shares.book import TargetBook
from bursar.shares.bursts import Burst
from bursar_lab.fuzzing.pieces import join, split
from bursar_lab.fuzzing.target import Target

PATH = Path("journal")


# -- the file


def read_file(data: bytes) -> None:
    """What is read can be written again, and is then read as it was."""
    records, end = read_records(data, PATH)
    assert end <= len(data), "it ends behind its end"
    again, end = read_records(lay_out(records), PATH)
    assert again == records, "written and read, and not the same"


def lay_out(records: list[bytes]) -> bytes:
    """Each synced before the next was written."""
    data = HEADER
    for record in records:
        data += pack(record, len(data), len(data))
    return data


def damage(data: bytes) -> None:
    """A journal of ours with bytes changed, cut out, repeated: what is read was written there, from the first
    record on."""
    parts = split(data)
    changes, records = parts[:1], parts[1:20]
    whole = lay_out(records)
    damaged = bytearray(whole)
    for at in range(0, len(changes[0]) - 3 if changes else 0, 4):
        act, place, value = (
            changes[0][at] % 4,
            int.from_bytes(changes[0][at + 1 : at + 3], "big"),
            changes[0][at + 3],
        )
        place %= len(damaged) or 1
        if act == 0 and damaged:
            damaged[place] ^= value
        elif act == 1:
            del damaged[place:]
        elif act == 2:
            del damaged[place : place + value]
        else:
            damaged[place:place] = damaged[place : place + value]
    found, _ = read_records(bytes(damaged), PATH)
    assert found == records[: len(found)], "a record was read that was never written there"


def make_files() -> Iterator[bytes]:
    whole = lay_out([b"one", b"", b"three" * 50])
    yield from (
        whole,
        whole[:-3],
        whole[: len(HEADER) + 5],
        HEADER[:4],
        b"",
        b"another file",
        b"bursar journal 2\n",
    )
    yield whole.replace(b"one", b"two")
    yield whole + pack(b"later", len(whole) + 7, 3)
    yield HEADER + whole[len(HEADER) + 30 :]


def make_damages() -> Iterator[bytes]:
    records = [b"one", b"", b"three" * 20]
    for change in (
        b"",
        b"\0\0\x1e\xff",
        b"\1\0\x30\0",
        b"\2\0\x11\x17",
        b"\3\0\x20\x20",
        b"\0\0\5\1\1\0\x40\0",
    ):
        yield join([change, *records])


# -- the lines of a ledger


def read_ledger(data: bytes) -> None:
    """A ledger made short is the same when it is read again. (No ledger gives a hold's number twice.)"""
    records = split(data)
    ledger = _replay(records)
    numbers = [each.hold for each in entries.read(records) if isinstance(each, entries.Held | entries.Kept)]
    if len(numbers) != len(set(numbers)):
        return
    short = compact(ledger)
    assert compact(_replay(short)) == short, "made short, read, made short, and not the same"


def _replay(records: list[bytes]) -> Ledger:
    ledger = Ledger("a")
    replay(ledger, records)
    return ledger


def make_ledgers() -> Iterator[bytes]:
    lines: list[Any] = [
        entries.Opened(1, "a", "store", 2),
        entries.Minted("acme", 1, 100),
        entries.Minted("acme", 2, -10),
        entries.Burned("acme", 10),
        entries.Held(1, "acme", ("acme",), 5, "key"),
        entries.Grown(1, ("acme",), 2),
        entries.Extended(1, 10**9),
        entries.Settled(1, 4, 1),
        entries.Held(2, "acme", ("acme", "all"), 3, None, True, 5),
        entries.Settled(2, 3),
        entries.Late(1, ("acme",), 2),
        entries.Forgotten(1),
        entries.Blocked("acme", 20),
        entries.Blocked("acme", -5),
        entries.Sent("acme", "b", 1, 7),
        entries.Received("acme", "b", 3, 9),
        entries.Balance("acme", 1, 2, 0, 3, (("b", 1, 2, ((1, 5),)),), 1, 1),
        entries.Kept(7, "acme", ("acme",), 5, "k", None, ((("all",), 2),), 0, 9),
        entries.Kept(8, "acme", ("acme",), 5, "k2", 4),
    ]
    written = list(map(entries.encode, lines))
    yield join(written)
    for at in range(len(written)):
        yield join(written[:at] + written[at + 1 :])
        yield join([written[at]])
        yield join([*written[: at + 1], written[at]])
    yield join([b"\xff", b"\x91" * 2000])


# -- the lines of what was used, and of a rate's blocks, and a share's records


def read_usage(data: bytes) -> None:
    for line in map(read_line, split(data)):
        assert read_line(encode(line)) == line and line.key, "written and read, and not the same"


def make_usages() -> Iterator[bytes]:
    used, adjusted = Used("acme", 0, 3600, 100, 7, 1), Adjusted("acme", 0, 3600, 3, "a credit", "me", 5)
    yield join([encode(used), encode(adjusted)])
    yield join([encode(used)[:-1]])


def read_blocks(data: bytes) -> None:
    blocks = Blocks(1, ("acme",), period_ns=10**9, origin="boot")
    blocks.replay(split(data))
    for period in (0, 1, 7):
        blocks.resume(period)


def make_blocks() -> Iterator[bytes]:
    write = msgspec.msgpack.encode
    charged = [Charged(1, period, (("acme", 5),), (("acme", 2),), "boot", 1, 2) for period in (7, 8, 3)]
    yield join(map(write, [Began(1), *charged]))
    yield join(map(write, [Began(1), charged[0], Began(2), Charged(2, 8, (), (), "", 0, 0)]))
    yield join([b"\x90"])


def read_shares(data: bytes) -> None:
    """Records that are taken in sum to zero, and are written as they were read."""
    book = _make_book()
    book.replay([data])
    assert sum(book.records().values()) == 0, "records do not sum to zero"
    again = _make_book()
    again.replay([book.snapshot()])
    kept = {name: record for name, record in book.records().items() if record}
    assert kept == {name: record for name, record in again.records().items() if record}, "not read as written"


def _make_book() -> TargetBook:
    policy = _make_policy()
    return TargetBook(policy.tenants, policy.capacity, 10**8)


@cache
def _make_policy() -> Any:
    text = '[resource.x]\nkind = "share"\ncapacity = "1k/s"\ntenant = { acme = {}, b = {} }'
    return parse(text).resource("x")


def make_shares() -> Iterator[bytes]:
    write = msgspec.msgpack.encode
    yield write({"acme": 5, "b": -5})
    yield write({"acme": 5, "gone": -3, "c": -2})
    yield write(({"acme": 5, "gone": -5}, {"acme": Burst(10, 5, 9, 10), "gone": Burst(1, 2, 3, 1)}))
    yield write({"acme": 5})
    yield write({"acme": 2**64 - 1, "b": -(2**63), "c": -(2**63) + 1})
    yield write({})
    yield b"\xff"


TARGETS = (
    Target(
        "journals-file",
        ("bursar.runtime.journal:read_records,_check_tail,_unpack",),
        read_file,
        make_files,
        (JournalError,),
    ),
    Target(
        "journals-damage",
        ("bursar.runtime.journal:_check_tail,_unpack",),
        damage,
        make_damages,
        (JournalError,),
    ),
    Target(
        "journals-ledger",
        ("bursar.quotas.replay", "bursar.quotas.entries:read"),
        read_ledger,
        make_ledgers,
        (JournalError,),
    ),
    Target(
        "journals-usage",
        ("bursar.decoding:make_reader.read", "bursar.quotas.history:Used,Adjusted"),
        read_usage,
        make_usages,
    ),
    Target(
        "journals-blocks",
        ("bursar.rates.blocks:Past,Blocks.replay,Blocks.resume,Blocks._recall",),
        read_blocks,
        make_blocks,
    ),
    Target(
        "journals-shares", ("bursar.shares.book:TargetBook.replay,_enter_unknown",), read_shares, make_shares
    ),
)
