"""Prometheus' own judgement of metrics."""

from __future__ import annotations

import subprocess


def check_with_promtool(text: str) -> None:
    """Fails with what promtool has to say, if that is anything."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
