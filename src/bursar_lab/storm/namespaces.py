"""A network of the run's own: a namespace for every member, joined by a bridge in one more.

Nothing of it is in the machine's own network. What harms it is done inside the members' namespaces:
iptables drops what comes from somebody (cut, one way), or a part of what comes (loss); the tbf qdisc
makes a line slow. All of it goes when the namespaces are deleted.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from bursar_lab.storm.certificates import Authority, Files

NODE_PORT, HTTP_PORT = 7070, 9464
CLONE_NEWNET = 0x40000000
NEEDED = ("ip", "iptables", "tc", "openssl")
LIVES_MAX = 9
_numbers = itertools.count()
"""Of the networks that this process made: each has names of its own."""


def find_hindrance() -> str:
    """Why there can be no namespaces here; "" if there can."""
    if os.geteuid() != 0:
        return "namespaces take root"
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    name = f"bst{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"namespaces cannot be made: {made.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return ""


class NamespacePlace:
    tls = True

    def __init__(self, nodes: list[str], others: list[str], folder: Path) -> None:
        self._prefix = f"bs{os.getpid()}-{next(_numbers)}-"
        self._made: list[str] = []
        self._hosts = {name: f"10.77.0.{number}" for number, name in enumerate([*nodes, *others], start=2)}
        try:
            self._make_hub()
            for number, member in enumerate(self._hosts):
                self._make_member(number, member)
            authority = Authority(folder)
            self._files = {
                member: authority.issue(member, [f"{member}-{life}" for life in range(2, LIVES_MAX)], host)
                for member, host in self._hosts.items()
            }
        except BaseException:
            self.close()
            raise

    def _name(self, member: str) -> str:
        return self._prefix + member

    def _add(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _make_hub(self) -> None:
        hub = self._name("hub")
        self._add(hub)
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "br0", "up")

    def _make_member(self, number: int, member: str) -> None:
        name, hub, end = self._name(member), self._name("hub"), f"m{number}"
        self._add(name)
        _run("ip", "link", "add", end, "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "-n", hub, "link", "set", end, "master", "br0", "up")
        _run("ip", "-n", name, "addr", "add", f"{self._hosts[member]}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")

    def host(self, member: str) -> str:
        return self._hosts[member]

    def address(self, node: str) -> str:
        return f"{self._hosts[node]}:{NODE_PORT}"

    def http(self, node: str) -> str:
        return f"{self._hosts[node]}:{HTTP_PORT}"

    def certificate(self, member: str) -> Files | None:
        return self._files[member]

    def command(self, member: str, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._name(member), *command]

    def dial(self, member: str, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection made by a thread that goes there for it; it stays there when the thread is gone."""
        found: list[socket.socket | OSError] = []

        def go() -> None:
            try:
                _enter(self._name(member))
                found.append(socket.create_connection((host, port), timeout_s))
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    # -- harm

    def cut(self, member: str, other: str) -> None:
        self._filter(member, "-A", "INPUT", "-s", self._hosts[other], "-j", "DROP")

    def lose(self, member: str, part: float) -> None:
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{part:.3f}")
        self._filter(member, "-A", "INPUT", "-i", "eth0", *chance, "-j", "DROP")

    def slow(self, member: str) -> None:
        shape = ("tbf", "rate", "256kbit", "burst", "4kb", "latency", "300ms")
        _run("ip", "netns", "exec", self._name(member), "tc", "qdisc", "add", "dev", "eth0", "root", *shape)

    def heal(self, member: str) -> None:
        self._filter(member, "-F", "INPUT")
        slow = ["ip", "netns", "exec", self._name(member), "tc", "qdisc", "del", "dev", "eth0", "root"]
        subprocess.run(slow, capture_output=True)  # there is none to delete, most of the time

    def _filter(self, member: str, *rule: str) -> None:
        _run("ip", "netns", "exec", self._name(member), "iptables", "-w", *rule)

    def close(self) -> None:
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self._made.clear()


def _enter(name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")
    finally:
        os.close(handle)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
