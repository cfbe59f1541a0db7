"""Claims: fences, guards, and who holds what."""

from __future__ import annotations

from typing import Any

import pytest
from storm_tale import Tale, places

from bursar_lab.storm.checker.claims import read_names

POLICY = """
[resource.vms]
kind = "claim"
paths = true
"""


def claim(tale: Tale, at: float, fence: dict[str, int], *names: str, **fields: Any) -> int:
    told = {"fence": fence, **fields.pop("told", {})}
    return tale.ask(at, "vms", op="claim", names=list(names), told=told, wait_ms=1000, **fields)


def write(tale: Tale, at: float, name: str, fence: int, accepted: bool = True) -> int:
    return tale.write("guard", "write", at, name=name, fence=fence, who="c1/1", accepted=accepted)


# -- wrong


def test_a_guard_that_accepts_a_fence_below_one_before() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "vms")
    write(tale, 1, "vm-1", 5)
    write(tale, 1.5, "vm-1", 7)
    write(tale, 2, "vm-2", 3)
    write(tale, 3, "vm-1", 6)
    (breach,) = tale.check("claims")
    assert places(breach) == ["guard:2", "guard:4"] and "fence 6 after 7" in breach.sentence


def test_a_guard_that_accepts_the_fence_of_shadow_mode() -> None:
    tale = Tale(POLICY)
    write(tale, 1, "vm-1", 0)
    (breach,) = tale.check("claims")
    assert "nobody's" in breach.sentence


def test_two_exclusive_claims_with_one_fence() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"vm-1": 7}, "vm-1:E")
    claim(tale, 1, {"vm-1": 7}, "vm-1:E", client="c2")
    breaches = tale.check("claims")
    assert [places(breach) for breach in breaches] == [["c1:1", "c2:1"]]


def test_a_sharer_with_the_fence_of_an_exclusive_claim() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"vm-1": 7}, "vm-1")
    claim(tale, 5, {"vm-1": 7}, "vm-1:S", client="c2")
    assert len(tale.check("claims")) == 1


def test_a_fence_that_goes_down() -> None:
    tale = Tale(POLICY)
    tale.fault(0, "kill", "a", until=9)
    claim(tale, 1, {"vm-1": 7}, "vm-1:E")
    claim(tale, 5, {"vm-1": 6}, "vm-1:E", client="c2")
    (breach,) = tale.check("claims")
    assert places(breach) == ["c1:1", "c2:1"] and "was told 7" in breach.sentence


def test_a_claim_that_was_granted_in_part() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"vm-1": 7}, "vm-1:E", "vm-2:S")
    (breach,) = tale.check("claims")
    assert "without vm-2" in breach.sentence


def test_a_name_that_is_given_away_while_it_is_held() -> None:
    tale = Tale(POLICY)
    number = claim(tale, 1, {"vm-1": 7}, "vm-1:S")
    claim(tale, 1.5, {"vm-1": 8}, "vm-1:E", client="c2")
    tale.release(2, number)
    (breach,) = tale.check("claims")
    assert places(breach) == ["c1:1", "c2:1"] and "nothing was amiss" in breach.sentence


def test_a_real_grant_with_a_fence_of_nothing() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"vm-1": 0}, "vm-1:E")
    assert len(tale.check("claims")) == 1


# -- right, though it looks wrong


def test_sharers_of_one_phase_carry_one_fence() -> None:
    tale = Tale(POLICY)
    for at in range(4):
        claim(tale, 1 + at, {"vm-1": 7}, "vm-1:S", client=f"c{at}")
        write(tale, 1.5 + at, "vm-1", 7)
    assert tale.check("claims") == []


def test_what_lies_above_a_path_is_shared() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"host": 4, "host/vm-1": 2}, "host/vm-1:E")
    claim(tale, 2, {"host": 4, "host/vm-2": 9}, "host/vm-2:E", client="c2")
    assert tale.check("claims") == []


def test_a_repeat_with_the_same_key_is_the_same_claim() -> None:
    tale = Tale(POLICY)
    first = claim(tale, 1, {"vm-1": 7}, "vm-1:E", key="k")
    again = claim(tale, 2, {"vm-1": 7}, "vm-1:E", key="k", told={"replayed": True}, client="c2")
    tale.release(3, again, client="c2")
    claim(tale, 4, {"vm-1": 8}, "vm-1:E", client="c3")
    tale.release(5, first)
    assert tale.check("claims") == []


def test_a_sharer_that_stayed_when_the_phase_rose_is_told_its_own_fence_again() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"vm-1": 7}, "vm-1:S", key="k")
    claim(tale, 5, {"vm-1": 8}, "vm-1:S", client="c2")
    claim(tale, 9, {"vm-1": 7}, "vm-1:S", key="k", told={"replayed": True}, client="c3")
    assert tale.check("claims") == []


def test_a_key_that_is_free_again_gets_a_new_fence() -> None:
    tale = Tale(POLICY)
    first = claim(tale, 1, {"vm-1": 7}, "vm-1:E", key="k")
    tale.release(2, first)
    claim(tale, 3, {"vm-1": 8}, "vm-1:E", key="k")
    assert tale.check("claims") == []


def test_who_asked_before_the_other_was_told_may_be_first() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"vm-1": 7}, "vm-1:E", end=2.0)
    number = claim(tale, 1.5, {"vm-1": 6}, "vm-1:E", end=1.7, client="c2")
    tale.release(1.8, number, client="c2")
    assert tale.check("claims") == []


