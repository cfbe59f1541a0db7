"""Counted names: what one writes, lots that move, and books that lose or make units."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.book import ClaimBook, Plan
from bursar.claims.layout import Layout
from bursar.claims.lots import Lot, LotBook, Purse, Want, plan_gathering, read_count, read_lot
from bursar.claims.model import State, Task
from bursar.claims.queue import Queue
from bursar.claims.requirements import parse_needs
from bursar.errors import Refused, UsageError
from bursar.policy import ClaimPolicy, parse
from bursar.policy.values import Table
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.claim_counts import CountedClaimScenario
from bursar.sim.simulation import Simulation
from bursar.world import Delete, Operation

LAYOUT = Layout("things")
CAUGHT_WITHIN = 40


def test_a_number_counts_and_a_letter_does_not() -> None:
    needs = parse_needs("vm-7:E, gpu:4, host:S, gpu:1", counted={"gpu": 16})
    assert [str(each) for each in needs.names] == ["host:S", "vm-7:E"]
    assert needs.counts == (("gpu", 5),)
    assert parse_needs("gpu:4", counted={"gpu": 16}).names == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vm-7:4", "not counted"),
        ("gpu:E", "write how many"),
        ("gpu", "write how many"),
        ("gpu:0", "at least one"),
        ("gpu:-1", "shared"),
        ("gpu:1.5", "shared"),
    ],
)
def test_what_could_be_either_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_needs(text, counted={"gpu": 16})


def test_the_policy_says_how_many_there_are() -> None:
    text = '[resource.dc]\nkind = "claim"\n[resource.dc.counted]\ngpu = 16\n'
    assert parse(text).resource("dc").counted == {"gpu": 16}  # type: ignore[union-attr]


# Who takes what


def lots(*units_and_owners: tuple[int, str]) -> list[Lot]:
    return [Lot(units, f"l{number}", owner) for number, (units, owner) in enumerate(units_and_owners)]


def take(found: Sequence[Lot], wants: Sequence[Want], mine: Want, ahead: int = 0) -> dict[str, int]:
    by_owner = {want.owner: want for want in wants}
    taken: dict[str, int] = {}
    for lot, units in plan_gathering(found, by_owner, mine, ahead, {"a", "b", "c"}):
        taken[lot.owner] = taken.get(lot.owner, 0) + units
    return taken


def test_what_lies_at_nobody_and_at_the_dead_goes_before_what_lies_idle() -> None:
    mine = Want(6, 5, False, "a")
    assert take(lots((2, "b"), (3, ""), (3, "gone")), [], mine) == {"": 3, "gone": 3}
    assert take(lots((9, "b"), (3, "")), [], mine) == {"": 3, "b": 3}


def test_who_came_first_takes_from_who_came_later_and_not_the_other_way() -> None:
    found = lots((3, "a"), (3, "b"))
    older, younger = Want(1, 1, False, "a"), Want(1, 2, False, "b")
    assert take(found, [older, younger], older) == {"b": 1}
    assert take(found, [older, younger], younger) == {}
    assert take(found, [older, younger], Want(1, 2, True, "b")) == {"a": 1}, "late comes before older"


def test_nobody_takes_lots_of_who_came_first_beside_others() -> None:
    older = Want(2, 1, False, "b")
    assert take(lots((3, "b"), (2, "")), [older], Want(3, 2, False, "a")) == {}
    assert take(lots((3, "b"), (6, "")), [older], Want(3, 2, False, "a")) == {"": 3}


def test_only_who_is_late_gathers_less_than_it_needs() -> None:
    found = lots((1, ""), (2, "b"))
    assert take(found, [], Want(4, 1, False, "a")) == {}
    assert take(found, [], Want(4, 1, True, "a")) == {"": 1, "b": 2}
    large, small = Want(4, 1, False, "c"), Want(1, 2, False, "a")
    assert take(found, [large], small) == {"": 1}, "who needs fewer uses them meanwhile"
    assert take(found, [Want(4, 1, True, "c")], small) == {}


def test_what_an_instance_wanted_a_moment_ago_does_not_stand_in_its_own_way() -> None:
    """Found by the search: its want in the store is older than what it wants now."""
    assert take(lots((2, "b")), [Want(1, 1, False, "a")], Want(2, 2, False, "a")) == {"b": 2}


@pytest.mark.parametrize("first", ["early", "late"])
def test_who_lacks_units_is_who_came_first_of_all_that_wait_for_them(first: str) -> None:
    queue = Queue()
    asked = {"early": (("b", 3), ("c", 1)), "late": (("a", 2), ("b", 1))}
    queue.supply("b", 1)
    for id in sorted(asked, key=lambda id: id != first):
        queue.enter(id, parse_needs(f"{id}:E")[0], submitted=1 if id == "early" else 9, counts=asked[id])
    assert queue.pick() is None
    short = {name: (entry.id, units) for name, (entry, units) in queue.find_short().items()}
    assert short == {"a": ("late", 2), "b": ("early", 2), "c": ("early", 1)}


def test_who_reserves_units_is_first_whoever_has_a_higher_priority() -> None:
    """Else nobody says that they are lacking, and nobody is given those that there are."""
    queue = Queue()
    queue.supply("gpu", 1)
    queue.enter("large", parse_needs("a:E")[0], submitted=1, counts=(("gpu", 3),))
    assert queue.pick() is None
    queue.put_first("large")
    queue.enter("small", parse_needs("b:E")[0], submitted=2, priority=1, counts=(("gpu", 1),))
    assert queue.pick() is None, "large has reserved what there is"
    [(entry, lacking)] = queue.find_short().values()
    assert (entry.id, lacking) == ("large", 2)


def test_with_enough_for_all_nobody_waits_for_its_turn() -> None:
    older, younger = Want(2, 1, False, "a"), Want(2, 2, False, "b")
    assert take(lots((9, "")), [older, younger], younger, ahead=9) == {"": 3}


# In the store


def find_counts(stage: Stage, name: str = "gpu") -> tuple[int, int]:
    """How many tasks and claims have, and how many lie somewhere."""
    used = sum(dict(task.counts).get(name, 0) for task in stage.records() if task.state is State.RUNNING)
    return used, sum(lot.units for lot in list_lots(stage, name))


def list_lots(stage: Stage, name: str = "gpu") -> list[Lot]:
    path = LAYOUT.lots(name)
    return [read_lot(path, node) for node in stage._tree.children(path)]


def test_names_and_counts_are_granted_together_or_not_at_all() -> None:
    async def act(stage: Stage) -> None:
        things = stage.resources["n1"]
        async with things.claim(("vm-7:E", "gpu:3"), "t") as grant:
            assert set(grant.fence) == {"vm-7"}
            assert find_counts(stage) == (3, 1)
            with pytest.raises(Refused, match="2 of gpu are not free"):
                await things.claim(("vm-8:E", "gpu:2"), "t")
            async with things.claim(("vm-8:E", "gpu:1"), "t"):
                assert find_counts(stage) == (4, 0)
        with pytest.raises(Refused, match="there are 4 in all"):
            await things.claim(("gpu:5",), "t")
        assert find_counts(stage) == (0, 4)

    play(act, counted=Table({"gpu": 4}))


def test_lots_go_where_they_are_wanted_and_back_when_they_are_idle() -> None:
    async def act(stage: Stage) -> None:
        one, other = stage.resources["n1"], stage.resources["n2"]
        first = await one.claim(("gpu:3",), "t", wait=1)
        with pytest.raises(Refused):
            await other.claim(("gpu:2",), "t")
        await first.release()
        assert any(lot.owner for lot in list_lots(stage)), "it stays for the next one at first"
        second = await other.claim(("gpu:4",), "t")
        assert find_counts(stage) == (4, 0)
        waiting = stage.sim.loop.create_task(take_all(one))
        await stage.sleep(0.3)
        await second.release()
        assert (await stage.timed(waiting))[0] < 0.2, "it moves as soon as it is free"
        await stage.until(lambda: [lot.owner for lot in list_lots(stage)] == [""], 5)

    async def take_all(things) -> None:  # type: ignore[no-untyped-def]
        async with things.claim(("gpu:4",), "t", wait=5):
            pass

    play(act, ("n1", "n2"), counted=Table({"gpu": 4}))


def test_what_a_dead_instance_had_is_taken_and_what_its_claims_hold_is_not() -> None:
    async def act(stage: Stage) -> None:
        one, other = stage.resources["n1"], stage.resources["n2"]
        held = await one.claim(("gpu:2",), "t", wait=1)
        lot = await one.claim(("gpu:1",), "t", wait=1)
        await lot.release()
        stage.go_down("n1", 30)
        with pytest.raises(Refused):
            await other.claim(("gpu:3",), "t", wait=5)
        async with other.claim(("gpu:2",), "t", wait=15):
            assert find_counts(stage) == (4, 0)
        assert held.amount == 1

    play(act, ("n1", "n2"), counted=Table({"gpu": 4}))


def test_the_capacity_changes_while_it_runs() -> None:
    async def act(stage: Stage) -> None:
        things = stage.resources["n1"]
        grant = await things.claim(("gpu:4",), "t")
        for capacity, owed in ((6, 0), (2, 2)):
            await things.reconfigure(ClaimPolicy(name="things", counted=Table({"gpu": capacity})))
            await stage.sleep(2)
            count = read_count("", stage._tree.get(LAYOUT.count("gpu"))[0])
            assert count == (capacity, owed), "what a cut leaves beyond is owed until it is let go"
        with pytest.raises(Refused):
            await things.claim(("gpu:1",), "t", wait=1)
        await grant.release()
        async with things.claim(("gpu:2",), "t", wait=3):
            await stage.sleep(2)
            assert find_counts(stage) == (2, 0)

    play(act, counted=Table({"gpu": 4}))


def test_nearly_all_is_used_while_enough_wait() -> None:
    """Two workers, tasks of one to four units and 0.2 to 0.6 seconds."""

    async def act(stage: Stage) -> None:
        things = stage.resources["n1"]
        for number in range(160):
            seconds, units = 0.2 + (number * 7 % 5) / 10, 1 + number * 5 % 4
            await things.verb("submit", tenant="t", names=f"gpu:{units}", payload=str(seconds).encode())
        samples = []
        while sum(task.state is State.PENDING for task in stage.records()) > 20:
            await stage.sleep(0.005)
            samples.append(find_counts(stage)[0] / 16)
        used = samples[len(samples) // 10 :]
        assert max(used) <= 1 and sum(used) / len(used) >= 0.95, sum(used) / len(used)

    play(act, ("n1", "n2"), works=True, counted=Table({"gpu": 16}))


# Books that are wrong


class KeepsLots(LotBook):
    """A grant leaves the lots where they are."""

    def _fly(self, operations: list[Operation], purse: Purse, name: str, lot: Lot) -> None:
        super()._fly(operations, purse, name, lot)
        operations[:] = [op for op in operations if not isinstance(op, Delete)]


class LosesTheRest(LotBook):
    """What is left of a lot is not made one."""

    def close(self, purse: Purse, id: str) -> list[Operation]:
        return []


class GivesNothingBack(LotBook):
    """What a task had by force is nobody's afterwards."""

    def give_back(self, operations: list[Operation], purse: Purse, task: Task, *, forced: bool) -> None:
        if not forced:
            super().give_back(operations, purse, task, forced=forced)


