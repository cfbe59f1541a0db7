"""A package that is not installed is named, with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bursar.cli.packages import EXTRAS, explain_missing

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
POLICY = """
[resource.api]
kind = "rate"
servers = { service = "400/s" }
[resource.api.tenant]
acme = { limit = "240/s" }
"""


def test_every_extra_that_is_advised_exists() -> None:
    assert {*EXTRAS, "all"} <= set(PROJECT["optional-dependencies"])


def test_a_package_of_no_extra_is_in_all() -> None:
    error = explain_missing(ModuleNotFoundError(name="somebody.elses"))
    assert str(error) == "this needs the package somebody: pip install 'bursar[all]'"


def test_a_missing_module_of_bursar_is_a_fault_not_advice() -> None:
    with pytest.raises(ModuleNotFoundError):
        explain_missing(ModuleNotFoundError(name="bursar.nowhere"))


def test_a_command_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    without = "import sys; sys.modules['grpc'] = None; from bursar.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", without, "envoy", "serve", "policy.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "bursar: this needs the package grpc: pip install 'bursar[envoy]'\n"
