"""Real PostgreSQL servers of this machine's own: a primary, and standbys that stream from it.

Each is a cluster of Debian's package in a directory that goes when it is stopped. initdb refuses root, so
as root they run as the package's user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar_lab.zookeeper_server import Loopback, Where

USER = "bursar"
SUPERUSER = "postgres"
PASSWORD = "not-secret"
DATABASE = "store"
START_MAX_S = 60.0
STANDBYS = "ANY 1 (*)"


def find_programs() -> Path | None:
    """Where the newest version of the server is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


class PostgresqlServers:
    """`with PostgresqlServers(2) as servers: open_store(servers.url())`: number 0 leads, the others stream
    from it. `settings` are for all of them; `place` is where they run."""

    def __init__(
        self, count: int = 1, *, settings: Mapping[str, str] | None = None, place: Where | None = None
    ) -> None:
        programs = find_programs()
        if programs is None:
            raise BursarError("PostgreSQL is not installed here: apt-get install postgresql")
        self.count = count
        self.primary = 0
        self._programs = programs
        self._place: Where = place or Loopback()
        self.addresses = self._place.addresses(count)
        self.ports = [find_free_port() for _ in range(count)]
        self.directory = Path(tempfile.mkdtemp(prefix="bursar-postgresql-"))
        self._settings = dict(settings or {})
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        if os.geteuid() == 0:
            shutil.chown(self.directory, SUPERUSER)

    def __enter__(self) -> PostgresqlServers:
        try:
            self._create()
            for number in range(1, self.count):
                self.follow(number, 0)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def hosts(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in zip(self.addresses, self.ports, strict=True))

    def url(self, schema: str = "bursar", options: str = "") -> str:
        return f"postgresql://{USER}:{PASSWORD}@{self.hosts}/{DATABASE}?schema={schema}{options}"

    def sql(self, number: int, *statements: str, database: str = SUPERUSER) -> str:
        """As the superuser; what the last one answered."""
        host, port = self.addresses[number], self.ports[number]
        command = ["psql", "-XAtq", "-h", host, "-p", str(port), "-U", SUPERUSER, "-d", database]
        for statement in statements:
            command += ["-c", statement]
        wrapped = self._place.command(number, ["env", f"PGPASSWORD={PASSWORD}", *command])
        done = subprocess.run(wrapped, capture_output=True, text=True, timeout=START_MAX_S)
        if done.returncode:
            raise BursarError(f"psql: {done.stderr.strip()}")
        return done.stdout.strip()

    def _create(self) -> None:
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = ["--no-sync", "-E", "UTF8", "--locale=C", "-A", "scram-sha-256", "-U", SUPERUSER]
        self._run(0, "initdb", "-D", str(self.home(0)), "--pwfile", str(secret), *options)
        with open(self.home(0) / "pg_hba.conf", "a") as rules:
            rules.write("host all all all scram-sha-256\nhost replication all all scram-sha-256\n")
        self.start(0)
        self.sql(0, f"CREATE USER {USER} PASSWORD '{PASSWORD}'", f"CREATE DATABASE {DATABASE} OWNER {USER}")
        if self.count > 1 and "synchronous_standby_names" not in self._settings:
            self._wait_for_standbys(0)

    def follow(self, number: int, leader: int) -> None:
        """Make it a standby of the leader, from a fresh copy."""
        self.kill(number)
        shutil.rmtree(self.home(number), ignore_errors=True)
        host, port = self.addresses[leader], self.ports[leader]
        source = f"host={host} port={port} user={SUPERUSER} password={PASSWORD}"
        self._run(
            number, "pg_basebackup", "-D", str(self.home(number)), "-R", "-c", "fast", "-N", "-d", source
        )
        self.start(number)
        self._await(lambda: bool(self._followers(leader)), "no standby streams")

    def _followers(self, leader: int) -> int:
        return int(self.sql(leader, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))

    def promote(self, number: int) -> None:
        """The standby leads from now on, alone: nobody follows it yet."""
        self.sql(number, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
        self.sql(number, "SELECT pg_promote(true, 60)")
        self.primary = number

    def leader(self) -> int:
        return self.primary

    def fail_over(self, lost: int) -> None:
        """Of two: the other one leads."""
        self.promote(1 - lost)

    def rejoin(self, number: int) -> None:
        """As a standby of the one that leads, which waits for it from then on."""
        self.follow(number, self.primary)
        self._wait_for_standbys(self.primary)

    def _wait_for_standbys(self, leader: int) -> None:
        wanted = f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBYS}'"
        self.sql(leader, wanted, "SELECT pg_reload_conf()")

    def home(self, number: int) -> Path:
        return self.directory / str(number)

    def start(self, number: int) -> None:
        settings = {
            "listen_addresses": self.addresses[number],
            "port": str(self.ports[number]),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "wal_keep_size": "512MB",
            **self._settings,
        }
        command = [str(self._programs / "postgres"), "-D", str(self.home(number))]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with open(self.directory / f"{number}.log", "ab") as out:
            wrapped = self._place.command(number, self._as_user(command))
            self._processes[number] = subprocess.Popen(wrapped, stdout=out, stderr=out, cwd="/")
        self._await(lambda: self._answers(number), "PostgreSQL did not start")

    def _answers(self, number: int) -> bool:
        try:
            return self.sql(number, "SELECT 1") == "1"
        except BursarError:
            return False

    def _await(self, condition: object, problem: str) -> None:
        assert callable(condition)
        until = time.monotonic() + START_MAX_S
        while time.monotonic() < until:
            if condition():
                return
            time.sleep(0.05)
        raise BursarError(f"{problem} within {START_MAX_S} s: {self._last_words()}")

    def _last_words(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-500:] for path in self.directory.glob("*.log"))

    def kill(self, number: int) -> None:
        """As the power does: every process of this server at once, none of them told."""
        process = self._processes[number]
        if process is None:
            return
        self._signal(number, signal.SIGKILL)
        process.wait()
        self._processes[number] = None

    def pause(self, number: int) -> None:
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, sent: signal.Signals) -> None:
        process = self._processes[number]
        assert process is not None, f"server {number} is not running"
        for pid in (*_descendants(process.pid), process.pid):
            try:
                os.kill(pid, sent)
            except ProcessLookupError:
                continue

    def _run(self, number: int, program: str, *arguments: str) -> None:
        command = self._as_user([str(self._programs / program), *arguments])
        done = subprocess.run(self._place.command(number, command), capture_output=True, text=True, cwd="/")
        if done.returncode:
            raise BursarError(f"{program}: {done.stderr.strip()[-1000:]}")

    def _as_user(self, command: Sequence[str]) -> list[str]:
        return (
            ["setpriv", f"--reuid={SUPERUSER}", f"--regid={SUPERUSER}", "--init-groups", *command]
            if (os.geteuid() == 0)
            else list(command)
        )

    def stop(self) -> None:
        for number in range(self.count):
            self.kill(number)
        shutil.rmtree(self.directory, ignore_errors=True)


def _descendants(pid: int) -> list[int]:
    """Its processes, the nearest first: PostgreSQL has one for each connection."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found
