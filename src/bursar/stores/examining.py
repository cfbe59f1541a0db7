"""What a store is like: its engine's version, settings that would break a promise, how fast it answers.

For people who set one up (`bursar store check`): nothing here is read by a node.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bursar.world import SECOND_NS, Create, Delete, Operation, Set, Store

TOGETHER = 32
ROUNDS = 50
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "glusterfs", "ceph", "lustre")
LEASES_MENDED = {(3, 4): 29, (3, 5): 11}
"""From which release on a leader that was deposed while it stood still ends no lease that lives on."""

SIZE_WARN_BYTES = 1024**3


@dataclass(slots=True)
class Findings:
    """What was found: facts by name, problems with what to do about them, figures by name and unit."""

    engine: str
    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


async def examine(store: Store, timeout_ns: int) -> Findings:
    """`timeout_ns` is the session's, as it was asked for."""
    findings = Findings(type(store).__name__.removesuffix("Store").lower())
    findings.facts["operations in a transaction"] = str(store.operations_max)
    look: Callable[[Any, Findings], Awaitable[None]] | None = _EXAMINERS.get(findings.engine)
    if look is not None:
        await look(store, findings)
    granted_ns: int = getattr(store, "timeout_ns", timeout_ns)
    if granted_ns != timeout_ns:
        findings.problems.append(
            f"sessions of {timeout_ns / SECOND_NS:g} s were asked for, {granted_ns / SECOND_NS:g} s were "
            "given: what waits for a dead node waits so long (ZooKeeper: tickTime, minSessionTimeout, "
            "maxSessionTimeout)"
        )
    findings.figures |= await measure(store)
    return findings


# Engines


async def _examine_sqlite(store: Any, findings: Findings) -> None:
    findings.facts["version"] = sqlite3.sqlite_version
    kind = findings.facts["file system"] = await asyncio.to_thread(find_file_system, Path(store.path))
    if kind in NETWORK_FILE_SYSTEMS:
        findings.problems.append(f"{store.path} is on {kind}: its locks do not hold there; use a local disk")


def find_file_system(path: Path) -> str:
    """Of the mount that holds the path; "" where that is not told."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, where, found, *_ = line.split()
        if path.is_relative_to(where) and len(where) >= len(best):
            best, kind = where, found
    return kind


async def _examine_zookeeper(store: Any, findings: Findings) -> None:
    hosts = store.hosts
    findings.facts["servers named"] = str(len(hosts))
    if len(hosts) < 3:
        findings.problems.append(f"{len(hosts)} server: without it nothing works; three bear the loss of one")
    answers = await asyncio.gather(*(_ask_four_letters(*host) for host in hosts))
    for (host, port), answer in zip(hosts, answers, strict=True):
        said = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
        version = said.get("Zookeeper version", "not told (4lw.commands.whitelist=srvr)")
        findings.facts[f"{host}:{port}"] = f"{said.get('Mode', '?')}, {version.partition('-')[0]}"


async def _ask_four_letters(host: str, port: int) -> str:
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"srvr")
            answer = await reader.read(4096)
            writer.close()
    except (OSError, TimeoutError):
        return ""
    return answer.decode("ascii", "replace")


async def _examine_postgresql(store: Any, findings: Findings) -> None:
    facts = store.server_facts
    findings.facts |= {
        "version": f"{facts.version // 10_000}.{facts.version % 10_000}",
        "timeline": str(facts.timeline),
        "synchronous_standby_names": facts.standbys or "(empty)",
        "standbys connected": str(facts.followers),
        "synchronous_commit": f"{facts.commits} (the store asks for on)",
        "fsync": facts.fsync,
        "full_page_writes": facts.full_page_writes,
    }
    if facts.fsync != "on" or facts.full_page_writes != "on":
        findings.problems.append(
            "fsync or full_page_writes is off: what was acknowledged goes with the power"
        )
    if facts.followers and not facts.replicated:
        findings.problems.append("a standby, and no synchronous_standby_names: a failover loses changes")
    if not facts.followers:
        findings.problems.append("no standby is connected: if this server is lost, so is the store")


async def _examine_etcd(store: Any, findings: Findings) -> None:
    status = await store.read_status()
    findings.facts |= {
        "version": status.version,
        "members named": str(store.members),
        "database": f"{status.dbSize / 1024**2:.1f} MiB",
        "leader": f"{status.leader:x}",
    }
    numbers = tuple(int(part) for part in status.version.split(".")[:3] if part.isdecimal())
    if len(numbers) == 3 and numbers[2] < LEASES_MENDED.get(numbers[:2], 0):
        findings.problems.append(
            f"etcd {status.version}: a leader that stood still for longer than a session, and was replaced, "
            f"may end sessions that live on (mended in {numbers[0]}.{numbers[1]}."
            f"{LEASES_MENDED[numbers[:2]]}): what was guarded stays so, but leaders change"
        )
    if status.dbSize > SIZE_WARN_BYTES:
        findings.problems.append(
            "the database is large: start etcd with --auto-compaction-retention, defragment"
        )
    if store.members < 3:
        findings.problems.append(
            f"{store.members} member: without it nothing works; three bear the loss of one"
        )
    findings.problems += [f"etcd says: {error}" for error in status.errors]


_EXAMINERS: dict[str, Callable[[Any, Findings], Awaitable[None]]] = {
    "sqlite": _examine_sqlite,
    "zookeeper": _examine_zookeeper,
    "postgresql": _examine_postgresql,
    "etcd": _examine_etcd,
}


# Speed


async def measure(store: Store) -> dict[str, float]:
    """On nodes of its own, which are gone afterwards."""
    root = f"/check-{secrets.token_hex(6)}"
    await store.create(root)
    names = [f"{root}/{number}" for number in range(TOGETHER)]
    try:
        await store.transact([Create(name) for name in names])
        return {
            "read, ms": await _time(lambda: store.get(root)),
            "change, ms": await _time(lambda: store.set(root, b"x" * 100)),
            "notice of a change, ms": await _time_notice(store, names[0]),
            "transaction of 30, ms": await _time(
                lambda: store.transact([Set(name, b"x") for name in names[:30]])
            ),
            f"changes a second, {TOGETHER} at a time": await _count(store, names),
        }
    finally:
        left: list[Operation] = [*(Delete(name) for name in names), Delete(root)]
        await store.transact(left)


async def _time(act: Callable[[], Awaitable[Any]]) -> float:
    """The median, in milliseconds."""
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await act()
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


async def _time_notice(store: Store, path: str) -> float:
    """From the answer to the change until the watch tells."""
    watch = await store.watch(path)
    took = []
    for _ in range(ROUNDS):
        waiting = asyncio.ensure_future(watch.changed())
        await asyncio.sleep(0)
        began = time.perf_counter()
        await store.set(path, b"y")
        await waiting
        took.append((time.perf_counter() - began) * 1000)
    watch.close()
    return median(took)


async def _count(store: Store, names: list[str]) -> float:
    async def go(name: str) -> None:
        for _ in range(ROUNDS):
            await store.set(name, b"z")

    began = time.perf_counter()
    await asyncio.gather(*map(go, names))
    return ROUNDS * len(names) / (time.perf_counter() - began)
