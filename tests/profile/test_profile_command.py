"""`bursar profile` measures this machine with real processes."""

from __future__ import annotations

import json

import pytest

import bursar.policy
from bursar.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(("profile", *arguments))
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def test_the_profile_is_numbers_and_lines_that_a_policy_takes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--seconds", "2", "--clients", "2", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["C_L"] > 1_000 and 0.2 * found["C_L"] < found["C_G"] < 10 * found["C_L"]
    assert 0 <= found["sigma"] < found["C_G"]
    lines = "".join(f'{key} = "{value}"\n' for key, value in found["policy"].items())
    text = f'[resource.r]\nkind = "pool"\n{lines}[resource.r.tenant]\na = {{ reservation = "10/s" }}\n'
    assert bursar.policy.parse(text).resources["r"].kind == "pool"


@pytest.mark.parametrize("wrong", [("--clients", "0"), ("--clients", "65"), ("--seconds", "1")])
def test_a_senseless_measurement_is_refused(
    wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *wrong)
    assert code == 2 and out == ""
    assert "--clients is 1 to 64, --seconds 2 to 600" in " ".join(err.split())
