"""What machines say: Lustre's and PBS's tools, the kernel's files, shared words."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from bursar.errors import FormatError
from bursar.integrations.blkio import groups
from bursar.integrations.blkio.found import read_found
from bursar.integrations.guards import FileGuard
from bursar.integrations.lustre import formats, jobs
from bursar.pools import layout
from bursar.runtime.redis_words import read_word
from bursar.runtime.words import HEADER_BYTES, MAGIC, NAME_BYTES, WORD_BYTES, SharedWords
from bursar_lab.fuzzing.pieces import mark, pick
from bursar_lab.fuzzing.target import Target

WORDS_MAX = 4


@cache
def find_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="bursar-fuzz-", dir="/dev/shm"))


# -- Lustre and PBS

LUSTRE: list[Callable[[str], Any]] = [
    formats.parse_job_stats,
    formats.parse_policies,
    formats.find_running,
    formats.find_rate_max,
    formats.parse_rules,
    formats.count_partitions,
    jobs.read_lines,
    jobs.read_qstat,
]


def read_lustre(data: bytes) -> None:
    read, data = pick(data, LUSTRE)
    found = read(data.decode("utf-8", "replace"))
    if read is formats.parse_rules:
        assert all(rule.rate >= 0 for rules in found.values() for rule in rules), "a rate below zero"


def make_lustre() -> Iterator[bytes]:
    stats = b"""job_stats:
- job_id:          dd.0
  snapshot_time:   1479
  read_bytes:      { samples: 1, unit: bytes, min: 4096, max: 4096, sum: 4096, sumsq: 16777216 }
  write_bytes:     { samples: 25, unit: bytes, min: 1, max: 2, sum: 104857600 }
- job_id:          "a\\x20b"
  read_bytes:      { samples: 0, unit: bytes }
"""
    policies = b"""regular_requests:
  - name: fifo
    state: started
    fallback: yes
  - name: tbf jobid
    state: started
    fallback: no
high_priority_requests:
  - name: fifo
"""
    rules = b"""ost_io:
