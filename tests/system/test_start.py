"""What happens to a daemon while it starts, and what it tells of who leads."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from .processes import Process

POLICY = """
[daemon]
listen = "127.0.0.1:0"
http = "off"
state = "{folder}/state"
[resource.cache]
kind = "rate"
servers = {{ bursar = "1k/s" }}
[resource.cache.tenant]
acme = {{ limit = "100/s" }}
"""


def serve(folder: Path) -> Process:
    path = folder / "policy.toml"
    path.write_text(POLICY.format(folder=folder))
    return Process([sys.executable, "-m", "bursar", "serve", str(path), "--log", "json"])


def test_a_hangup_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        daemon.wait_for("node.up", 60)
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("daemon.ready", 60)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0


def test_who_leads_is_told_at_level_info(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        told = daemon.wait_for("rate.leading", 60)
        assert (told["level"], told["resource"], told["node"]) == ("info", "cache", "bursar")
