"""`bursar simulate`: figures that add up, limits that hold, a report that stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .test_cli import run

POLICY = """
[resource.cache]
kind = "rate"
period = "2s"
interval = "200ms"
servers = { a = "2k/s", b = "2k/s" }
[resource.cache.tenant]
acme = { reservation = "1k/s", limit = "1500/s" }
globex = { reservation = "500/s", servers = ["b"] }
"<i>odd</i>" = { limit = "300/s" }
greedy = {}
""".replace('"<i>odd</i>"', '"<i>odd"')


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


def simulate(capsys: pytest.CaptureFixture[str], policy: Path, *options: str) -> dict[str, Any]:
    report = policy.with_name("report.html")
    code, out, err = run(capsys, "simulate", str(policy), "--out", str(report), "--json", *options)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def write_demand(policy: Path, text: str) -> str:
    path = policy.with_name("demand.csv")
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("mix", ["mixed", "zipf", "ycsb", "bursts", "even"])
def test_nobody_passes_its_limit_and_servers_do_no_more_than_they_can(
    mix: str, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulate(capsys, policy, "--mix", mix, "--multiple", "3", "--no-one-more")
    for row in found["tenant"]:
        assert row["got"] <= row["asked"] + 2
        assert row["limit"] is None or row["got"] <= row["limit"]
    assert found["busiest_load"] < 1.01
    assert found["requests_served"] == sum(row["got"] for row in found["tenant"])


def test_given_demand_is_served_as_worked_out_by_hand(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """acme asks for 2,000/s on a, which can do it, and is held at its 1,500/s; globex has b for
    itself and gets what it asks for."""
    demand = write_demand(policy, "tenant,server,rate\nacme,a,2000\nglobex,b,800\n")
    found = simulate(capsys, policy, "--demand", demand)
    rows = {row["tenant"]: row for row in found["tenant"]}
    assert rows["acme"]["got"] == 3000 and rows["acme"]["throttled"]
    assert rows["globex"]["got"] == pytest.approx(1600, abs=8) and not rows["globex"]["throttled"]
    assert found["tenants_that_missed_it"] == 0 and found["tenants_throttled"] == 1


def test_a_reservation_is_kept_from_a_greedy_tenant(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demand = write_demand(policy, "tenant,server,rate\nglobex,b,600\ngreedy,b,9000\ngreedy,a,9000\n")
    rows = {row["tenant"]: row for row in simulate(capsys, policy, "--demand", demand)["tenant"]}
    assert rows["globex"]["met"] and rows["globex"]["got"] >= 1000
    assert rows["greedy"]["got"] == pytest.approx(2 * 4000 - rows["globex"]["got"], rel=0.02)


def test_demand_may_begin_and_end_within_the_period(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demand = write_demand(policy, "tenant,server,rate,start,end\ngreedy,a,500,0.5,1.5\n")
    rows = {row["tenant"]: row for row in simulate(capsys, policy, "--demand", demand)["tenant"]}
    assert rows["greedy"]["asked"] == 500 and rows["greedy"]["got"] == pytest.approx(500, abs=2)


def test_one_more_server_serves_more_where_there_was_too_little(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demand = write_demand(policy, "tenant,server,rate\ngreedy,a,4000\ngreedy,b,4000\n")
    found = simulate(capsys, policy, "--demand", demand)
    assert found["one_more_server"]["servers"] == 3
    assert found["one_more_server"]["requests_served"] > 1.3 * found["requests_served"]


def test_one_seed_is_one_outcome(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def outcome(seed: str) -> Any:
        return simulate(capsys, policy, "--no-one-more", "--multiple", "3", "--seed", seed)["tenant"]

    assert outcome("7") == outcome("7")
    assert outcome("7") != outcome("8")


def test_the_report_stands_alone_and_escapes_names(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(capsys, policy)
    text = policy.with_name("report.html").read_text()
    assert text.count("<svg ") == text.count("</svg>") == 3
    assert not re.search(r"(src|href)=\"https?:", text)
    assert "&lt;i&gt;odd" in text and "<i>odd" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenant,rate\nacme,1\n", "no column server"),
        ("tenant,server,rate\nacme,z,1\n", 'line 2: there is no server "z"'),
        ("tenant,server,rate\nacne,a,1\n", 'did you mean "acme"?'),
        ("tenant,server,rate\nacme,a,many\n", "line 2, rate: 'many' is not a number"),
        ("tenant,server,rate\nacme,a,-1\n", "a rate above zero"),
        ("tenant,server,rate\n", "has no demand in it"),
        ("tenant,server,rate,start,end\nacme,a,1,1,0\n", "a later end"),
    ],
)
def test_a_wrong_demand_file_is_the_users_mistake(
    text: str, said: str, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "simulate", str(policy), "--demand", write_demand(policy, text))
    assert (code, out) == (2, "") and said in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mix", "zipff"], 'did you mean "zipf"?'),
        (["--multiple", "0"], "--multiple"),
        (["--resource", "cash"], 'did you mean "cache"?'),
        (["--out", "/nowhere/at/all.html"], "give another with --out"),
        (["--demand", "/nowhere.csv"], "cannot be read"),
    ],
)
def test_wrong_options_say_what_to_write(
    options: list[str], said: str, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "simulate", str(policy), "--no-one-more", *options)
    assert code == 2 and said in err
