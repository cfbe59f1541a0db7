"""The pages: their examples run, their links lead somewhere, their tables say what the code says.

A block after `<!-- runnable -->` is run; one after `<!-- file: NAME -->` is written first. All
blocks of a page share one folder and run in order; a command that ends in `&` goes on behind
the next ones until `kill %1` (the first such command) or the end of the page; `kill -9 %1` ends it
for good. What a page keeps in /tmp/shop is kept in that folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bursar.cli import COMMANDS
from bursar.cli.version import LABELS
from bursar.demo.ports import find_free_port

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"<!-- (runnable|file: \S+) -->\n```(\w+)\n(.*?)^```$", re.S | re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND_TIMEOUT_S = 60
READY_TIMEOUT_S = 30
READY = ("daemon.ready", "Uvicorn running", " works on ")
HOME = "/tmp/shop"


@dataclass(frozen=True)
class Block:
    mark: str
    language: str
    text: str


def read_blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


RUNNABLE = [page for page in PAGES if any(block.mark == "runnable" for block in read_blocks(page))]


PORTS = ("7070", "7071", "7072", "7073", "9464", "8000")


class Reader:
    """Does what a page says, in a folder of its own, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: str(find_free_port()) for port in PORTS}
        self.environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.behind: list[subprocess.Popen[str]] = []

    def do(self, block: Block) -> None:
        text = self._move_ports(block.text)
        if block.mark.startswith("file: "):
            target = self.folder / block.mark.removeprefix("file: ")
            target.write_text(self._add_daemon(text) if target.suffix == ".toml" else text)
        elif block.language == "python":
            self._run([sys.executable, "-c", text])
        else:
            assert block.language == "console", f"how is a {block.language} block run?"
            self._follow(text)

    def _move_ports(self, text: str) -> str:
        """The default ports may be in use where the tests run."""
        text = text.replace(HOME, str(self.folder))
        for port, free in self.ports.items():
            text = text.replace(port, free)
        return re.sub(
            r"^(\$ bursar why .*)$", rf"\1 --at bursar://127.0.0.1:{self.ports['7070']}", text, flags=re.M
        )

    def _add_daemon(self, text: str) -> str:
        listen, http = (f'"127.0.0.1:{self.ports[port]}"' for port in ("7070", "9464"))
        keys = f"[daemon]\nlisten = {listen}\nhttp = {http}\n"
        return text.replace("[daemon]\n", keys) if "[daemon]" in text else f"{text}\n{keys}"

    def _follow(self, text: str) -> None:
        """Each `$ command`, whose output must be what follows it, if anything does."""
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            command = command.partition("  #")[0].strip()
            if command.endswith("&"):
                self._start(command.removesuffix("&"))
                continue
            if (kill := re.fullmatch(r"kill (-9 )?%(\d+)", command)) is not None:
                self._end(int(kill[2]) - 1, for_good=kill[1] is not None)
                continue
            printed = self._run(["bash", "-c", command])
            assert not expected.strip() or printed.strip() == expected.strip()

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            timeout=COMMAND_TIMEOUT_S,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _start(self, command: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.behind.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if any(word in line for word in READY):
                return
        raise AssertionError(f"{command} ended before it was ready:\n{''.join(said)}")

    def _end(self, number: int, *, for_good: bool = False) -> None:
        process = self.behind[number]
        (process.kill if for_good else process.terminate)()
        self.behind[number].communicate(timeout=10)

    def close(self) -> None:
        for number, process in enumerate(self.behind):
            if process.returncode is None:
                self._end(number)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, reader: Reader) -> None:
    if "$ curl" in page.read_text() and shutil.which("curl") is None:
        pytest.skip("needs curl, which is not installed here (see `make servers`)")
    for block in read_blocks(page):
        reader.do(block)


def test_some_pages_have_examples() -> None:
    assert {page.name for page in RUNNABLE} >= {"README.md", "http.md", "start.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_and_pictures_resolve(page: Path) -> None:
    text = re.sub(r"```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


def test_the_readme_labels_each_kind_as_the_version_does() -> None:
    rows = re.findall(
        r"^\| \"[^|]*\| \[`(\w+)`\]\(docs/\1\.md\) \| (\w+) \|$", (ROOT / "README.md").read_text(), flags=re.M
    )
    assert dict(rows) == LABELS


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text().partition("## Commands")[2]
    names = {name.replace("_", "-") for name in COMMANDS}
    assert sorted(name for name in names if not re.search(rf"`(bursar )?{name}\b", text)) == []


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "README.md").read_text().partition("| extra | for |")[2].partition("\n\n")[0]
    first_cells = " ".join(re.findall(r"^\| ([^|]*)\|", table, flags=re.M))
    assert set(re.findall(r"`(\w+)`", first_cells)) == set(extras) - {"docs", "dev", "lock"}


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs/images").glob("*.png")}
    assert sizes and all(size < 200_000 for size in sizes.values()), sizes
