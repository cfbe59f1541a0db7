"""Where a storm's processes are: on loopback, or each in a network namespace that the run made.

A place gives every member (a node, a client, an engine's server, the operator) an address, turns a
command into one that runs there, and opens connections as if from there.
"""

from __future__ import annotations

import socket
from typing import Protocol

from bursar.demo.ports import find_free_port
from bursar_lab.storm.certificates import Files

OPERATOR = "operator"


class Place(Protocol):
    tls: bool

    def host(self, member: str) -> str: ...

    def address(self, node: str) -> str:
        """Where a node takes clients and peers."""

    def http(self, node: str) -> str:
        """Where a node serves HTTP."""

    def certificate(self, member: str) -> Files | None: ...

    def command(self, member: str, command: list[str]) -> list[str]: ...

    def dial(self, member: str, host: str, port: int, timeout_s: float) -> socket.socket: ...

    def cut(self, member: str, other: str) -> None:
        """What `other` sends no longer reaches `member`."""

    def lose(self, member: str, part: float) -> None: ...

    def slow(self, member: str) -> None: ...

    def heal(self, member: str) -> None: ...

    def close(self) -> None: ...


class LoopbackPlace:
    """Everybody on 127.0.0.1, with ports of their own; the network cannot be harmed here."""

    tls = False

    def __init__(self, nodes: list[str]) -> None:
        self._ports = {node: (find_free_port(), find_free_port()) for node in nodes}

    def host(self, member: str) -> str:
        return "127.0.0.1"

    def address(self, node: str) -> str:
        return f"127.0.0.1:{self._ports[node][0]}"

    def http(self, node: str) -> str:
        return f"127.0.0.1:{self._ports[node][1]}"

    def certificate(self, member: str) -> Files | None:
        return None

    def command(self, member: str, command: list[str]) -> list[str]:
        return command

    def dial(self, member: str, host: str, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection((host, port), timeout_s)

    def cut(self, member: str, other: str) -> None:
        raise NotImplementedError("plans for loopback have no such fault")

    def lose(self, member: str, part: float) -> None:
        raise NotImplementedError("plans for loopback have no such fault")

    def slow(self, member: str) -> None:
        raise NotImplementedError("plans for loopback have no such fault")

    def heal(self, member: str) -> None:
        """Nothing was done to it."""

    def close(self) -> None:
        """Nothing was made."""
