"""The store of a system test: SQLite, or the engine that BURSAR_TEST_STORE names.

BURSAR_TEST_STORE=etcd make test ARGS="tests/system"        # or postgresql, zookeeper
"""

from __future__ import annotations

import atexit
import os
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from bursar_lab.etcd_server import EtcdServers
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.zookeeper_server import ZookeeperServers

ENGINE = os.environ.get("BURSAR_TEST_STORE", "sqlite")


@cache
def start_servers() -> Any:
    """One for all tests of this process."""
    made: Any = {"postgresql": PostgresqlServers, "etcd": EtcdServers, "zookeeper": ZookeeperServers}[ENGINE](
        1
    )
    servers = made.__enter__()
    atexit.register(servers.stop)
    return servers


def store_url(folder: Path) -> str:
    """A store for who works in this folder."""
    if ENGINE == "sqlite":
        return f"sqlite://{folder}/store.db"
    name = f"t{zlib.crc32(str(folder).encode())}"
    return str(start_servers().url(name if ENGINE == "postgresql" else f"/{name}"))
