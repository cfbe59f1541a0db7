"""Starts the processes of a live run, may kill some of them, and gathers what they left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError, UsageError
from bursar.integrations.file_backend import make_file
from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_live.ledger import Whole, read_ledgers
from bursar_lab.experiments.rates_live.node import Config, Opening, Round, ServerReport
from bursar_lab.experiments.rates_live.plan import Plan
from bursar_lab.processes import await_port

START_S = 0.5
GRACE_S = 30.0
RUN_NODE = "import sys; from bursar_lab.experiments.rates_live.node import main; main(sys.argv[1:])"
CORES = os.cpu_count() or 1
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where ledgers are: a page of a file on a disk can stop whoever writes to it while it is synced."""


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass
class Outcome:
    """What a run left. Times are boot time in nanoseconds unless they say otherwise."""

    plan: Plan
    began_at: int
    ended_at: int
    ledgers: dict[str, tuple[Whole, Whole]]
    openings: dict[int, int]
    leaders: list[Opening]
    rounds: list[Round]
    reports: list[ServerReport]
    cpu_s: float
    backend_counted: int
    events: list[tuple[str, int]] = field(default_factory=list)

    @property
    def used(self) -> float:
        """The part of the machine's cores that all processes of the run used."""
        return self.cpu_s / (CORES * (self.ended_at - self.began_at) / SECOND_NS)

    @property
    def charged(self) -> Whole:
        """Requests by period and tenant, over all lives of all servers."""
        total: Whole = sum(periods for periods, _ in self.ledgers.values())  # type: ignore[assignment]
        return total

    @property
    def slices(self) -> Whole:
        total: Whole = sum(slices for _, slices in self.ledgers.values())  # type: ignore[assignment]
        return total


