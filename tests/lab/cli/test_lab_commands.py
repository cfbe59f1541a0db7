"""The lab's commands, and what the frame makes of what they raise."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from bursar import errors
from bursar.cli import main
from bursar_lab.cli import bench as bench_command
from bursar_lab.cli import experiment as experiment_command
from cli.test_cli import run


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module whose functions are registered as a benchmark and an experiment of the same name."""
    module = types.ModuleType("registered_for_tests")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("good", "rows", "bad", "gone"):
        monkeypatch.setitem(bench_command.BENCHMARKS, name, f"{module.__name__}:{name}")
        monkeypatch.setitem(experiment_command.EXPERIMENTS, name, f"{module.__name__}:{name}")
    return module


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("no such thing"), 2),
        (errors.PolicyError("p.toml", [errors.Problem("a", "is wrong", "mend it")]), 2),
        (errors.UnreachableError("nobody at 127.0.0.1:7070"), 1),
        (errors.Refused("over the limit"), 1),
    ],
)
def test_an_error_of_bursar_is_a_message_and_a_code(
    error: errors.BursarError, code: int, capsys: pytest.CaptureFixture[str], registry: types.ModuleType
) -> None:
    def fail(quick: bool) -> dict[str, object]:
        raise error

    registry.bad = fail  # type: ignore[attr-defined]
    assert run(capsys, "bench", "bad") == (code, "", f"bursar: {error}\n")


def test_a_mistake_of_bursar_itself_keeps_its_traceback(registry: types.ModuleType) -> None:
    registry.bad = lambda quick: 1 / 0  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        main(["bench", "bad"])


def test_ctrl_c_exits_with_130() -> None:
    program = """
import sys, threading, types
from bursar.cli import main
from bursar_lab.cli import bench
module = types.ModuleType("waits")
def run(quick):
    print("running", flush=True)
    threading.Event().wait(20)
module.run = run
sys.modules["waits"] = module
bench.BENCHMARKS["waits"] = "waits:run"
main(["bench", "waits"])
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_name_that_is_not_registered_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, "bench", "store") == (
        2,
        "",
        'bursar: there is no benchmark "store"; did you mean "stores"?\n',
    )
    assert run(capsys, "experiment", "rate-1")[2].endswith('did you mean "rates-1"?\n')


def test_what_is_registered_and_not_written_says_so(
    capsys: pytest.CaptureFixture[str], registry: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench_command.BENCHMARKS, "module", "bursar.nowhere.at_all:run")
    for name in ("module", "gone"):
        message = f'bursar: the benchmark "{name}" is not in this version of bursar\n'
        assert run(capsys, "bench", name) == (1, "", message)


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_a_package.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(bench_command.BENCHMARKS, "needy", "needs_a_package:run")
    code, _, err = run(capsys, "bench", "needy")
    assert code == 1
    assert err == "bursar: this needs the package no_such_package_anywhere: pip install 'bursar[all]'\n"


def test_bench_passes_quick_and_prints_its_findings(
    capsys: pytest.CaptureFixture[str], registry: types.ModuleType
) -> None:
    registry.good = lambda quick: {"quick": quick, "ratio": 1.25}  # type: ignore[attr-defined]
    registry.rows = lambda quick: {"table": [{"who": "floor", "ops": 1000}, {"who": "bursar", "ops": 2000}]}  # type: ignore[attr-defined]
    assert run(capsys, "bench", "good", "--quick") == (0, "quick: True\nratio: 1.25\n", "")
    assert json.loads(run(capsys, "bench", "good", "--json")[1]) == {"quick": False, "ratio": 1.25}
    out = run(capsys, "bench", "rows")[1]
    assert "floor" in out and "2,000" in out


def test_findings_that_are_not_ok_exit_with_1(
    capsys: pytest.CaptureFixture[str], registry: types.ModuleType
) -> None:
    registry.bad = lambda quick: {"ok": False, "ratio": 3}  # type: ignore[attr-defined]
    code, out, _ = run(capsys, "bench", "bad")
    assert code == 1 and "ratio: 3" in out


def test_an_experiment_writes_its_numbers(
    capsys: pytest.CaptureFixture[str], registry: types.ModuleType, tmp_path: Path
) -> None:
    def good(out: Path, quick: bool) -> dict[str, object]:
        (out / "figure.png").write_bytes(b"")
        return {"quick": quick, "table": "met  99.6 %"}

    registry.good = good  # type: ignore[attr-defined]
    folder = tmp_path / "deep" / "results"
    code, out, _ = run(capsys, "experiment", "good", "--quick", "--out", str(folder))
    assert (code, out) == (0, f"met  99.6 %\nnumbers in {folder}/good.json\n")
    assert json.loads((folder / "good.json").read_text()) == {"quick": True, "table": "met  99.6 %"}
    assert (folder / "figure.png").exists()


def test_a_folder_that_cannot_be_made_is_the_users_mistake(
    capsys: pytest.CaptureFixture[str], registry: types.ModuleType, tmp_path: Path
) -> None:
    registry.good = lambda out, quick: {}  # type: ignore[attr-defined]
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "experiment", "good", "--out", str(tmp_path / "file"))
    assert code == 2 and "give another with --out" in err


def test_the_lab_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bursar_lab", "bench", "store"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'did you mean "stores"?' in done.stderr
