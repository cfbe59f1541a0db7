"""What is installed: the wheel as built, in a virtual environment of its own, whose other packages
are those of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WHEEL_MAX_BYTES = 1_300_000
TIMEOUT_S = 60

POLICY = """
[daemon]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
state = "state"
[resource.api]
kind = "rate"
servers = { a = "1k/s" }
[resource.api.tenant]
acme = { reservation = "100/s", limit = "500/s" }
[resource.disk]
kind = "share"
capacity = "1k/s"
[resource.disk.tenant]
acme = { weight = 3 }
[resource.records]
kind = "pool"
capacity = "1k/s"
[resource.records.tenant]
acme = { reservation = "100/s" }
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 100 }
[resource.names]
kind = "claim"
"""
KINDS = {"api": "rate", "disk": "share", "records": "pool", "llm": "quota", "names": "claim"}

EMBEDDED = """
import bursar
with bursar.sync.connect("policy.toml") as b:
    for name in ("api", "disk", "records", "llm"):
        with b.resource(name).acquire("acme", wait=30):
            print(name)
    with b.claim("vm-7:E", tenant="acme", wait=30) as grant:
        print("names", sorted(grant.fence))
"""

CLIENT = """
import sys, bursar
with bursar.sync.connect(sys.argv[1]) as b:
    for name in ("api", "disk", "records", "llm"):
        with b.resource(name).acquire("acme", wait=30):
            print(name)
"""

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({absent}))
from bursar.cli import main
main({arguments})
"""
"""The command line where these packages are not installed."""

USER = """
import bursar
import bursar.sync

reveal_type(bursar.connect)
reveal_type(bursar.sync.connect)

async def main() -> None:
    async with await bursar.connect("policy.toml") as b:
        async with b.resource("llm").acquire("acme", 3) as grant:
            reveal_type(grant)
        b.resource(7)
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment, and the folder that its programs run in."""

    bin: Path
    folder: Path

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def clean_environment() -> dict[str, str]:
    """Without what would let the source be imported instead."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run_here(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=True, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_here("hatchling", "build", "-t", "wheel", "-d", str(folder))
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    run_here("venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    # Names in this folder can be imported; the path files in it, one of which may name the source of
    # bursar, are not read.
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ("install", "-q", "--no-deps", "--no-index", "--ignore-installed", str(wheel))
    run_here("pip", "--python", str(python), *install)
    (folder / "policy.toml").write_text(POLICY)
    return Installed(python.parent, folder)


def test_the_wheel_has_types_and_licence_and_not_the_lab(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    folders = {name.partition("/")[0] for name in names}
    assert {folder.partition("-")[0] for folder in folders} == {"bursar"}
    assert {"bursar/py.typed", "bursar/dashboard/style.css"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size:,} bytes, {len(names)} files")
    assert size < WHEEL_MAX_BYTES


def test_the_command_line_works_without_the_lab(installed: Installed) -> None:
    found = installed.run("python", "-c", "import bursar; print(bursar.__file__)")
    assert Path(found.strip()).is_relative_to(installed.folder)
    listed = installed.run("bursar", "--help")
    assert "serve" in listed and "simulate" in listed
    assert "experiment" not in listed and "bench" not in listed
    assert "lease" not in installed.run("bursar", "sim").split()
    assert installed.run("bursar", "plan", "policy.toml").startswith("api: every reservation can be met")


@pytest.mark.parametrize(
    ("absent", "arguments"),
    [
        (["numpy", "numba", "scipy"], ["check", "policy.toml"]),
        (["matplotlib", "pandas", "scipy"], ["plan", "policy.toml"]),
        (["matplotlib", "pandas", "scipy"], ["simulate", "policy.toml", "--no-one-more"]),
    ],
)
def test_a_command_needs_no_more_than_its_extra(
    absent: list[str], arguments: list[str], installed: Installed
) -> None:
    program = WITHOUT.format(absent=absent, arguments=arguments)
    assert installed.run("python", "-c", program)


def test_every_kind_is_granted_in_a_program(installed: Installed) -> None:
    granted = installed.run("python", "-c", EMBEDDED).splitlines()
    assert granted == ["api", "disk", "records", "llm", "names ['vm-7']"]


def test_every_kind_is_served_by_a_daemon(installed: Installed) -> None:
    with serve(installed) as ready:
        assert ready["resources"] == ",".join(KINDS)
        wait_until_ready(f"http://{ready['http']}/ready")
        granted = installed.run("python", "-c", CLIENT, f"bursar://{ready['address']}").split()
        assert granted == ["api", "disk", "records", "llm"]


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            waiting = error.read().decode()
        assert time.monotonic() < deadline, waiting
        time.sleep(0.1)


@contextmanager
def serve(installed: Installed) -> Iterator[dict[str, Any]]:
    """What the daemon said when it was ready."""
    command = [str(installed.bin / "bursar"), "serve", "policy.toml", "--log", "json"]
    with subprocess.Popen(
        command, cwd=installed.folder, env=clean_environment(), stderr=subprocess.PIPE, text=True
    ) as daemon:
        try:
            assert daemon.stderr is not None
            events = [json.loads(line) for line in _read_until_ready(daemon.stderr)]
            yield events[-1]
        finally:
            daemon.terminate()
            daemon.communicate(timeout=TIMEOUT_S)


def _read_until_ready(lines: Any) -> Iterator[str]:
    for line in lines:
        yield line
        if "daemon.ready" in line:
            return
    raise AssertionError("the daemon ended before it was ready")


def test_mypy_sees_the_types_in_a_users_project(installed: Installed) -> None:
    (installed.folder / "user.py").write_text(USER)
    options = ("--strict", "--cache-dir", str(installed.folder / "types"))
    python = ("--python-executable", str(installed.bin / "python"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *python, "user.py"],
        cwd=installed.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    told = done.stdout.splitlines()
    assert "Coroutine[Any, Any, bursar." in told[0] and told[0].endswith('Bursar]"'), done.stdout
    assert told[1].endswith('-> bursar.sync.Bursar"')
    assert "Grant" in told[2]
    assert '"resource" of "Bursar" has incompatible type "int"' in told[3]
    assert told[4].startswith("Found 1 error")
