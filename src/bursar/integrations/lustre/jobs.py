"""How many nodes each job runs on: its weight is its terms' as many times, as the paper has it (III-C).

Asked of Slurm (`squeue`), of PBS (`qstat`), of a file that a prologue writes, or of any command; lines of a
job id, as Lustre's job statistics have it, and a number of nodes."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bursar.decoding import DECODE_ERRORS, is_number
from bursar.errors import BursarError, FormatError

SQUEUE = ("squeue", "--noheader", "--states=RUNNING", "--format=%A %D")
QSTAT = ("qstat", "-f", "-F", "json")
TIMEOUT_S = 10.0
OUTPUT_MAX_BYTES = 16 * 1024 * 1024
NODES_MAX = 1_000_000
LOOK_INTERVALS = 100
"""How often it is asked: a job's nodes do not change while it runs."""


class JobNodes:
    """Keeps what was said last: a scheduler that does not answer changes nothing."""

    def __init__(self, source: str) -> None:
        """`source` as in the policy: squeue, qstat, file:///PATH, command:PROGRAM ARGUMENTS."""
        self._source = source
        self._nodes: Mapping[str, int] = {}
        self._looked = LOOK_INTERVALS

    async def look(self) -> Mapping[str, int]:
        """By job. Raises BursarError when it could not be learnt."""
        self._looked += 1
        if self._looked > LOOK_INTERVALS:
            self._looked = 0
            self._nodes = await self._ask()
        return self._nodes

    @property
    def known(self) -> Mapping[str, int]:
        return self._nodes

    async def _ask(self) -> Mapping[str, int]:
        kind, _, rest = self._source.partition(":")
        if kind == "file":
            return read_lines(_read(Path(rest.removeprefix("//"))))
        command, read = _COMMANDS.get(kind, (tuple(shlex.split(rest)), read_lines))
        return read(await _run(command))


def read_lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        job, _, nodes = line.strip().rpartition(" ")
        found[job.strip()] = _count(nodes if job else "", f"line {number}")
    return found


def read_qstat(text: str) -> dict[str, int]:
    """PBS's JSON: the running ones, by the number of their id."""
    try:
        table = json.loads(text)
    except DECODE_ERRORS as error:
        raise FormatError(f"qstat did not print JSON ({error}); is this PBS 19 or later?") from error
    try:
        jobs = table.get("Jobs", {})
        running = {id: job for id, job in jobs.items() if job.get("job_state") == "R"}
        return {
            id.partition(".")[0]: _count(str(job["Resource_List"]["nodect"]), id)
            for id, job in running.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise FormatError(f"qstat printed other JSON than of jobs: {error!r}") from error


_COMMANDS: Mapping[str, tuple[Sequence[str], Callable[[str], dict[str, int]]]] = {
    "squeue": (SQUEUE, read_lines),
    "qstat": (QSTAT, read_qstat),
}


def _count(text: str, where: str) -> int:
    if not is_number(text) or not 1 <= int(text) <= NODES_MAX:
        raise FormatError(f"{where}: {text[:40]!r} is no number of nodes: write 500 16")
    return int(text)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _decode(file.read(OUTPUT_MAX_BYTES + 1), str(path))
    except OSError as error:
        raise BursarError(f"{path} cannot be read: {error.strerror}; which job has which nodes?") from error


def _decode(output: bytes, where: str) -> str:
    if len(output) > OUTPUT_MAX_BYTES:
        raise FormatError(f"{where} says more than {OUTPUT_MAX_BYTES} bytes of jobs; have it print fewer")
    return output.decode("utf-8", "replace")


async def _run(command: Sequence[str]) -> str:
    """Without a shell, and bounded in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise BursarError(f"{command[0]} cannot be run: {error.strerror}; is it in the path?") from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise BursarError(f"{command[0]} took more than {TIMEOUT_S:g} s") from error
    if process.returncode:
        said = errors.decode("utf-8", "replace").strip()[:200]
        raise BursarError(f"{command[0]} failed ({process.returncode}): {said}")
    return _decode(output, command[0])
