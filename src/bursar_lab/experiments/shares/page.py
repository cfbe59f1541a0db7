"""`python -m bursar_lab.experiments.shares.page DIRECTORY`: the results page out of the results.

Reads the JSON files that the experiments wrote into a directory, and writes `shares.md` beside them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEAD = """# share: the paper's experiments, run again

The numbers and figures here are written by the commands above each section, on one machine with two
cores. The storage target is a real server process with real files, paced to a printed rate;
"simulated" is the same filter and allocation in virtual time. *No BW* serves first come, first
served; *Static BW* holds each tenant to its weight's part; *as printed* is bursar with the paper's own
rules (tokens by the distribution factor alone, threads that rather idle than go ahead of time). The
paper prints its results as figures without numbers; what it says of them is quoted in substance.
"""

SECTIONS = {
    "shares-allocation": (
        "IV-D: allocation by priority",
        "The paper: bandwidth follows priority, the rest takes over when a tenant finishes, and the total "
        "is the highest of the three.",
        ("shares-figure-3.png", "shares-figure-4.png"),
    ),
    "shares-redistribution": (
        "IV-E: redistribution",
        "The paper: the bursty tenants of high priority gain on both baselines; the continuous one loses "
        "less than under Static BW; some tokens stay unused, because nobody knows what comes next. Here "
        "idle threads take what is due next, so they do not.",
        ("shares-figure-5.png", "shares-figure-6.png"),
    ),
    "shares-recompensation": (
        "IV-F: re-compensation",
        "The paper: job 3 lends for its first 80 s and is paid back once its continuous I/O starts; the "
        "total is on a par with No BW, Static BW is well below.",
        ("shares-figure-7.png", "shares-figure-8.png"),
    ),
    "shares-overhead": (
        "IV-G: overhead",
        "The paper: less than 30 us a tenant, linear; about 25 ms for a whole interval.",
        ("shares-overhead.png",),
    ),
    "shares-frequency": (
        "IV-H: allocation frequency",
        "The paper: the shorter the interval, the better the throughput. With its rules that is so; an "
        "eager filter keeps the device busy at any interval, and a short one shortens the bursts.",
        ("shares-figure-9.png",),
    ),
    "shares-blkio": (
        "The kernel's I/O controller",
        "Two groups of `fio --direct=1` on a real disk, weights 1:3, cgroup v1.",
        (),
    ),
    "shares-payback": (
        "The kernel's I/O controller: lent and paid back",
        "Two groups of the same weight on a real disk of 80 MiB/s, one greedy; the other reads a tenth, and "
        "then all that it can get.",
        ("shares-payback.png",),
    ),
    "shares-lending": (
        "The kernel's I/O controller: lending, and a capacity that was told too high",
        "A greedy `fio --direct=1` beside one that reads at a steady rate, told 200 MiB/s; then two greedy "
        "ones on a disk that was told to do far more than it can.",
        (),
    ),
}


def write_page(folder: Path) -> Path:
    parts = [HEAD]
    for name, (title, said, figures) in SECTIONS.items():
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        table = json.loads(path.read_text())["table"]
        parts.append(f"## {title}\n\n`bursar experiment {name} --out {folder}`\n\n{said}\n")
        parts.append(f"```text\n{table}\n```\n")
        parts += [f"![{title}]({figure})\n" for figure in figures if (folder / figure).exists()]
    page = folder / "shares.md"
    page.write_text("\n".join(parts))
    return page


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bursar_lab.experiments.shares.page DIRECTORY")
    print(write_page(Path(sys.argv[1])))
