"""Another build of bursar, made from a commit, in a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from bursar.errors import BursarError

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 300


def build(revision: str, folder: Path) -> str:
    """The Python that has bursar as it was in that commit. Its other packages are those of this one."""
    source, wheels, venv = folder / "source", folder / "wheels", folder / "venv"
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    _run("git", "-C", str(ROOT), "archive", "-o", str(archive), revision)
    _run("tar", "-xf", str(archive), "-C", str(source))
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=source)
    [wheel] = wheels.glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", str(venv))
    [packages] = (venv / "lib").glob("python*/site-packages")
    # Names in this folder can be imported; the path files in it, one of which may name the source of
    # bursar, are not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run(sys.executable, "-m", "zipfile", "-e", str(wheel), str(packages))
    return str(venv / "bin" / "python")


def _run(*command: str, cwd: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise BursarError(f"{' '.join(command)}: {done.stderr or done.stdout}")
