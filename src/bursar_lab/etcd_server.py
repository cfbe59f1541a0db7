"""Real etcd members of this machine's own, for benchmarks, experiments and tests.

Each is a plain process of Debian's package, on free loopback ports, with its data in a directory that goes
when it is stopped.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar_lab.zookeeper_server import Loopback, Where

START_MAX_S = 60.0
TOKEN = "bursar"


class EtcdServers:
    """`with EtcdServers(3) as servers: open_store(servers.url("/test"))`. `tls` is a directory with
    server.crt, server.key and ca.crt: then clients need a certificate too. `options` are for etcd."""

    def __init__(
        self,
        count: int = 1,
        *,
        options: Sequence[str] = (),
        tls: Path | None = None,
        place: Where | None = None,
    ) -> None:
        if shutil.which("etcd") is None:
            raise BursarError("etcd is not installed here: apt-get install etcd-server")
        self.count = count
        self._place: Where = place or Loopback()
        self._addresses = self._place.addresses(count)
        self.ports = [find_free_port() for _ in range(count)]
        self._peers = [find_free_port() for _ in range(count)]
        self._options = list(options)
        self._tls = tls
        self._directory = Path(tempfile.mkdtemp(prefix="bursar-etcd-"))
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._joined = False

    def __enter__(self) -> EtcdServers:
        try:
            for number in range(self.count):
                self.start(number)
            self.wait_until_serving()
            self._joined = True
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

    def url(self, prefix: str = "") -> str:
        return f"etcd://{self.hosts}{prefix}"

    def start(self, number: int) -> None:
        scheme = "http" if self._tls is None else "https"
        client = f"{scheme}://{self._addresses[number]}:{self.ports[number]}"
        peers = [f"http://{host}:{port}" for host, port in zip(self._addresses, self._peers, strict=True)]
        members = ",".join(f"e{other}={peer}" for other, peer in enumerate(peers))
        command = [
            "etcd", "--name", f"e{number}", "--data-dir", str(self._directory / str(number)),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number],
            "--initial-cluster", members, "--initial-cluster-token", TOKEN,
            "--initial-cluster-state", "existing" if self._joined else "new",
            "--auto-compaction-retention", "1m", "--logger", "zap", "--log-level", "error",
            *self._options,
        ]  # fmt: skip
        if self._tls is not None:
            command += [
                "--cert-file", str(self._tls / "server.crt"), "--key-file", str(self._tls / "server.key"),
                "--trusted-ca-file", str(self._tls / "ca.crt"), "--client-cert-auth",
            ]  # fmt: skip
        with open(self._directory / f"{number}.log", "ab") as out:
            wrapped = self._place.command(number, command)
            self._processes[number] = subprocess.Popen(wrapped, stdout=out, stderr=out)

    def leader(self) -> int:
        for number in range(self.count):
            status = self._status(number)
            if status is not None and status["leader"] == status["header"]["member_id"]:
                return number
        raise BursarError("no etcd member leads at the moment")

    def _status(self, number: int) -> dict[str, Any] | None:
        """What the member says of itself over its gateway to HTTP; None for one that does not serve."""
        request = (
            b"POST /v3/maintenance/status HTTP/1.0\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )
        try:
            with self._place.dial(number, self.ports[number], 1.0) as connection:
                connection.settimeout(1.0)
                connection.sendall(request)
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
            found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        except (OSError, ValueError):
            return None
        return found if "header" in found and found.get("leader") else None

    def _serves(self, number: int) -> bool:
        if self._tls is None:
            return self._status(number) is not None
        try:
            self._place.dial(number, self.ports[number], 1.0).close()
        except OSError:
            return False
        return True

    def wait_until_serving(self) -> None:
        until = time.monotonic() + START_MAX_S
        while time.monotonic() < until:
            running = [number for number in range(self.count) if self._processes[number] is not None]
            if all(map(self._serves, running)):
                return
            time.sleep(0.05)
        raise BursarError(f"etcd did not start within {START_MAX_S} s: {self._last_words()}")

    def _last_words(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-500:] for path in self._directory.glob("*.log"))

    def kill(self, number: int) -> None:
        """kill -9 of one member."""
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
        assert process is not None, f"member {number} is not running"
        process.send_signal(sent)

    def stop(self) -> None:
        for number in range(self.count):
            self.kill(number)
        shutil.rmtree(self._directory, ignore_errors=True)