regular_requests:
CPT 0:
bu_aa jobid={dd.0} 100, ref 0
default * 10000, ref 0
high_priority_requests:
CPT 0:
default * 10000, ref 0
"""
    yield from (mark(0, stats), mark(0, stats.replace(b"samples: 1,", b"samples: -1,")))
    yield from (
        mark(1, policies),
        mark(1, b""),
        mark(2, policies),
        mark(2, policies.replace(b"started", b"x")),
    )
    yield from (mark(3, b"lustre: 2.15.3"), mark(3, b"2.12"), mark(3, b"none"), mark(3, b"9" * 5000 + b".1"))
    yield from (mark(4, rules), mark(4, rules.replace(b"100,", b"9" * 5000 + b",")))
    yield from (mark(5, b"0 : 0 1\n1 : 2 3\n"), mark(5, b"none"))
    yield from (mark(6, b"# jobs\n500 16\nname 1\n"), mark(6, b"500 x"), mark(6, b"1 " + b"9" * 5000))
    qstat = (
        b'{"Jobs": {"1.s": {"job_state": "R", "Resource_List": {"nodect": 2}}, "2.s": {"job_state": "Q"}}}'
    )
    yield from (mark(7, qstat), mark(7, b"[]"), mark(7, b"{"), mark(7, b"[" * 3000), mark(7, b"9" * 5000))
    yield mark(7, qstat.replace(b"2}", b"{}}"))


# -- the kernel


def read_kernel(data: bytes) -> None:
    what, data = pick(data, list(range(6)))
    text = data.decode("ascii", "replace")
    match what:
        case 0:
            counts = groups.parse_v1(text, "8:16")
            assert counts.read >= 0 and counts.written >= 0, "a count below zero"
        case 1:
            groups.parse_v2(text, "8:16")
        case 2:
            groups.parse_limit_v1(text, "8:16")
        case 3:
            _place("io.max", data)
            groups.IoV2(find_folder()).limits("group", "8:16")
        case 4:
            _place("8:16/stat", data)
            groups.read_queue("8:16", find_folder() / "group")
        case 5:
            path = _place("found", data)
            if not data:
                path.unlink()
            read_found(path)


def _place(name: str, data: bytes) -> Path:
    path = find_folder() / "group" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def make_kernel() -> Iterator[bytes]:
    yield from (
        mark(0, b"8:16 Read 4096\n8:16 Write 0\n8:0 Read 1\nTotal 4096\n"),
        mark(0, b"8:16 Read -1\n"),
    )
    yield from (
        mark(1, b"8:16 rbytes=4096 wbytes=0 rios=1\n"),
        mark(1, b"8:16 rbytes=x\n"),
        mark(1, b"\n7:0 a=b\n"),
    )
    yield from (
        mark(2, b"8:16 1048576\n8:0 5\n"),
        mark(2, b"8:16 0\n"),
        mark(2, b"8:16 99999999999999999999999\n"),
    )
    yield from (
        mark(3, b"8:16 rbps=1048576 wbps=max riops=max wiops=max\n"),
        mark(3, b"8:16 rbps=no\n"),
        mark(3, b"8:0 rbps=1\n"),
    )
    yield from (
        mark(4, b" 1 2 3 4 5 6 7 8 9 10 11\n"),
        mark(4, b"1 2"),
        mark(4, b" ".join([b"9" * 5000] * 12)),
    )
    yield from (
        mark(5, b'{"boot":"b","life":"1","limits":{"a":[1,null]}}'),
        mark(5, b"{"),
        mark(5, b"[" * 3000),
    )
    yield from (mark(5, b'{"boot":"\xff"}'), mark(5, b""))


# -- words


def open_words(data: bytes) -> None:
    """A file of words as somebody left it: it is refused, or holds what is written into it."""
    path = find_folder() / "words"
    path.write_bytes(data)
    words = SharedWords(path, WORDS_MAX)
    try:
        before = words.read("pool/x/taken")
        words.write("pool/x/taken", before ^ 1)
        assert words.fetch_add("pool/x/taken", 0) == before ^ 1, "written and read, and not the same"
        assert words.compare_and_swap("pool/x/asked", 2**64 - 1, 5) >= 0
    finally:
        words.close()
        path.unlink()


def make_words() -> Iterator[bytes]:
    name = b"pool/x/taken"
    named = bytes((len(name),)) + name.ljust(NAME_BYTES - 1, b"\0")
    for capacity, count in ((WORDS_MAX, 1), (WORDS_MAX, 0), (1, 1), (WORDS_MAX, 9), (2**32 - 1, 0)):
        room = min(capacity, WORDS_MAX) * (NAME_BYTES + WORD_BYTES)
        head = struct.pack("<16sII", MAGIC, capacity, count).ljust(HEADER_BYTES, b"\0")
        yield head + named.ljust(room, b"\1")
    yield from (b"", b"x", b"bursar words 9\n".ljust(HEADER_BYTES, b"\0"), head[:30])


def read_pool(data: bytes) -> None:
    """Any word has a meaning, and what it means is written as it was."""
    for at in range(0, len(data) - 7, 8):
        word = int.from_bytes(data[at : at + 8], "big")
        assert layout.pack(*layout.unpack(word)) == word, "a stamp was packed to something else"
        report = layout.unpack_report(word)
        again = layout.pack_report(report.tag, report.unspent, report.spent, report.waiting)
        assert again == word, "a report was packed to something else"
        period = layout.next_period(layout.unpack(word).period)
        assert 1 <= period <= layout.PERIOD_MAX
        assert not layout.is_ahead(period, period)
    if len(data) == 16:
        read_word(data.decode("utf-8", "replace"), "pool/x/taken")


def make_pool() -> Iterator[bytes]:
    yield struct.pack(">4Q", 0, 2**64 - 1, layout.pack(7, 5), layout.pack_report(7, 5, 3, True))
    yield b"00000000000000ff"
    yield b"not sixteen of 0"


# -- guards of fences


def read_guard(data: bytes) -> None:
    path = _place("fence", data)
    with FileGuard(path).writing(2**62):
        pass
    os.unlink(path)


def make_guards() -> Iterator[bytes]:
    yield from (b"5", b"", b"x", b"9" * 5000, "²".encode(), b"\xff", b" 7\n")


NUMBERS = (
    b"99999999999999999999",
    b"-1",
    b"8:16 ",
    b"max",
    b"rbps=",
    b"rbytes=",
    b"samples: ",
    b"sum: ",
    b"CPT 0:",
)

TARGETS = (
    Target(
        "machines-lustre",
        (
            "bursar.integrations.lustre.formats:parse_job_stats,_samples,unquote,parse_policies,find_running",
            "bursar.integrations.lustre.formats:find_rate_max,parse_rules,count_partitions",
            "bursar.integrations.lustre.jobs:read_lines,read_qstat,_count",
        ),
        read_lustre,
        make_lustre,
        words=NUMBERS,
        input_max_bytes=8192,
    ),
    Target(
        "machines-kernel",
        (
            "bursar.integrations.blkio.groups:parse_v1,parse_v2,parse_limit_v1,_fields_of,_count,read_queue",
            "bursar.integrations.blkio.groups:IoV2.limits",
            "bursar.integrations.blkio.found:read_found",
        ),
        read_kernel,
        make_kernel,
        words=NUMBERS,
        input_max_bytes=8192,
    ),
    Target(
        "machines-words",
        ("bursar.runtime.words:SharedWords._check_header,SharedWords._find,SharedWords._name_at",),
        open_words,
        make_words,
    ),
    Target(
        "machines-pool",
        ("bursar.pools.layout:pack,unpack,pack_report,unpack_report", "bursar.runtime.redis_words:read_word"),
        read_pool,
        make_pool,
        (FormatError,),
    ),
    Target("machines-guard", ("bursar.integrations.guards:FileGuard._read",), read_guard, make_guards),
)