class GivesBackWhatWaits(ClaimBook):
    """A task that waits and is taken back gives what it never had."""

    def finish(self, task: Task, version: int, *arguments: object, **options: object) -> Plan:
        plan = super().finish(task, version, *arguments, **options)  # type: ignore[arg-type]
        if task.state is State.PENDING:
            self.lots.give_back(plan.operations, plan.draft.purse, task, forced=True)
        return plan


@pytest.mark.parametrize("part", range(3))
def test_seeds_with_two_counted_names(part: int) -> None:
    for seed in range(part * 8, part * 8 + 8):
        run_seed("claim_counts", seed, keep=50)


@pytest.mark.parametrize("mistake", [KeepsLots, LosesTheRest, GivesNothingBack, GivesBackWhatWaits])
def test_units_that_are_made_or_lost_are_noticed(mistake: type) -> None:
    class Wrong(ClaimBook):
        def __init__(self, layout: Layout, me: str) -> None:
            super().__init__(layout, me)
            self.lots = mistake(layout)

    class Scenario(CountedClaimScenario):
        book = mistake if issubclass(mistake, ClaimBook) else Wrong

    for seed in range(CAUGHT_WITHIN):
        try:
            Simulation("claim", Scenario(), seed, keep=50).run()
        except RunFailedError as error:
            assert "are used" in str(error).split("\n")[0], str(error)[:300]
            return
    pytest.fail(f"{mistake.__name__} was not caught")
