"""libmemcached's conformance tests, straight and through the proxy. In one run they build on each other:
where `flush_all` is refused, what an earlier one left is still there, so what fails is tried once more alone.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from bursar.errors import BursarError
from bursar_lab.experiments.memcached.standing import stand

REFUSED = {
    "ascii flush": "flush_all is everybody's",
    "ascii flush noreply": "flush_all is everybody's",
    "ascii verbosity": "verbosity is the server's",
    "ascii stat": "stats are everybody's",
}
"""What fails by design, and why."""

_LINE = re.compile(r"^(ascii [a-z ]+?)\s{2,}", re.MULTILINE)


def _run(port: int, test: str | None = None) -> str:
    command = ["memccapable", "-a", "-h", "127.0.0.1", "-p", str(port), *(["-T", test] if test else [])]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


def _has_passed(told: str, test: str) -> bool:
    return re.search(rf"^{test}\s+\[pass\]", told, re.MULTILINE) is not None


def _passes(port: int, test: str) -> bool:
    """Alone, on servers of which nothing is known."""
    return _has_passed(_run(port, test), test)


def _flush(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.sendall(b"flush_all\r\n")
        assert link.recv(64) == b"OK\r\n", "a memcached of our own"


def conformance(out: Path, quick: bool) -> dict[str, Any]:
    """Only what is refused by design may fail. A test passes that does so alone or in a run of all; "ascii
    quit" never does alone, on any server."""
    if shutil.which("memccapable") is None:
        raise BursarError("this needs memccapable: apt install libmemcached-tools")
    table = []
    with stand() as found:
        server = found.servers[0]
        straight = _run(server)
        _flush(server)
        through = _run(found.acmes)
        for test in (line.strip() for line in _LINE.findall(straight)):
            _flush(server)
            passed = _has_passed(through, test) or _passes(found.acmes, test)
            why = "" if passed else REFUSED.get(test, "a mistake")
            known = _has_passed(straight, test)
            table.append({"test": test, "memcached": known, "through the proxy": passed, "why": why})
    wrong = [str(row["test"]) for row in table if row["why"] == "a mistake" and row["memcached"]]
    bars = [
        {
            "bar": f"of {len(table)} tests only the {len(REFUSED)} that are refused by design fail",
            "found": ", ".join(wrong) or "so it is",
            "met": bool(table) and not wrong,
        }
    ]
    return {"table": table, "bars": bars, "ok": bars[0]["met"]}
