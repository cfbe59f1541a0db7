"""The storm's checker: reads what clients asked and were told, and decides what was kept.

It shares no code with the product and imports nothing of it: it reads the policies by itself
(`quantities`, `policies`), so that a misreading there is not repeated here. What it knows of bursar is
what the documentation promises.

**The parts.**

- `lines`, `reading`   a folder's lines as values; `history` holds them, sorted by what they are
- `grants`             what clients were told, one value for each resource of each answer, and what
                       came back of it
- `changes`            which texts and terms could have been in force between two moments; `applied`
                       finds them in what operators did
- `spans`, `troubles`  stretches of time: the machine stood, a fault was open, all was calm
- `windows`            the fullest stretches among many operations
- one module for each promise, each with `check(history) -> list[Breach]`: `answers`, `rates`,
  `reservations`, `pools`, `shares`, `fallbacks`, `quotas`, `claims`, `liveness`, `rights`,
  `metrics`; `holds` is a part of `quotas`
- `verdict`            all of them together, written to `verdict.json` and for people

**The rule.** A right history is never called wrong. Where something cannot be known from outside, what
speaks for the product is assumed: an answer that was lost may have been anything, a change without an
end may or may not have happened, and of two limits that could have been in force the higher counts.
"Told" is only what a client was told. Each module says what it leaves out, and why; `verdict.json` says
how much was judged, so that a check that had nothing to look at is seen.
"""

from bursar_lab.storm.checker.breaches import Breach, Place
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import HistoryError
from bursar_lab.storm.checker.reading import read_folder
from bursar_lab.storm.checker.verdict import PROMISES, Verdict, judge, judge_folder

__all__ = [
    "PROMISES",
    "Breach",
    "History",
    "HistoryError",
    "Place",
    "Verdict",
    "judge",
    "judge_folder",
    "read_folder",
]
