"""A real ZooKeeper ensemble of this machine's own, for benchmarks, experiments and tests.

Each server is a plain process of Debian's package, on free loopback ports, with its data in a
directory that goes when it is stopped.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError

JAR = Path("/usr/share/java/zookeeper.jar")
NETTY_JARS = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar"
"""Installed with it; what zookeeper.jar itself names of Netty is not enough to serve TLS."""

START_MAX_S = 30.0
TICK_MS = 500
_LOGGING = "log4j.rootLogger=OFF\n"


class Where(Protocol):
    """Where each server runs, and how it is reached."""

    def addresses(self, count: int) -> Sequence[str]: ...

    def command(self, number: int, command: list[str]) -> list[str]: ...

    def dial(self, number: int, port: int, timeout_s: float) -> socket.socket: ...


class Loopback:
    """All of them on 127.0.0.1."""

    def addresses(self, count: int) -> Sequence[str]:
        return ["127.0.0.1"] * count

    def command(self, number: int, command: list[str]) -> list[str]:
        return command

    def dial(self, number: int, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout_s)


class ZookeeperServers:
    """`with ZookeeperServers(3) as servers: open_store(servers.url("/test"))`. With `tls`, a
    directory with server.pem (key and certificate) and ca.crt, they also serve TLS, on ports of
    its own, to clients with a certificate. `place` is
    where they run."""

    def __init__(
        self,
        count: int = 1,
        *,
        tick_ms: int = TICK_MS,
        tls: Path | None = None,
        place: Where | None = None,
    ) -> None:
        if not JAR.exists() or shutil.which("java") is None:
            raise BursarError("ZooKeeper is not installed here: apt-get install zookeeper")
        self.count = count
        self._place: Where = place or Loopback()
        self._addresses = self._place.addresses(count)
        self.ports = [find_free_port() for _ in range(count)]
        self.tls_ports = [find_free_port() for _ in range(count)]
        self._tls = tls
        self._tick_ms = tick_ms
        self._quorum = [(find_free_port(), find_free_port()) for _ in range(count)]
        self._directory = Path(tempfile.mkdtemp(prefix="bursar-zookeeper-"))
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count

    def __enter__(self) -> ZookeeperServers:
        try:
            for number in range(self.count):
                self.start(number)
            self.wait_until_serving()
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
        return ",".join(f"{host}:{port}" for host, port in zip(self._addresses, self.ports, strict=True))

    def url(self, chroot: str = "") -> str:
        return f"zookeeper://{self.hosts}{chroot}"

    def start(self, number: int) -> None:
        home = self._directory / str(number)
        (home / "data").mkdir(parents=True, exist_ok=True)
        (home / "log4j.properties").write_text(_LOGGING)
        (home / "data" / "myid").write_text(str(number + 1))
        (home / "zoo.cfg").write_text(self._configuration(home, number))
        command = [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4",
            "-cp", f"{home}:{JAR}:{NETTY_JARS}",
            "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.forceSync=yes",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg"),
        ]  # fmt: skip
        with open(home / "out", "ab") as out:
            command = self._place.command(number, command)
            self._processes[number] = subprocess.Popen(command, stdout=out, stderr=out)

    def _configuration(self, home: Path, number: int) -> str:
        lines = [
            f"tickTime={self._tick_ms}", "initLimit=20", "syncLimit=10", f"dataDir={home / 'data'}",
            f"clientPort={self.ports[number]}", f"clientPortAddress={self._addresses[number]}",
            "admin.enableServer=false", "4lw.commands.whitelist=srvr,ruok", "maxClientCnxns=0",
            "maxSessionTimeout=60000", "snapCount=1000000", "preAllocSize=4096",
        ]  # fmt: skip
        if self._tls is not None:
            lines += [
                f"secureClientPort={self.tls_ports[number]}",
                f"secureClientPortAddress={self._addresses[number]}",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={self._tls / 'server.pem'}", "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={self._tls / 'ca.crt'}", "ssl.trustStore.type=PEM",
            ]  # fmt: skip
        if self.count > 1:
            for other, (peer, election) in enumerate(self._quorum):
                lines.append(f"server.{other + 1}={self._addresses[other]}:{peer}:{election}")
        return "\n".join(lines) + "\n"

    def role(self, number: int) -> str | None:
        """ "leader", "follower", "standalone", or None for one that does not serve."""
        try:
            with self._place.dial(number, self.ports[number], 0.5) as connection:
                connection.settimeout(0.5)
                connection.sendall(b"srvr")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
        except OSError:
            return None
        for line in answer.decode("ascii", "replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def leader(self) -> int:
        for number in range(self.count):
            if self.role(number) in ("leader", "standalone"):
                return number
        raise BursarError("no ZooKeeper server leads at the moment")

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_MAX_S
        while time.monotonic() < deadline:
            roles = [self.role(number) for number in range(self.count)]
            if all(role is not None for role in roles):
                return
            time.sleep(0.05)
        raise BursarError(f"ZooKeeper did not start within {START_MAX_S} s: {self._last_words()}")

    def _last_words(self) -> str:
        path = self._directory / "0" / "out"
        return path.read_text(errors="replace")[-500:] if path.exists() else "it said nothing"

    def kill(self, number: int) -> None:
        """kill -9 of one server."""
        process = self._processes[number]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[number] = None

    def pause(self, number: int) -> None:
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, sent: signal.Signals) -> None:
        process = self._processes[number]
        assert process is not None, f"server {number} is not running"
        process.send_signal(sent)

    def stop(self) -> None:
        for number in range(self.count):
            self.kill(number)
        shutil.rmtree(self._directory, ignore_errors=True)
