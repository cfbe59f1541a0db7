"""Hostile input for what listens: the quota service and the memcached proxy, as real processes.

The process must live, answer a decent peer all the while, and keep neither memory nor files. Inputs follow
from the seed alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar_lab.experiments.envoy.processes import Bursar, find_ports
from bursar_lab.fuzzing.campaign import Found
from bursar_lab.processes import Process, start_memcached

WARM_UP_PART = 0.3
"""Memory is compared from here on: a process that has just begun fills its caches."""

GROWTH_MAX_BYTES = 48 * 2**20
FILES_MAX = 16
TIMEOUT_S = 30.0
CHECK_TIMEOUT_S = 60.0
EVERY_S = 1.0

POLICY = """
[resource.api]
kind = "rate"
servers = {{ here = "100k/s" }}
without_bursar = "keep"
[resource.api.tenant]
acme = {{ limit = "50k/s" }}
other = {{ limit = "10/s" }}
[daemon]
http = "off"
state = "{state}"
"""

Attack = Callable[[random.Random], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Course:
    """One process, for so long. `tell` is told how far it is."""

    name: str
    seconds: float
    seed: int
    tell: Callable[[str], None]


async def bombard(
    process: Process, attacks: Mapping[str, Attack], check: Callable[[], Awaitable[None]], course: Course
) -> int:
    """Attack until the time is over; every second a decent peer asks and must be answered. How many inputs
    it was given."""
    rng, seconds = random.Random(course.seed), course.seconds
    counts: Counter[str] = Counter()
    began = checked_at = time.monotonic()
    memory_bytes = files = 0
    while (now := time.monotonic()) - began < seconds:
        name = rng.choice(list(attacks))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await attacks[name](rng)
        except (ConnectionError, asyncio.IncompleteReadError):
            counts["ended by the other side"] += 1
        except TimeoutError as error:
            raise process.fail(f"{name} was neither answered nor ended (seed {course.seed})") from error
        counts[name] += 1
        if not process.running:
            raise process.fail(f"it died of {name}, input {sum(counts.values())} of seed {course.seed}")
        if now - checked_at >= EVERY_S:
            checked_at = now
            await check()
            course.tell(
                f"{course.name}: {sum(counts.values()):,} inputs, {seconds - (now - began):.0f} s left"
            )
        if not memory_bytes and now - began > seconds * WARM_UP_PART:
            memory_bytes, files = process.memory_bytes(), count_files(process)
    await check()
    await asyncio.sleep(1.0)  # connections that were left are closed
    grown, more = process.memory_bytes() - memory_bytes, count_files(process) - files
    if grown > GROWTH_MAX_BYTES or more > FILES_MAX:
        raise process.fail(f"it keeps {grown / 2**20:.1f} MiB and {more} files (seed {course.seed})")
    return sum(counts.values())


def count_files(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, left out, repeated."""
    piece = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not piece:
            break
        at = rng.randrange(len(piece))
        change = rng.randrange(4)
        if change == 0:
            piece[at] = rng.randrange(256)
        elif change == 1:
            del piece[at : at + rng.randint(1, 20)]
        elif change == 2:
            piece[at:at] = piece[at : at + rng.randint(1, 50)]
        else:
            piece[at:at] = rng.randbytes(rng.randint(1, 20))
    return bytes(piece)


