"""`bursar plan`: names, figures, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .test_cli import run

INFEASIBLE = """
[resource.cache]
kind = "rate"
period = "5s"
servers = { a = "5k/s", b = "5k/s" }
[resource.cache.tenant]
acme = { reservation = "6k/s", servers = ["a"] }
globex = { reservation = "1k/s" }
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(INFEASIBLE)
    return path


def test_an_infeasible_policy_names_tenant_servers_and_remedies(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "plan", str(policy))
    assert (code, err) == (1, "")
    assert "acme reserves 6,000/s, but a can do only 5,000/s: 1,000/s too much" in out
    assert "let acme use server b too" in out
    assert "raise the capacity of a from 5,000/s to 6,000/s" in out
    assert "lower the reservation of acme from 6,000/s to 5,000/s" in out
    assert "globex" not in out


def test_json_has_the_same(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", str(policy), "--json")
    found = json.loads(out)
    assert code == 1 and found["feasible"] is False
    (shortage,) = found["resources"]["cache"]["shortages"]
    assert (shortage["tenants"], shortage["required"], shortage["capacity"]) == (
        {"acme": 30_000},
        30_000,
        25_000,
    )
    remedies = [[change["what"] for change in remedy] for remedy in shortage["remedies"]]
    assert remedies == [["placement"], ["capacity"], ["reservation"]]


def test_a_remedy_that_is_taken_makes_it_feasible(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy.write_text(INFEASIBLE.replace('a = "5k/s"', 'a = "6k/s"'))
    code, out, _ = run(capsys, "plan", str(policy))
    assert (code, out) == (
        0,
        "cache: every reservation can be met (7,000 of 11,000 tokens a second are reserved)\n",
    )


def test_unknown_capacities_are_not_guessed(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy.write_text(INFEASIBLE.replace('a = "5k/s"', 'a = "auto"'))
    code, out, _ = run(capsys, "plan", str(policy))
    assert code == 0 and "not known" in out and "--assume" in out
    assert run(capsys, "plan", str(policy), "--assume", "5k/s")[0] == 1
    assert run(capsys, "plan", str(policy), "--assume", "9k/s")[0] == 0
    for nonsense in ("fast", "0/s", "5k"):
        code, _, err = run(capsys, "plan", str(policy), "--assume", nonsense)
        assert code == 2 and err.startswith("bursar: --assume")


def test_a_pool_is_planned_as_one_server(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy.write_text(
        '[resource.r]\nkind = "pool"\ncapacity = "10k/s"\n[resource.r.tenant]\n'
        'x = { reservation = "8k/s" }\ny = { reservation = "3k/s" }\n'
    )
    code, out, _ = run(capsys, "plan", str(policy))
    assert code == 1 and "the data node" in out and "1,000/s too much" in out


def test_a_policy_without_reservations_says_so(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy.write_text('[resource.x]\nkind = "claim"\n')
    code, out, _ = run(capsys, "plan", str(policy))
    assert code == 0 and "nothing is reserved" in out
