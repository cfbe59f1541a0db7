"""The frame of the command line: exit codes, messages instead of tracebacks, help."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest

from bursar.cli import COMMANDS, LAB_COMMANDS, list_commands, main, make_app
from bursar.cli.version import LABELS
from bursar.policy import KINDS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def test_without_a_command_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert "Exit codes: 0 fine" in out


def test_every_registered_command_has_help_with_an_example_and_exit_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [command.name or command.callback.__name__ for command in make_app().registered_commands]  # type: ignore[union-attr]
    assert {"check", "schema"} <= set(names) <= {*COMMANDS, *LAB_COMMANDS}
    for name in (name.replace("_", "-") for name in names):
        code, out, _ = run(capsys, name, "--help")
        assert code == 0
        assert f"bursar {name}" in out.split("xample", 1)[1], f"{name} --help has no example"
        assert "Exit codes:" in out, name


def test_the_version_labels_every_kind_when_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[1].count("\n") == 1
    out = run(capsys, "--version", "--verbose")[1]
    assert tuple(LABELS) == KINDS
    assert set(LABELS.values()) <= {"stable", "beta", "experimental"}
    assert [line.split() for line in out.splitlines()[1:]] == [[kind, LABELS[kind]] for kind in KINDS]


@pytest.mark.parametrize(
    "arguments", [["nope"], ["check"], ["check", "a", "b"], ["schema", "--nope"], ["--nope"]]
)
def test_wrong_use_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err and "--help" in err


def test_schema_prints_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schema")
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from bursar.cli import make_app; make_app()\n"
        "heavy = {'numpy', 'numba', 'kazoo', 'grpc', 'nicegui', 'matplotlib', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[]\n"


def test_the_labs_commands_are_there_only_where_it_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list_commands() == COMMANDS + LAB_COMMANDS
    monkeypatch.setitem(sys.modules, "bursar_lab", None)
    monkeypatch.setattr("bursar.cli.find_spec", lambda name: None)
    assert list_commands() == COMMANDS
    assert run(capsys, "bench", "stores")[0] == 2