@pytest.mark.parametrize("fault", ["pause", "cut", "engine_pause", "kill"])
def test_an_owner_that_was_cut_off_believes_in_its_claim(fault: str) -> None:
    tale = Tale(POLICY)
    tale.fault(2, fault, "a", until=30)
    number = claim(tale, 1, {"vm-1": 7}, "vm-1:E")
    claim(tale, 20, {"vm-1": 8}, "vm-1:E", client="c2")
    write(tale, 21, "vm-1", 8)
    write(tale, 22, "vm-1", 7, accepted=False)
    tale.release(31, number)
    assert tale.check("claims") == []


@pytest.mark.parametrize(("stood_for", "wrong"), [(0.2, 1), (3, 0)])
def test_a_machine_that_stood_still_long_enough_to_lose_a_session(stood_for: float, wrong: int) -> None:
    tale = Tale(POLICY)
    number = claim(tale, 1, {"vm-1": 7}, "vm-1:E")
    tale.stood(2, 2 + stood_for)
    claim(tale, 8, {"vm-1": 8}, "vm-1:E", client="c2")
    tale.release(9, number)
    assert len(tale.check("claims")) == wrong


def test_a_forced_release() -> None:
    tale = Tale(POLICY)
    number = claim(tale, 1, {"vm-1": 7}, "vm-1:E")
    tale.write("operator", "force_release", 2, 2.1, name="vm-1", ok=True)
    claim(tale, 3, {"vm-1": 9}, "vm-1:E", client="c2")
    tale.release(5, number)
    assert tale.check("claims") == []


def test_a_client_that_was_killed_holding() -> None:
    tale = Tale(POLICY)
    claim(tale, 1, {"vm-1": 7}, "vm-1:E")
    tale.fault(2, "kill", "c1")
    claim(tale, 60, {"vm-1": 8}, "vm-1:E", client="c2")
    assert tale.check("claims") == []


def test_shadow_mode_gives_everybody_a_fence_of_nothing() -> None:
    tale = Tale(POLICY + "shadow = true\n")
    for client in ("c1", "c2"):
        claim(tale, 1, {"vm-1": 0}, "vm-1:E", client=client, told={"fallback": "shadow"})
    write(tale, 2, "vm-1", 0, accepted=False)
    assert tale.check("claims") == []


def test_names_without_a_mode_are_exclusive() -> None:
    assert read_names(["a", "b:S", "c:E", "d#part:S", "b:E"]) == {
        "a": True,
        "b": True,
        "c": True,
        "d#part": False,
    }


# -- more, and counted names


COUNTED = POLICY + "counted = { gpu = 4 }\n"


def more(tale: Tale, at: float, grant: int, fence: dict[str, int], *names: str, **fields: Any) -> int:
    answer = {"is": fields.pop("is_", "grant"), "fence": fence, "amount": 1, "id": fields.pop("id", "x")}
    told = {"resource": "vms", "tenant": "acme", "names": list(names), "answer": answer, "wait_ms": 100}
    return tale.write(fields.pop("client", "c1"), "more", at, at + 0.001, grant=grant, via="async", **told)


def test_what_was_asked_for_besides_is_granted_whole() -> None:
    tale = Tale(COUNTED)
    grant = claim(tale, 1, {"vm-1": 5}, "vm-1:E", told={"id": "x"})
    more(tale, 2, grant, {"vm-1": 5, "vm-2": 7}, "vm-2:E", "vm-3:S")
    tale.release(3, grant)
    (breach,) = tale.check("claims")
    assert places(breach) == ["c1:2"] and "without vm-3" in breach.sentence


def test_what_was_given_besides_is_given_to_nobody_else() -> None:
    tale = Tale(COUNTED)
    grant = claim(tale, 101, {"vm-1": 5}, "vm-1:E", told={"id": "x"})
    more(tale, 102, grant, {"vm-1": 5, "vm-2": 7}, "vm-2:E", "gpu:1")
    other = claim(tale, 103, {"vm-2": 8}, "vm-2:E", client="c2", told={"id": "y"})
    tale.release(104, grant)
    tale.release(105, other, client="c2")
    (breach,) = tale.check("claims")
    assert places(breach) == ["c1:2", "c2:1"] and "vm-2 was given" in breach.sentence


def test_no_more_are_held_of_a_counted_name_than_there_are() -> None:
    tale = Tale(COUNTED)
    first = claim(tale, 101, {}, "gpu:2", told={"id": "x"})
    second = claim(tale, 102, {"vm-1": 5}, "vm-1:E", "gpu:1", client="c2", told={"id": "y"})
    more(tale, 103, second, {"vm-1": 5}, "gpu:1", client="c2", id="y")
    third = claim(tale, 104, {}, "gpu:1", client="c3", told={"id": "z"})
    for at, grant, client in ((105, first, "c1"), (106, second, "c2"), (107, third, "c3")):
        tale.release(at, grant, client)
    (breach,) = tale.check("claims")
    assert "5 of gpu are held together, there are 4" in breach.sentence


def test_units_that_are_let_go_of_are_free_and_refusals_hold_nothing() -> None:
    tale = Tale(COUNTED)
    for number in range(3):
        grant = claim(tale, 101 + number, {}, "gpu:4", told={"id": f"x{number}"})
        more(tale, 101.2 + number, grant, {}, "gpu:4", is_="refused")
        tale.release(101.5 + number, grant)
    assert tale.check("claims") == []
