"""Ports for servers that are started beside others."""

from __future__ import annotations

import socket


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
