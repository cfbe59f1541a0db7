"""A daemon in this process, for the parsers that stand before its resources: frames, HTTP, Envoy.

It has one resource of every kind and keeps its state in a folder of its own; what it logs as a mistake of
ours (`logs.failure`) is a fault of the input that brought it about.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bursar.policy import parse
from bursar.runtime import logs
from bursar.runtime.daemon import Daemon
from bursar_lab.fuzzing.pieces import run

POLICY = """
[resource.cache]
kind = "rate"
servers = {{ bursar = "1M/s" }}
without_bursar = "keep"
tenant = {{ acme = {{ limit = "1k/s" }}, free = {{}}, "*" = {{ limit = "10/s" }} }}
max_tenants = 1000
[resource.disk]
kind = "share"
capacity = "1M/s"
tenant = {{ acme = {{ weight = 2 }}, "x/*" = {{ weight = 1 }} }}
max_tenants = 1000
[resource.llm]
kind = "quota"
window = "month"
over = "take"
tenant = {{ acme = {{ limit = 1000000000 }}, globex = {{ limit = 10 }} }}
[resource.vm]
kind = "claim"
dead_holder = "fail"
tenant = {{ "*" = {{ weight = 1 }} }}
[descriptor]
login = {{ match = ["path=/login"], resource = "cache", tenant = "login" }}
any = {{ match = ["path=*"], resource = "cache", tenant = "path/{{path}}", domain = "web" }}
[daemon]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
state = "{state}"
"""


@cache
def open_daemon() -> Daemon:
    """Opened once a process."""
    folder = tempfile.mkdtemp(prefix="bursar-fuzz-")
    return run(Daemon.open(parse(POLICY.format(state=f"{folder}/state"))))


def close_daemon() -> None:
    if open_daemon.cache_info().currsize:
        daemon = open_daemon()
        run(daemon.close())
        shutil.rmtree(Path(daemon.host.policy.daemon.state).parent)
        open_daemon.cache_clear()


@contextmanager
def watch_mistakes() -> Iterator[None]:
    """What is logged as a mistake of ours meanwhile is raised at the end."""
    mistakes: list[BaseException] = []

    def note(event: str, error: BaseException, /, **fields: Any) -> None:
        mistakes.append(error)

    before, logs.failure = logs.failure, note
    try:
        yield
    finally:
        logs.failure = before
    if mistakes:
        raise mistakes[0]