class Cluster:
    """The processes of one run, while it runs."""

    def __init__(self, plan: Plan, folder: Path, ledgers: Path, targets: dict[str, str]) -> None:
        self.plan = plan
        self.folder = folder
        self.ledgers = ledgers
        self.began_at = 0
        self.events: list[tuple[str, int]] = []
        self._targets = targets
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._addresses: dict[str, str] = {}

    def start(self, controllers: int) -> None:
        self._launch_all("server", self.plan.servers)
        self._launch_all("controller", [f"c{k + 1}" for k in range(controllers)])
        self.began_at = boot_ns() + int(START_S * SECOND_NS)
        for name in self._children:
            self._begin(name)

    def _launch_all(self, role: str, names: Iterator[str] | list[str] | tuple[str, ...]) -> None:
        """All at once, then wait for each."""
        names = list(names)
        for name in names:
            self._launch(role, name)
        for name in names:
            self._await_ready(name)

    def _launch(self, role: str, name: str) -> None:
        peers = dict(self._addresses) if role == "controller" else {}
        config = Config(
            name=name,
            folder=str(self.folder),
            ledgers=str(self.ledgers),
            plan=self.plan,
            target=self._targets.get(name, ""),
            peers=peers,
        )
        path = self.folder / f"{name}.json"
        path.write_bytes(msgspec.json.encode(config))
        self._children[name] = subprocess.Popen(
            [sys.executable, "-c", RUN_NODE, role, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _await_ready(self, name: str) -> None:
        stream = self._children[name].stdout
        assert stream is not None
        line = stream.readline()
        if not line.startswith("ready "):
            raise BursarError(f"{name} did not start: it ended with {self._children[name].wait(GRACE_S)}")
        self._addresses.setdefault(name, line.split()[1])

    def _begin(self, name: str) -> None:
        stream = self._children[name].stdin
        assert stream is not None
        stream.write(f"{self.began_at}\n")
        stream.flush()

    def kill(self, name: str) -> None:
        """kill -9."""
        self.events.append((f"{name} killed", boot_ns()))
        self._children[name].send_signal(signal.SIGKILL)
        self._children[name].wait(GRACE_S)

    def find_leader(self) -> str:
        """Which controller opened or took over a period last, by what they wrote."""
        last = max(read_rounds(self.folder), key=lambda found: found[1].began_at)
        return last[0]

    def wait_until(self, moment_s: float) -> None:
        time.sleep(max(0.0, (self.began_at + moment_s * SECOND_NS - boot_ns()) / SECOND_NS))

    def cpu_s(self) -> float:
        return sum(read_cpu_s(child.pid) for child in self._children.values() if child.poll() is None)

    def finish(self) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        for name, child in self._children.items():
            code = child.wait(GRACE_S)
            if code not in (0, -signal.SIGKILL):
                raise BursarError(f"{name} ended with {code}")

    def close(self) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
                child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()


def run_plan(
    plan: Plan,
    *,
    controllers: int = 1,
    during: Callable[[Cluster], None] | None = None,
    file: Path | None = None,
) -> Outcome:
    """One run on real processes; nothing of it stays behind, but for `file`, the data file."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-rates-")))
        ledgers = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-rates-", dir=MEMORY)))
        backends: list[subprocess.Popen[bytes]] = []
        targets = {}
        if plan.backend == "file":
            path = file or folder / "data"
            make_file(path, plan.file_bytes)
            targets = dict.fromkeys(plan.servers, str(path))
        else:
            for server in plan.servers:
                address, process = stack.enter_context(run_memcached())
                targets[server] = address
                backends.append(process)
        cluster = Cluster(plan, folder, ledgers, targets)
        stack.callback(cluster.close)
        cluster.start(controllers if plan.controlled else 0)
        cluster.wait_until(0.0)
        counted = sum(map(count_commands, targets.values())) if backends else 0
        spent_s = cluster.cpu_s() + sum(read_cpu_s(process.pid) for process in backends)
        if during is not None:
            during(cluster)
        cluster.wait_until(plan.duration_s)
        spent_s = cluster.cpu_s() + sum(read_cpu_s(process.pid) for process in backends) - spent_s
        ended_at = boot_ns()
        cluster.finish()
        if backends:
            counted = sum(map(count_commands, targets.values())) - counted
        return _gather(plan, cluster, folder, ended_at, spent_s, counted)


def _gather(
    plan: Plan, cluster: Cluster, folder: Path, ended_at: int, cpu_s: float, backend_counted: int
) -> Outcome:
    lines = [line for _, line in read_rounds(folder)]
    leaders = read_openings(folder)
    openings: dict[int, int] = {}
    for opening in leaders:
        openings.setdefault(opening.period, opening.at)
    if not plan.controlled:
        count = int(plan.duration_s / plan.period_s)
        openings = {k + 1: cluster.began_at + k * plan.period_ns for k in range(count + 1)}
    decode = msgspec.json.Decoder(ServerReport).decode
    return Outcome(
        plan=plan,
        began_at=cluster.began_at,
        ended_at=ended_at,
        ledgers=read_ledgers(cluster.ledgers, plan),
        openings=openings,
        leaders=leaders,
        rounds=lines,
        reports=[decode(path.read_bytes()) for path in sorted(folder.glob("*.report"))],
        cpu_s=cpu_s,
        backend_counted=backend_counted,
        events=cluster.events,
    )


def read_rounds(folder: Path) -> list[tuple[str, Round]]:
    """(name of the controller, round), in order of time."""
    found = []
    for path in folder.glob("*.rounds"):
        for line in _whole_lines(path):
            if line.count(b",") == 5:
                found.append((path.name.split(".")[0], msgspec.json.decode(line, type=Round)))
    return sorted(found, key=lambda pair: pair[1].began_at)


def read_openings(folder: Path) -> list[Opening]:
    found = []
    for path in folder.glob("*.rounds"):
        for line in _whole_lines(path):
            if line.count(b",") == 2:
                found.append(msgspec.json.decode(line, type=Opening))
    return sorted(found, key=lambda opening: opening.at)


def _whole_lines(path: Path) -> list[bytes]:
    """Whoever wrote it may have been killed in the middle of the last one."""
    return path.read_bytes().split(b"\n")[:-1]


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
