"""The example of docs/pool.md runs as it is printed there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "pool.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(blocks("toml")[0])
    (tmp_path / "example.py").write_text(blocks("python")[0])
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "granted 100" in done.stdout and "one for globex" in done.stdout
    assert "acme has a reservation of 50k/s" in done.stdout
