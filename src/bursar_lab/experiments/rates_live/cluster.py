"""Starts the processes of a live run and gathers what the clients were told: `bursar serve` for each server,
on one store, at default settings but for what the plan's policy says; memcached or a file behind it; and
clients of the public API, each with a part of the tenants."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import bursar
from bursar.demo.ports import find_free_port
from bursar.errors import BursarError, UsageError
from bursar.integrations.file_backend import make_file
from bursar.world import SECOND_NS
from bursar_lab.experiments.fleet.processes import Fleet
from bursar_lab.experiments.rates_live.plan import RESOURCE, Config, Plan
from bursar_lab.experiments.rates_live.tally import Tally, Whole, add_up, boot_ns
from bursar_lab.processes import await_port

START_S = 0.5
SETTLE_S = 2.0
GRACE_S = 60.0
CLIENTS = 2
CLIENT = "bursar_lab.experiments.rates_live.client"
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Talk:
    """What the controllers said of a run: rounds, messages between them and the servers, and the seconds
    that went by between asking the servers and their last acknowledgement, less those of computing."""

    rounds: int
    messages: int
    talking_s: float

    def __sub__(self, other: Talk) -> Talk:
        return Talk(
            self.rounds - other.rounds, self.messages - other.messages, self.talking_s - other.talking_s
        )


@dataclass
class Outcome:
    """What a run left. Times are boot time in nanoseconds unless they say otherwise."""

    plan: Plan
    began_at: int
    ended_at: int
    tally: Tally
    talk: Talk
    cpu_s: float
    backend_counted: int

    @property
    def used(self) -> float:
        """The part of the machine's cores that all processes of the run used."""
        return self.cpu_s / (CORES * (self.ended_at - self.began_at) / SECOND_NS)

    @property
    def openings(self) -> dict[int, int]:
        """When a client was first told of each period."""
        return dict(sorted(self.tally.seen.items()))

    @property
    def slices(self) -> Whole:
        return self.tally.slices

    @property
    def communication(self) -> float:
        """The part of the time that went by with talking."""
        return self.talk.talking_s * SECOND_NS / (self.ended_at - self.began_at)


def run_plan(plan: Plan, *, file: Path | None = None) -> Outcome:
    """One run on real processes; nothing of it stays behind, but for `file`, the data file."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-rates-")))
        backends: list[subprocess.Popen[bytes]] = []
        targets = _start_backends(plan, file or folder / "data", stack, backends)
        fleet = Fleet(folder, f"sqlite://{folder}/store.db")
        stack.callback(fleet.stop)
        _start_fleet(fleet, plan)
        clients = [_start_client(fleet, plan, number, targets) for number in range(CLIENTS)]
        for client in clients:
            stack.callback(_end, client)
        return _watch(plan, fleet, clients, backends, targets)


def _start_backends(
    plan: Plan, data: Path, stack: ExitStack, backends: list[subprocess.Popen[bytes]]
) -> dict[str, str]:
    if plan.backend == "file":
        make_file(data, plan.file_bytes)
        return dict.fromkeys(plan.servers, str(data))
    targets = {}
    for server in plan.servers:
        targets[server], process = stack.enter_context(run_memcached())
        backends.append(process)
    return targets


def _start_fleet(fleet: Fleet, plan: Plan) -> None:
    """The first node takes the policy along; the others find it in the store."""
    for server in plan.servers:
        fleet.start(server)
    fleet.apply(plan.write_policy())


def _start_client(fleet: Fleet, plan: Plan, number: int, targets: dict[str, str]) -> subprocess.Popen[str]:
    config = Config(
        name=f"c{number + 1}",
        plan=plan,
        tenants=plan.tenants[number::CLIENTS],
        urls={server: fleet.url(server) for server in plan.servers},
        targets=targets,
    )
    path = fleet.folder / f"{config.name}.json"
    path.write_bytes(msgspec.json.encode(config))
    command = [sys.executable, "-m", CLIENT, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _watch(
    plan: Plan,
    fleet: Fleet,
    clients: list[subprocess.Popen[str]],
    backends: list[subprocess.Popen[bytes]],
    targets: dict[str, str],
) -> Outcome:
    for client in clients:
        assert client.stdout is not None
        if client.stdout.readline() != "ready\n":
            raise BursarError(f"a client did not start: it ended with {client.wait(GRACE_S)}")
    time.sleep(SETTLE_S)
    pids = [node.pid for node in fleet.nodes.values()]
    pids += [client.pid for client in clients] + [backend.pid for backend in backends]
    before = asyncio.run(_read_talk(fleet))
    began_at = boot_ns() + int(START_S * SECOND_NS)
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(f"{began_at}\n")
        client.stdin.flush()
    time.sleep((began_at - boot_ns()) / SECOND_NS)
    counted = sum(map(count_commands, targets.values())) if backends else 0
    spent_s = sum(map(read_cpu_s, pids))
    time.sleep((began_at - boot_ns()) / SECOND_NS + plan.duration_s - 0.1)
    spent_s = sum(map(read_cpu_s, pids)) - spent_s
    talk = asyncio.run(_read_talk(fleet)) - before
    said = [json.loads(client.communicate(timeout=GRACE_S)[0]) for client in clients]
    ended_at = began_at + round(plan.duration_s * SECOND_NS)
    counted = sum(map(count_commands, targets.values())) - counted if backends else 0
    return Outcome(plan, began_at, ended_at, add_up(plan, said), talk, spent_s, counted)


async def _read_talk(fleet: Fleet) -> Talk:
    """Of all nodes: each may have led for a while."""
    rounds = messages = 0
    talking_s = 0.0
    for name in fleet.nodes:
        async with await bursar.connect(fleet.url(name)) as b:
            found = (await b.statistics(RESOURCE, most=1)).part
            rounds += found["rounds"]
            messages += found["messages"]
            talking_s += found["talking_s"]
    return Talk(rounds, messages, talking_s)


def _end(client: subprocess.Popen[str]) -> None:
    if client.poll() is None:
        client.kill()
        client.wait()
    for stream in (client.stdin, client.stdout):
        if stream is not None:
            stream.close()


# -- memcached --------------------------------------------------------------------------------


@contextmanager
def run_memcached() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A memcached of its own on a free port: (address, process)."""
    program = shutil.which("memcached")
    if program is None:
        raise UsageError("memcached is not installed; install it (Debian: apt install memcached)")
    port = find_free_port()
    arguments = [program, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "128", "-t", "1"]
    process = subprocess.Popen([*arguments, "-u", "nobody"] if os.geteuid() == 0 else arguments)
    try:
        await_port(port, process)
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def count_commands(address: str) -> int:
    """Gets and sets that a memcached has served, by its own count."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5.0) as link, link.makefile("rwb") as stream:
        stream.write(b"stats\r\n")
        stream.flush()
        total = 0
        for line in stream:
            if line.startswith(b"END"):
                break
            words = line.split()
            if words[1] in (b"cmd_get", b"cmd_set"):
                total += int(words[2])
        return total


def read_cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
