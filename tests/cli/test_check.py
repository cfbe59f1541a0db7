"""`bursar check`: messages a newcomer can act on, kept as golden files.

To write them anew after a change of wording, and then read the difference:

    BURSAR_WRITE_GOLDEN=1 pytest tests/cli/test_check.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.cli import main

ROOT = Path(__file__).parents[2]
BROKEN = ROOT / "tests" / "golden" / "policies"
WRITTEN = sorted(file.stem for file in BROKEN.glob("*.toml"))
MADE = {
    "too-deep": ("x = " + "[" * 10_000 + "]" * 10_000).encode(),
    "too-large": b"#" * 100_000_000,
    "not-text": bytes(range(256)),
}


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["check", *arguments])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def compare(name: str, message: str) -> None:
    golden = BROKEN / f"{name}.txt"
    if os.environ.get("BURSAR_WRITE_GOLDEN"):
        golden.write_text(message)
    assert message == golden.read_text()


def test_there_are_a_dozen_broken_policies_at_least() -> None:
    assert len(WRITTEN) >= 12
    assert {file.stem for file in BROKEN.glob("*.txt")} == {*WRITTEN, *MADE}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_broken_policy_is_explained(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(BROKEN)
    code, out, err = check(capsys, f"{name}.toml")
    assert (code, out) == (2, "")
    compare(name, err)


@pytest.mark.parametrize("name", MADE)
def test_a_file_that_is_no_policy_at_all_is_explained_by_the_program(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.toml").write_bytes(MADE[name])
    command = [sys.executable, "-m", "bursar", "check", f"{name}.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    compare(name, done.stderr)


def test_a_right_policy_is_summed_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = check(capsys, "examples/policy.toml")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "examples/policy.toml: fine"
    assert "  llm: quota, 2 tenants" in out


def test_who_may_use_a_resource_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        '[resource.disk]\nkind = "share"\n[resource.vms]\nkind = "claim"\n'
        '[resource.llm]\nkind = "quota"\ntenant = { acme = { limit = 1 }, "*" = { limit = 1 } }\n'
    )
    _, out, _ = check(capsys, str(file))
    assert out.splitlines()[1:] == [
        "  disk: share, no tenant: nobody may use it yet",
        "  vms: claim, any tenant",
        '  llm: quota, 1 tenant and "*"',
    ]


def test_json_has_the_policy_as_it_was_understood(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, str(ROOT / "examples" / "policy.toml"), "--json")
    found = json.loads(out)
    assert code == 0 and found["ok"] and found["problems"] == []
    cache = found["policy"]["resources"]["cache"]
    assert (cache["kind"], cache["interval_ns"]) == ("rate", 200_000_000)


def test_json_lists_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, str(BROKEN / "unknown-kind.toml"), "--json")
    found = json.loads(out)
    assert (code, err, found["ok"]) == (2, "", False)
    assert [problem["path"] for problem in found["problems"]] == [
        "resource.cache.kind",
        "resource.locks.kind",
    ]
    assert found["problems"][0]["line"] == 2
    assert found["problems"][0]["remedy"].startswith('write one of "rate"')