async def send_raw(port: int, data: bytes, *, stay: bool = False) -> bytes:
    """Send bytes, end, and read what comes until the other side ends (or leave at once)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        if stay:
            return b""
        writer.write_eof()
        return await reader.read()
    finally:
        writer.transport.abort()


# --- the quota service --------------------------------------------------------------------------


def make_reports(rng: random.Random) -> bytes:
    """A report that is well formed and makes little sense."""
    from envoy.service.rate_limit_quota.v3 import rlqs_pb2

    report = rlqs_pb2.RateLimitQuotaUsageReports(domain=rng.choice(["api", "api", "api", "", "x", "é" * 50]))
    for _ in range(rng.choice([0, 1, 3, 50, 2000])):
        usage = report.bucket_quota_usages.add()
        for _ in range(rng.choice([0, 1, 1, 1, 5])):
            key = rng.choice(["tenant", "tenant", "", "a", "t" * 300])
            usage.bucket_id.bucket[key] = rng.choice(["acme", "other", "", "no", "é", str(rng.random())])
        usage.time_elapsed.seconds = rng.choice([0, 5, -5, 2**62, -(2**62)])
        usage.time_elapsed.nanos = rng.choice([0, -1, 2**31 - 1])
        usage.num_requests_allowed = rng.choice([0, 1, 100, 2**64 - 1])
        usage.num_requests_denied = rng.choice([0, 1, 100, 2**64 - 1])
    return bytes(report.SerializeToString())


async def bombard_envoy(process: Bursar, course: Course) -> int:
    import grpc
    from envoy.service.rate_limit_quota.v3 import rlqs_pb2

    from bursar.integrations.envoy.quotas import SERVICE

    method = f"/{SERVICE}/StreamRateLimitQuotas"

    async def talk(messages: list[bytes], *, wait: bool) -> Any:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{process.port}") as channel:
            call = channel.stream_stream(method)()
            try:
                for message in messages:
                    await call.write(message)
                return await asyncio.wait_for(call.read(), 5) if wait else None
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return None  # an answer too: the stream was refused
            finally:
                call.cancel()

    decent = rlqs_pb2.RateLimitQuotaUsageReports(domain="api")
    usage = decent.bucket_quota_usages.add()
    usage.bucket_id.bucket["tenant"] = "acme"
    usage.num_requests_allowed = 1

    async def check() -> None:
        if not await talk([decent.SerializeToString()], wait=True):
            raise process.fail("a decent report was not answered")

    async def senseless(rng: random.Random) -> None:
        await talk([make_reports(rng) for _ in range(rng.randint(1, 5))], wait=False)

    async def mutated(rng: random.Random) -> None:
        await talk([mutate(rng, make_reports(rng)[:5000])], wait=False)

    async def noise(rng: random.Random) -> None:
        await talk([rng.randbytes(rng.randint(0, 500))], wait=False)

    async def not_grpc(rng: random.Random) -> None:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if rng.random() < 0.5 else b"GET / HTTP/1.1\r\n\r\n"
        await send_raw(process.port, preface + rng.randbytes(rng.randint(0, 300)), stay=True)

    attacks = {"senseless reports": senseless, "mutated": mutated, "noise": noise, "not gRPC": not_grpc}
    return await bombard(process, attacks, check, course)


def fuzz_envoy(log: Path, course: Course) -> int:
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.toml"
        policy.write_text(POLICY.format(state=Path(folder) / "state"))
        process = Bursar(policy, find_ports(), log, ("--level", "error"))
        try:
            process.wait_until_ready()
            return asyncio.run(bombard_envoy(process, course))
        finally:
            process.stop()


# --- the memcached proxy ------------------------------------------------------------------------

WORDS = [
    *(b"get", b"gets", b"set", b"add", b"cas", b"append", b"incr", b"delete", b"touch", b"gat", b"mg", b"ms"),
    *(b"md", b"mn", b"version", b"stats", b"quit", b"noreply", b"acme:a", b"other:b", b"x" * 260, b"0", b"1"),
    *(b"-1", b"5", b"100", b"1048577", b"99999999999999999999", b"\x80", b"\x00", b"q", b"v"),
]
DECENT = b"set acme:a 0 0 5\r\nhello\r\nget acme:a acme:b\r\nincr acme:n 1\r\ndelete acme:a noreply\r\nmn\r\n"


def make_commands(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(1, 30)):
        lines.append(b" ".join(rng.choices(WORDS, k=rng.randint(1, 7))))
        if rng.random() < 0.3:
            lines.append(rng.randbytes(rng.randint(0, 120)))
    return b"\r\n".join(lines) + rng.choice([b"\r\n", b"\n", b""])


class ProxyProcess(Process):
    def __init__(self, policy: Path, backend: int, log: Path) -> None:
        self.port = find_free_port()
        command = [sys.executable, "-m", "bursar", "memcached-proxy", str(policy), "--resource", "api"]
        options = ["--backend", f"127.0.0.1:{backend}", "--listen", f"127.0.0.1:{self.port}"]
        super().__init__([*command, *options, "--level", "error", "--wait", "2"], log)


async def bombard_memcached(process: ProxyProcess, course: Course) -> int:
    async def check() -> None:
        until = time.monotonic() + CHECK_TIMEOUT_S
        while time.monotonic() < until:
            try:
                got = await asyncio.wait_for(send_raw(process.port, b"get acme:none\r\nmn\r\n"), TIMEOUT_S)
            except (ConnectionError, TimeoutError) as error:
                got = repr(error).encode()
            if got == b"END\r\nMN\r\n":
                return
            await asyncio.sleep(0.1)
        raise process.fail(f"a decent request was answered with {got[:100]!r}")

    async def words(rng: random.Random) -> None:
        await send_raw(process.port, make_commands(rng))

    async def mutated(rng: random.Random) -> None:
        await send_raw(process.port, mutate(rng, DECENT * rng.randint(1, 40)))

    async def noise(rng: random.Random) -> None:
        await send_raw(process.port, rng.randbytes(rng.randint(0, 2000)))

    async def large(rng: random.Random) -> None:
        size = rng.choice([10_000, 1_048_576, 1_048_577, 3_000_000])
        sent = rng.choice([size, size // 2])
        await send_raw(process.port, b"set acme:big 0 0 %d\r\n" % size + bytes(sent) + b"\r\n")

    async def leaving(rng: random.Random) -> None:
        await send_raw(process.port, b"get acme:big\r\n" * rng.randint(1, 200), stay=True)

    await check()
    attacks = {"words": words, "mutated": mutated, "noise": noise, "large": large, "leaving": leaving}
    return await bombard(process, attacks, check, course)


def fuzz_memcached(log: Path, course: Course) -> int:
    server, port = start_memcached()
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.toml"
        policy.write_text(POLICY.format(state=Path(folder) / "state"))
        process = ProxyProcess(policy, port, log)
        try:
            found = asyncio.run(bombard_memcached(process, course))
            if server.poll() is not None:
                raise BursarError("memcached itself died behind the proxy")
            return found
        finally:
            process.stop()
            server.kill()
            server.wait()


PROCESSES = {"live-envoy": fuzz_envoy, "live-memcached": fuzz_memcached}


def run(course: Course, out: Path) -> Found:
    """What came of it: a fault is a process that did not stand it, whose log says more."""
    found = Found(course.name, seconds=course.seconds)
    folder = out / course.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found.inputs = PROCESSES[course.name](folder / "log", course)
    except BursarError as error:
        (folder / "fault.txt").write_text(f"{error}\n")
        found.faults = [folder / "fault.txt"]
    return found
