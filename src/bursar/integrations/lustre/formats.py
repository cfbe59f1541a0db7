"""What `lctl` prints and takes: job_stats, nrs_tbf_rule, cpu_partition_table."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from bursar.errors import FormatError, UsageError

RATE_MAX = 999_999
OLD_RATE_MAX = 65_534
"""Before 2.15."""
COMMAND_MAX_BYTES = 4095
NAME_PATTERN = re.compile(r"[A-Za-z0-9_]{1,15}")
PREFIX = "bu_"
"""Every rule of bursar's begins so, and no other may: those that do are stopped at the start."""

_JOB = re.compile(r"^- job_id:\s*(.*?)\s*$")
_FIELD = re.compile(r"^\s+(\w+):\s*\{(.*)\}\s*$")
_RULE = re.compile(r"^(\S+) (.*) (\d{1,20}), ref \d+")
_ESCAPE = re.compile(r"\\x([0-9A-Fa-f]{2})")
_JOB_ID_MAX = 255


@dataclass(frozen=True, slots=True)
class JobStats:
    """RPCs and bytes of one job since its entry was made."""

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def requests(self) -> int:
        return self.reads + self.writes

    def __add__(self, other: JobStats) -> JobStats:
        return JobStats(
            self.reads + other.reads,
            self.writes + other.writes,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
        )


@dataclass(frozen=True, slots=True)
class TbfRule:
    """A rule as it is read back, of one CPU partition."""

    name: str
    condition: str
    rate: int


def parse_job_stats(text: str) -> dict[str, JobStats]:
    """The jobs of one target, or of several printed one after another (then summed).

    `read_bytes` and `write_bytes` count I/O; their `samples` are the RPCs. The fields `read` and
    `write` are latencies in newer releases and bytes in older ones, and are not looked at."""
    jobs: dict[str, JobStats] = {}
    job: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        found = _JOB.match(line)
        if found:
            job = unquote(found[1])
            jobs.setdefault(job, JobStats())
            continue
        field = _FIELD.match(line)
        if field and job is not None and field[1] in ("read_bytes", "write_bytes"):
            samples, size = _samples(field[2], number)
            more = (
                JobStats(reads=samples, read_bytes=size)
                if field[1] == "read_bytes"
                else JobStats(writes=samples, written_bytes=size)
            )
            jobs[job] += more
    return jobs


def _samples(text: str, number: int) -> tuple[int, int]:
    """(samples, sum) of `samples: 1, unit: bytes, min: 4096, ..., sum: 4096`. An entry without
    samples has no sum either."""
    fields = dict(part.partition(":")[::2] for part in text.split(","))
    values = {key.strip(): value.strip() for key, value in fields.items()}
    samples, size = values.get("samples", "0"), values.get("sum", "0")
    if not samples.isdecimal() or not size.isdecimal() or max(len(samples), len(size)) > 20:
        raise FormatError(f"line {number} of job_stats counts no samples: {text.strip()[:80]!r}")
    return int(samples), int(size)


def unquote(word: str) -> str:
    """A job id as it was set: odd ones are printed in quotes, with \\xHH for odd bytes."""
    if len(word) >= 2 and word[0] == word[-1] == '"':
        word = word[1:-1]
    raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), word)
    return raw[:_JOB_ID_MAX]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """A policy of the request scheduler, with its argument if it has one: "tbf jobid". The one that is the
    fallback runs beside any other, for requests that the other does not take."""

    policy: str
    started: bool
    fallback: bool


def parse_policies(text: str) -> list[Scheduling]:
    """Those of the regular requests: `- name: tbf jobid`, then `state: started`, `fallback: no`."""
    found: list[dict[str, str]] = []
    for raw in text.splitlines():
        line = raw.strip().removeprefix("- ")
        if line.startswith("high_priority_requests"):
            break
        key, colon, value = line.partition(":")
        if key == "name" and colon:
            found.append({})
        if found and colon:
            found[-1][key.strip()] = " ".join(value.split())
    if not found:
        raise FormatError(f"nrs_policies names none: {text.strip()[:80]!r}; is this an OSS?")
    return [
        Scheduling(each["name"], each.get("state") == "started", each.get("fallback") == "yes")
        for each in found
    ]


def find_running(text: str) -> str:
    """The policy that schedules: the one beside the fallback, or the fallback alone."""
    started = [each for each in parse_policies(text) if each.started]
    beside = [each.policy for each in started if not each.fallback]
    # A release that prints no fallback has fifo for it.
    beside = [policy for policy in beside if policy != "fifo"] or beside
    return (beside or [each.policy for each in started] or ["fifo"])[0]


def find_rate_max(text: str) -> int:
    """By the release: `lustre: 2.15.3`, or the number alone."""
    found = re.search(r"(\d{1,4})\.(\d{1,4})", text)
    if found is None:
        raise FormatError(f"the version of Lustre is {text.strip()[:80]!r}, which is none")
    return OLD_RATE_MAX if (int(found[1]), int(found[2])) < (2, 15) else RATE_MAX


def parse_rules(text: str) -> dict[str, list[TbfRule]]:
    """The regular rules of each CPU partition, in the order in which they match."""
    partitions: dict[str, list[TbfRule]] = {}
    section, partition = "", ""
    for raw in text.splitlines():
        line = raw.strip()
        if line in ("regular_requests:", "high_priority_requests:"):
            section = line
        elif line.startswith("CPT ") and line.endswith(":"):
            partition = line[4:-1]
            if section == "regular_requests:":
                partitions.setdefault(partition, [])
        elif section == "regular_requests:" and partition in partitions:
            found = _RULE.match(line)
            if found:
                partitions[partition].append(TbfRule(found[1], found[2], int(found[3])))
    return partitions


def count_partitions(text: str) -> int:
    """CPU partitions in `cpu_partition_table`: lines such as `0 : 0 1 2 3`."""
    count = sum(1 for line in text.splitlines() if re.match(r"^\s*\d+\s*:", line))
    if count == 0:
        raise FormatError("cpu_partition_table lists no partition; is this an OSS?")
    return count


def name_rule(tenant: str) -> str:
    """A rule's name for a tenant: the same each time, and no other tenant's."""
    return PREFIX + hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def check_job_id(tenant: str) -> None:
    """Refuse a job id that a rule cannot say. Raises UsageError."""
    if not tenant or re.search(r"[\s{}*&,=\"\\]|[^\x21-\x7e]", tenant):
        raise UsageError(f"a rule cannot name the job id {tenant!r}; set jobid_name to print plain names")


def write_start(name: str, tenant: str, rate: int, before: str | None = None) -> str:
    check_job_id(tenant)
    return _check(f"start {name} jobid={{{tenant}}} rate={_whole(rate)}{_rank(before)}")


def write_change(name: str, rate: int, before: str | None = None) -> str:
    return _check(f"change {name} rate={_whole(rate)}{_rank(before)}")


def write_stop(name: str) -> str:
    return _check(f"stop {name}")


def _rank(before: str | None) -> str:
    return "" if before is None else f" rank={before}"


def _whole(rate: int) -> int:
    return min(RATE_MAX, max(1, rate))


def _check(command: str) -> str:
    if len(command.encode()) > COMMAND_MAX_BYTES:
        raise UsageError(f"a rule has at most {COMMAND_MAX_BYTES} bytes: {command[:60]!r}...")
    return command
