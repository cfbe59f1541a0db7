"""docs/claim.md does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "claim.md").read_text()


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(block("toml"))
    (tmp_path / "example.py").write_text(block("python"))
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == block("text"), done.stderr
