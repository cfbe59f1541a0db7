"""`bursar apply`, `diff`, `history`, `rollback`, `tenant`, `node`, `store`: what they say and change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bursar.cli import main

POLICY = """
[resource.cache]
kind = "rate"
servers = { a = "1k/s", b = "1k/s" }
[resource.cache.tenant]
acme = { reservation = "100/s", limit = "400/s" }
"""


class Operator:
    """Someone at a terminal, with a store and a file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "policy.toml"
        self.store = f"sqlite://{folder}/store.db"
        self._capsys = capsys

    def write(self, text: str) -> str:
        self.file.write_text(text)
        return str(self.file)

    def do(self, *arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--store", self.store])
        out, err = self._capsys.readouterr()
        assert (caught.value.code or 0) == code, out + err
        return out + err


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


def test_applying_shows_the_difference_and_the_plan(operator: Operator) -> None:
    said = operator.do("apply", operator.write(POLICY), "--yes", "--note", "the beginning")
    assert "+ resource.cache = rate, 1 tenant" in said
    assert "cache: every reservation can be met (100 of 2,000 tokens a second are reserved)" in said
    assert "version 1 is the policy; no node is up" in said
    said = operator.do(
        "apply", operator.write(POLICY.replace("400/s", "2400/s").replace("100/s", "2100/s")), "--yes"
    )
    assert "~ resource.cache.tenant.acme.limit: 400/s -> 2400/s" in said
    assert "acme reserves 2,100/s" in said, "a harmful change is shown as what it does"


def test_nobody_is_asked_where_nobody_could_answer(operator: Operator) -> None:
    said = operator.do("apply", operator.write(POLICY), code=2)
    assert "add --yes" in said
    assert "no policy was applied yet" in operator.do("history")


def test_a_difference_changes_nothing(operator: Operator) -> None:
    operator.do("apply", operator.write(POLICY), "--yes")
    changed = operator.write(POLICY.replace("400/s", "300/s"))
    assert "~ resource.cache.tenant.acme.limit: 400/s -> 300/s" in operator.do("diff", changed)
    found = json.loads(operator.do("diff", changed, "--json"))
    assert found["version"] == 1 and found["possible"] and len(found["changes"]) == 1
    assert [row["version"] for row in json.loads(operator.do("history", "--json"))] == [1]


def test_applying_the_same_again_is_nothing_to_change(operator: Operator) -> None:
    operator.do("apply", operator.write(POLICY), "--yes")
    assert "nothing to change" in operator.do("apply", operator.write(POLICY), "--yes")


def test_going_back_is_a_version_of_its_own(operator: Operator) -> None:
    operator.do("apply", operator.write(POLICY), "--yes")
    operator.do("apply", operator.write(POLICY.replace("400/s", "300/s")), "--yes")
    said = operator.do("rollback", "1", "--yes")
    assert "~ resource.cache.tenant.acme.limit: 300/s -> 400/s" in said
    rows = json.loads(operator.do("history", "--json"))
    assert (rows[0]["version"], rows[0]["note"]) == (3, "back to version 1")
    assert "no version 9" in operator.do("rollback", "9", "--yes", code=2)


def test_tenants_are_set_shown_listed_and_removed(operator: Operator) -> None:
    operator.do("apply", operator.write(f'{POLICY}"*" = {{ limit = "5/s" }}\n'), "--yes")
    assert "joe is set" in operator.do("tenant", "set", "cache", "joe", "limit=9/s", "weight=2")
    found = json.loads(operator.do("tenant", "show", "cache", "joe"))
    assert found == {"tenant": "joe", "from": "bursar tenant set", "terms": {"limit": "9/s", "weight": 2}}
    assert json.loads(operator.do("tenant", "show", "cache", "acme"))["from"] == "policy version 1"
    assert json.loads(operator.do("tenant", "show", "cache", "zoe"))["from"] == 'the template "*"'
    assert "joe  limit=9/s weight=2" in operator.do("tenant", "list", "cache")
    operator.do("tenant", "remove", "cache", "joe")
    assert json.loads(operator.do("tenant", "list", "cache", "--json")) == {}


def test_many_tenants_are_set_from_a_file(operator: Operator, tmp_path: Path) -> None:
    operator.do("apply", operator.write(POLICY), "--yes")
    file = tmp_path / "many.json"
    file.write_text(json.dumps({f"user-{number}": {"limit": "5/s"} for number in range(300)}))
    assert "300 set" in operator.do("tenant", "set", "cache", "--from", str(file))
    assert len(json.loads(operator.do("tenant", "list", "cache", "--json"))) == 300
    file.write_text('["joe"]')
    assert "object of terms by tenant" in operator.do("tenant", "set", "cache", "--from", str(file), code=2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tenant", "set", "cache", "joe", "limit"], "not KEY=VALUE"),
        (["tenant", "set", "cache", "joe", "limit=fast"], "resource.cache.tenant.joe.limit"),
        (["tenant", "set", "cahce", "joe", "limit=5/s"], 'did you mean "cache"'),
        (["tenant", "set", "cache"], "say which tenant"),
        (["tenant", "remove", "cache", "joe"], 'no tenant "joe" that was set'),
        (["node", "remove", "a"], "a is not a member"),
        (["audit", "--what", "tokens"], "--what tokens: write one of policy, tenant, token"),
        (["token", "create", "--expires", "5x"], '--expires "5x"'),
        (["store", "adopt", "--state", "nowhere", "--yes"], "does not say which store"),
        (["store", "adopt", "--state", "nowhere"], "stop them all, then add --yes"),
    ],
)
def test_mistakes_are_explained(operator: Operator, arguments: list[str], says: str) -> None:
    operator.do("apply", operator.write(POLICY), "--yes")
    assert says in operator.do(*arguments, code=2)


def test_the_first_token_says_that_whoever_has_none_is_denied(operator: Operator) -> None:
    first = operator.do("token", "create", "--tenant", "acme", "--resource", "llm")
    assert "may acquire, read for tenant acme of resource llm; it is not shown again" in first
    assert "it is the first: whoever shows none is denied from now on" in first
    second = operator.do("token", "create", "--administrator")
    assert "for every tenant of every resource" in second and "it is the first" not in second


def test_the_store_says_what_it_is(operator: Operator) -> None:
    operator.do("apply", operator.write(POLICY), "--yes")
    found = json.loads(operator.do("store", "show"))
    assert found == {"uuid": None, "epoch": None, "form": None, "sealed": "", "policy_version": 1}
    assert "no node was ever up" in operator.do("node", "list")


def test_a_store_in_memory_is_out_of_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BURSAR_STORE", raising=False)
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    with pytest.raises(SystemExit) as caught:
        main(["apply", str(file), "--yes"])
    assert caught.value.code == 2
    assert "in the daemon's own memory, out of reach" in capsys.readouterr().err
