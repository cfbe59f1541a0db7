"""What a storm tells at its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bursar_lab.storm.run import count_answers, judge, tidy

Tell = Callable[[str], None]


def print_end(folder: Path, missed: list[str], tell: Tell) -> bool:
    """Whether all was kept."""
    for what in missed:
        tell(f"BREACH: {what}")
    report = judge(folder)
    if report is None:
        report = [
            f"{op}: " + ", ".join(f"{count} {answer}" for answer, count in answers.items())
            for op, answers in count_answers(folder).items()
        ]
        report.append("not judged: the checker is not there")
    for line in report:
        tell(line)
    kept = not read_breaches(folder) and not missed
    if kept:
        tidy(folder)
    else:
        tell(f"see {folder}; made smaller by: bursar storm shrink {folder}")
    return kept


def judge_all(folder: Path, missed: list[str]) -> list[tuple[str, str]]:
    """What is wrong with a run: the promise and a sentence, the first that could be seen first."""
    judge(folder)
    found = json.loads((folder / "verdict.json").read_text()).get("breaches", [])
    return [
        *(("liveness", what) for what in missed),
        *((str(breach["promise"]), str(breach["sentence"])) for breach in found),
    ]


def read_breaches(folder: Path) -> list[str]:
    """The promises that were broken, as the verdict names them, each once."""
    path = folder / "verdict.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text()).get("breaches", [])
    return sorted(
        {str(breach.get("promise", breach)) if isinstance(breach, dict) else str(breach) for breach in found}
    )
