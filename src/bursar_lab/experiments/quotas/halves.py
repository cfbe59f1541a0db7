"""Two network namespaces with one wire between them, which can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess

from bursar.errors import BursarError

ADDRESSES = ("10.77.0.1", "10.77.0.2")


class Halves:
    """Processes of side 0 and side 1 reach each other until `cut`, and again after `heal`."""

    def __init__(self) -> None:
        self._names = tuple(f"bursar-{os.getpid()}-{side}" for side in range(2))
        self._wires = tuple(f"bq{os.getpid()}{'ab'[side]}" for side in range(2))

    def __enter__(self) -> Halves:
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iptables") is None:
            raise BursarError("a partition by network namespaces needs root, iproute2 and iptables")
        for name in self._names:
            _run("ip", "netns", "add", name)
        first, second = self._wires
        _run("ip", "link", "add", first, "type", "veth", "peer", "name", second)
        for name, wire, address in zip(self._names, self._wires, ADDRESSES, strict=True):
            _run("ip", "link", "set", wire, "netns", name)
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", wire)
            _run("ip", "-n", name, "link", "set", wire, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def inside(self, side: int, command: list[str]) -> list[str]:
        """The command that runs `command` on that side, as the same process."""
        return ["ip", "netns", "exec", self._names[side], *command]

    def cut(self) -> None:
        self._filter("-I")

    def heal(self) -> None:
        self._filter("-D")

    def _filter(self, what: str) -> None:
        """Packets vanish, as in a real partition: nobody is told that the other side is gone."""
        for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
            _run(*self.inside(0, ["iptables", "-w", what, chain, way, self._wires[0], "-j", "DROP"]))


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise BursarError(f"{' '.join(command)} failed: {done.stderr.strip()}")
