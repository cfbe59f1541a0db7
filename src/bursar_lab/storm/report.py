"""What a storm tells at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bursar_lab.storm.checker.verdict import Verdict, judge_folder, write_report
from bursar_lab.storm.run import tidy

Tell = Callable[[str], None]


def print_end(folder: Path, missed: list[str], tell: Tell) -> bool:
    """Whether it was judged, and all was kept."""
    for what in missed:
        tell(f"BREACH: {what}")
    verdict = judge_folder(folder)
    for line in write_report(verdict):
        tell(line)
    kept = verdict.is_right and not missed
    if kept:
        tidy(folder)
    elif verdict.breaches:
        tell(f"see {folder}; made smaller by: bursar storm shrink {folder}")
    return kept


def judge_all(folder: Path, missed: list[str]) -> list[tuple[str, str]]:
    """What is wrong with a run: the promise and a sentence, the first that could be seen first."""
    broken = [(breach.promise, breach.sentence) for breach in judge_folder(folder).breaches]
    return [*(("liveness", what) for what in missed), *broken]


def list_promises(verdict: Verdict) -> list[str]:
    """Those that were broken, each once."""
    return sorted({breach.promise for breach in verdict.breaches})
