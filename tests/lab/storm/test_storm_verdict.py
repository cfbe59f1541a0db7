"""The verdict as a whole: folders, reports, standstills, the witness, and what the checker may import."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from storm_tale import Tale
from typer.testing import CliRunner

from bursar.cli import make_app
from bursar_lab.storm import witness
from bursar_lab.storm.checker.lines import HistoryError
from bursar_lab.storm.checker.reading import read_folder
from bursar_lab.storm.checker.verdict import PROMISES, judge, judge_folder, write_report
from bursar_lab.storm.report import print_end

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/storm"
CHECKER = ROOT / "src/bursar_lab/storm/checker"
POLICY = '[resource.llm]\nkind = "quota"\n[resource.llm.tenant]\nacme = { limit = 10 }\n'


def copy_golden(tmp_path: Path) -> Path:
    folder = tmp_path / "storm"
    shutil.copytree(GOLDEN, folder)
    (folder / "verdict.json").unlink()
    return folder


# -- a folder


def test_the_golden_folder_is_judged_as_it_was(tmp_path: Path) -> None:
    folder = copy_golden(tmp_path)
    verdict = judge_folder(folder)
    assert (folder / "verdict.json").read_text() == (GOLDEN / "verdict.json").read_text()
    assert "\n".join(write_report(verdict)) + "\n" == (GOLDEN / "report.txt").read_text()


def test_the_command_says_the_first_wrong_line_first_and_exits_with_1(tmp_path: Path) -> None:
    folder = copy_golden(tmp_path)
    told = CliRunner().invoke(make_app(["storm"]), ["storm", "check", str(folder)])
    assert told.exit_code == 1
    assert told.stdout.splitlines()[:2] == [
        "wrong: acme was told 6 tokens of api in period 37, in 2 grants; its limit was at most 5",
        "  history/c1.jsonl:6",
    ]


def test_the_command_exits_with_0_when_all_was_kept(tmp_path: Path) -> None:
    folder = copy_golden(tmp_path)
    first = folder / "history/c1.jsonl"
    first.write_text(first.read_text().replace('"period":37,"amount":3', '"period":37,"amount":2'))
    told = CliRunner().invoke(make_app(["storm"]), ["storm", "check", str(folder)])
    assert told.exit_code == 0, told.stdout
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "right"


def test_a_torn_last_line_is_what_a_killed_process_leaves(tmp_path: Path) -> None:
    assert len([op for op in read_folder(GOLDEN).operations if op.file == "c2.jsonl"]) == 3


@pytest.mark.parametrize(
    ("broken", "says"),
    [("not json\n", "c1.jsonl:1"), ('{"op": "acquire", "at": "soon"}\n', "c1.jsonl:1: Expected `int`")],
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_is_judged(
    tmp_path: Path, broken: str, says: str
) -> None:
    folder = copy_golden(tmp_path)
    (folder / "history/c1.jsonl").write_text(broken)
    verdict = judge_folder(folder)
    assert verdict.is_ == "not judged" and says in verdict.why


def test_the_command_exits_with_1_when_nothing_could_be_judged(tmp_path: Path) -> None:
    folder = copy_golden(tmp_path)
    (folder / "history/c1.jsonl").write_text("not json\n")
    told = CliRunner().invoke(make_app(["storm"]), ["storm", "check", str(folder)])
    assert told.exit_code == 1


def test_an_applied_text_that_is_not_there(tmp_path: Path) -> None:
    folder = copy_golden(tmp_path)
    (folder / "policy-2.toml").unlink()
    with pytest.raises(HistoryError, match=r"operator.jsonl:2: policy-2.toml"):
        read_folder(folder)


def test_a_folder_without_histories(tmp_path: Path) -> None:
    assert judge_folder(tmp_path).is_ == "not judged"


def test_a_rollback_is_the_earlier_text_again(tmp_path: Path) -> None:
    tale = Tale(POLICY)
    tale.change(1, POLICY.replace("limit = 10", "limit = 99"), end=1.5)
    tale.write("operator", "rollback", 5, 5.5, to=1, version=3, ok=True)
    assert len(tale.history().changes.texts) == 3


# -- all together


def test_breaches_are_told_in_the_order_of_time() -> None:
    tale = Tale(POLICY)
    tale.ask(9, "llm", amount=11)
    tale.ask(1, "llm", is_="error", client="c2")
    tale.ask(20, "llm", is_="error", client="c2")
    verdict = judge(tale.history())
    assert [breach.promise for breach in verdict.breaches] == ["answers", "quotas", "answers"]
    assert verdict.operations["acquire"] == {"grant": 1, "error": 2}


def test_a_storm_that_could_not_be_judged_did_not_go_well(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "c1.jsonl").write_text("no line\n")
    said: list[str] = []
    assert not print_end(tmp_path, [], said.append)
    assert said[0].startswith("not judged: c1.jsonl:1")


def test_too_long_a_standstill_is_not_judged() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm")
    tale.ask(60, "llm", took=4)
    tale.stood(10, 19)
    verdict = judge(tale.history())
    assert verdict.is_ == "not judged" and "at most 5 %" in verdict.why and not verdict.breaches


def test_what_does_not_depend_on_time_is_wrong_whatever_the_machine_did() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", amount=11)
    tale.stood(10, 60)
    assert judge(tale.history()).is_ == "wrong"


def test_a_run_in_which_nobody_asked_is_not_judged() -> None:
    assert judge(Tale(POLICY).history()).is_ == "not judged"


def test_every_promise_says_what_it_is_and_what_is_left_out() -> None:
    for name, check in PROMISES.items():
        text = sys.modules[check.__module__].__doc__ or ""
        assert "**The promise.**" in text and "**Left out.**" in text, name


def test_the_checker_imports_nothing_of_what_it_judges() -> None:
    files = [*CHECKER.glob("*.py"), CHECKER.parent / "witness.py", CHECKER.parent / "__init__.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(name.partition(".")[0] != "bursar" for name in names), (file.name, names)
    code = (
        "import sys, bursar_lab.storm.checker, bursar_lab.storm.witness;"
        "print([name for name in sys.modules if name.partition('.')[0] == 'bursar'])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


# -- the witness


def test_the_witness_notes_what_it_slept_too_long() -> None:
    times = iter([0, 10_000_000, 75_000_000, 90_000_000, 1_000_000_000])
    lines: list[dict[str, object]] = []
    watching = witness.Witness(lines.append, lambda: next(times))
    for _ in range(4):
        watching.step()
    assert lines == [
        {"op": "stood", "at": 20_000_000, "end": 75_000_000},
        {"op": "stood", "at": 100_000_000, "end": 1_000_000_000},
    ]


def read_stood(file: Path) -> list[int]:
    lines = [json.loads(line) for line in file.read_text().splitlines(True) if line.endswith("\n")]
    return [line["end"] - line["at"] for line in lines if line["op"] == "stood"]


def test_the_witness_sees_itself_stopped(tmp_path: Path) -> None:
    file = tmp_path / "history/witness.jsonl"
    with subprocess.Popen([sys.executable, "-m", "bursar_lab.storm.witness", str(file)]) as process:
        while not file.exists():
            assert process.poll() is None
        begun = witness.read_boot_ns()
        process.send_signal(signal.SIGSTOP)
        while witness.read_boot_ns() < begun + 300_000_000:
            pass
        process.send_signal(signal.SIGCONT)
        while not any(each > 200_000_000 for each in read_stood(file)):  # it may have stood before, too
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-1]["op"] == "stopped"


def test_the_witness_notes_who_waited_for_a_processor() -> None:
    times = iter(range(0, 10**12, 100_000_000))
    waited = {1: [0, 60_000_000, 61_000_000], 2: [5, 5, 900_000_000]}
    lines: list[dict[str, object]] = []
    queue = witness.Queue(
        lines.append,
        lambda: [1, 2],
        lambda pid: waited[pid].pop(0),
        lambda pid: f"c{pid}",
        lambda: next(times),
    )
    queue.look()
    queue.ask()
    queue.ask()
    assert [(line["who"], line["ns"]) for line in lines] == [("c1", 60_000_000), ("c2", 200_000_000)]


def test_who_comes_later_is_counted_from_when_it_was_not_there() -> None:
    times = iter(range(0, 10**12, 100_000_000))
    there = [1]
    lines: list[dict[str, object]] = []
    queue = witness.Queue(
        lines.append, lambda: [*there], lambda pid: 70_000_000, lambda pid: f"c{pid}", lambda: next(times)
    )
    queue.look()
    there.append(2)
    queue.look()
    queue.ask()
    assert [(line["who"], line["at"], line["ns"]) for line in lines] == [("c2", 0, 70_000_000)]


def test_processes_are_named_by_their_command_lines() -> None:
    client = ["python", "-m", "bursar_lab.storm.client_process", "/out/specs/c2-3.json"]
    node = ["python", "-m", "bursar", "serve", "--store", "sqlite:///x", "--name", "a"]
    assert [witness.name_process(words, "9") for words in (client, node, ["sh"])] == ["c2-3", "a", "9"]


def test_the_kernel_says_who_waited() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.pid in witness.list_descendants(os.getpid())
        assert witness.read_waited_ns(process.pid) >= 0
        process.kill()
    assert witness.read_waited_ns(process.pid) == 0
