"""memcached servers and the proxy before them, as processes of their own."""

from __future__ import annotations

import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bursar.demo.ports import find_free_port
from bursar_lab.processes import Process, await_port, start_memcached

POLICY = """
[resource.cache]
kind = "rate"
servers = {{ here = "1M/s" }}
[resource.cache.tenant]
acme = {{ limit = "500k/s" }}
guest = {{ limit = "2/s" }}
[daemon]
http = "off"
state = "{state}"
"""


@dataclass(frozen=True)
class Standing:
    """Where things listen: the proxy, its port whose every key is acme's, and its metrics."""

    port: int
    acmes: int
    metrics: int
    servers: tuple[int, ...]

    def count(self, name: str) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.search(rf"^bursar_memcached_{name} (\d+)$", text, re.MULTILINE)
        assert found is not None, f"no {name} in {text}"
        return int(found[1])


@contextmanager
def stand(servers: int = 1, *options: str) -> Iterator[Standing]:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        ports = tuple(_run_memcached(held) for _ in range(servers))
        policy = folder / "policy.toml"
        policy.write_text(POLICY.format(state=folder / "state"))
        port, acmes, metrics = find_free_port(), find_free_port(), find_free_port()
        command = [sys.executable, "-m", "bursar", "memcached-proxy", str(policy), "--resource", "cache"]
        for backend in ports:
            command += ["--backend", f"127.0.0.1:{backend}"]
        command += ["--listen", f"127.0.0.1:{port}", "--listen", f"127.0.0.1:{acmes}=acme"]
        command += ["--metrics", f"127.0.0.1:{metrics}", "--wait", "0.02", *options]
        proxy = Process(command, folder / "proxy.log")
        held.callback(proxy.stop)
        await_port(metrics, proxy.child)
        found = Standing(port, acmes, metrics, ports)
        _await_tokens(found, proxy)
        yield found


def _run_memcached(held: ExitStack) -> int:
    child, port = start_memcached()
    held.callback(child.wait)
    held.callback(child.kill)
    await_port(port, child)
    return port


def _await_tokens(found: Standing, proxy: Process) -> None:
    """They come with the first period."""
    import socket

    until = time.monotonic() + 20
    with socket.create_connection(("127.0.0.1", found.port), 10) as link:
        answers = link.makefile("rb")
        while time.monotonic() < until:
            link.sendall(b"get acme:x\r\n")
            if answers.readline() == b"END\r\n":
                return
            time.sleep(0.05)
    raise proxy.fail("the proxy grants nothing")
