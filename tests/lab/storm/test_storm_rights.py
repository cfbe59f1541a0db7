"""Rights: nobody is granted what its token does not allow."""

from __future__ import annotations

import pytest
from storm_tale import Tale, places

POLICY = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
"*" = { limit = 1000 }
"acme/*" = { limit = 1000 }
[resource.other]
kind = "quota"
[resource.other.tenant]
"*" = { limit = 1000 }
"""
SCOPE = {"resources": ["llm"], "tenants": ["acme/*", "globex"], "verbs": ["acquire"]}


def make(tale: Tale, at: float, token: str, **scope: list[str]) -> int:
    return tale.write("operator", "token", at, at + 0.2, token=token, scopes=[{**SCOPE, **scope}], ok=True)


def revoke(tale: Tale, at: float, token: str, ok: bool | None = True) -> int:
    return tale.write("operator", "revoke", at, at + 0.2, token=token, ok=ok)


# -- wrong


@pytest.mark.parametrize(
    ("resource", "tenant"), [("other", "acme/x"), ("llm", "acme"), ("llm", "globex/x"), ("llm", "acmes/x")]
)
def test_a_grant_outside_of_the_scope(resource: str, tenant: str) -> None:
    tale = Tale(POLICY)
    made = make(tale, 1, "t1")
    tale.ask(9, resource, tenant, token="t1")
    (breach,) = tale.check("rights")
    assert places(breach) == [f"operator:{made}", "c1:1"]


def test_a_token_that_may_only_read() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1", verbs=["read"])
    tale.ask(9, "llm", "globex", token="t1")
    assert len(tale.check("rights")) == 1


def test_a_grant_after_the_token_was_revoked() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    revoked = revoke(tale, 5, "t1")
    tale.ask(6.3, "llm", "globex", token="t1")
    (breach,) = tale.check("rights")
    assert places(breach) == [f"operator:{revoked}", "c1:1"] and "1.1 s after" in breach.sentence


def test_a_revoked_token_long_after_a_fault() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    revoke(tale, 5, "t1")
    tale.fault(5, "engine_pause", "zk-1", until=20)
    tale.ask(36, "llm", "globex", token="t1")
    assert len(tale.check("rights")) == 1


def test_who_shows_no_token_when_there_are_some() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    tale.ask(9, "llm", "globex", token="")
    assert len(tale.check("rights")) == 1


def test_who_has_the_right_and_is_denied() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    tale.ask(9, "llm", "globex", token="t1", is_="denied")
    assert len(tale.check("rights")) == 1


# -- right, though it looks wrong


def test_within_the_scope_and_denied_outside_of_it() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    tale.ask(9, "llm", "globex", token="t1")
    tale.ask(9, "llm", "acme/x/y", token="t1")
    tale.ask(9, "llm", "acme", token="t1", is_="denied")
    assert tale.check("rights") == []


def test_within_the_second_in_which_nodes_learn_of_it() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    tale.ask(1.5, "llm", "globex", token="t1", is_="denied")
    revoke(tale, 5, "t1")
    tale.ask(6.1, "llm", "globex", token="t1")
    tale.ask(5.1, "llm", "globex", token="t1", is_="denied")
    assert tale.check("rights") == []


def test_a_node_that_cannot_reach_the_store() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    tale.fault(4, "cut", "a", "zk-1", until=30)
    revoke(tale, 5, "t1")
    tale.ask(20, "llm", "globex", token="t1")
    tale.ask(35, "llm", "globex", token="t1")
    assert tale.check("rights") == []


def test_what_is_lent_in_place_of_bursar_and_a_revocation_that_failed() -> None:
    tale = Tale(POLICY)
    make(tale, 1, "t1")
    revoke(tale, 5, "t1", ok=False)
    tale.ask(20, "llm", "globex", token="t1")
    assert tale.check("rights") == []


def test_before_the_first_token_nobody_needs_one() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", "globex", token="")
    make(tale, 5, "t1")
    assert tale.check("rights") == []
