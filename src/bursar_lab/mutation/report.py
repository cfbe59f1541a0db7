"""What came of the mutants: a table by room, the survivors as diffs, and a file that keeps it all."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bursar.errors import UsageError
from bursar_lab.mutation.trials import Trial

BAR = 0.85
"""So many of the mutants are to be killed."""


class Report(msgspec.Struct):
    """`possible`: how many mutants each room has, of which these were drawn by the seed."""

    seed: int
    possible: dict[str, int]
    trials: list[Trial]

    @property
    def survivors(self) -> list[Trial]:
        return [trial for trial in self.trials if not trial.killed_by]

    @property
    def is_good(self) -> bool:
        return len(self.survivors) <= (1 - BAR) * len(self.trials)


def write_report(report: Report, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read_report(path: Path) -> Report:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} is not what `bursar mutate --out` wrote: {error}") from error


def write_table(report: Report) -> list[str]:
    """As Markdown."""
    lines = ["| room | mutants there are | tried | killed | of these by time | survived | score |"]
    lines.append("|" + "---|" * 7)
    for name, possible in report.possible.items():
        trials = [trial for trial in report.trials if trial.room == name]
        if trials:
            lines.append(_write_row(name, possible, trials))
    lines.append(_write_row("all", sum(report.possible.values()), report.trials))
    return lines


def _write_row(name: str, possible: int, trials: Sequence[Trial]) -> str:
    killed = sum(bool(trial.killed_by) for trial in trials)
    hung = sum(trial.killed_by == "time" for trial in trials)
    score = f"{100 * killed / len(trials):.0f} %" if trials else "-"
    cells = (possible, len(trials), killed, hung, len(trials) - killed, score)
    return f"| {name} | {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in cells)} |"


def write_survivors(trials: Sequence[Trial], read: Callable[[str], str]) -> list[str]:
    """Each as a diff of the file, which `read` gives."""
    lines: list[str] = []
    for trial in trials:
        mutant = trial.mutant
        before = read(mutant.path)
        after = mutant.plant(before)
        diff = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
        lines += [f"{mutant.path}:{mutant.line}: {mutant.what}", *list(diff)[3:], ""]
    return lines


def sum_up(report: Report, read: Callable[[str], str]) -> list[str]:
    return [*write_survivors(report.survivors, read), *write_table(report)]
