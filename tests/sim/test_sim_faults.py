"""Faults by seed, and what a scenario is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields

import pytest
from small_runs import Plain, idle, run_nodes, sleep

from bursar.sim.chance import Chance
from bursar.sim.errors import RunFailedError
from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.simulation import Simulation
from bursar.world import MILLISECOND_NS, SECOND_NS


def rates(faults: Faults) -> dict[str, float]:
    return {
        field.name: getattr(faults, field.name) for field in fields(faults) if not field.name.endswith("_ns")
    }


def test_everything_is_off_unless_given() -> None:
    assert not any(rates(Faults()).values())
    assert all(rates(Faults.everything()).values())


def test_a_seed_takes_a_part_of_the_faults() -> None:
    chosen = [Faults.everything().some(Chance(seed)) for seed in range(50)]
    for name in rates(Faults()):
        on = sum(bool(getattr(faults, name)) for faults in chosen)
        assert 20 < on < 50, name
    assert not any(rates(Faults().some(Chance(1))).values())


def test_each_purpose_has_its_own_chance() -> None:
    alone, both = Chance(3), Chance(3)
    both.stream("other").random()
    assert alone.stream("one").random() == both.stream("one").random() != both.stream("other").random()
    assert Chance(4).stream("one").random() != Chance(3).stream("one").random()


@pytest.mark.parametrize(
    ("fault", "event"),
    [
        ("cuts", "cut"),
        ("one_way_cuts", "one_way_cut"),
        ("clogs", "clog"),
        ("store_cuts", "store_cut"),
        ("pauses", "pause"),
        ("crashes", "crash"),
    ],
)
def test_every_fault_strikes_as_often_as_it_says(fault: str, event: str) -> None:
    counted: Counter[str] = Counter()
    for seed in range(5):
        run = run_nodes({"a": idle, "b": idle, "c": idle}, seed=seed, faults=Faults(**{fault: 2.0}))
        counted.update(line.split()[2] for line in run.history)
    assert 60 < counted[event] < 140, "about 2 a second for 10 seconds in 5 runs"


class Checked(Scenario):
    """Breaks its own invariant at a given time."""

    def __init__(self, check_at_ns: int | None = None, audit: bool = True) -> None:
        self._check_at_ns = check_at_ns
        self._audit = audit
        self.order: list[str] = []

    def nodes(self) -> Mapping[str, Boot]:
        return {"a": lambda world: self.order.append("boot")}

    def healed(self) -> None:
        self.order.append("healed")
        if self._check_at_ns is not None:
            self.sim.wake_at(self._check_at_ns)

    def check(self) -> None:
        require(self._check_at_ns is None or self.sim.now_ns < self._check_at_ns, "too late")

    def audit(self) -> None:
        self.order.append("audit")
        require(self._audit, "the books do not balance")


def test_a_run_is_healed_then_audited() -> None:
    scenario = Checked()
    run = Simulation("checked", scenario, 3, faults=Faults()).run()
    assert scenario.order == ["boot", "healed", "audit"]
    assert run.ended_ns == scenario.duration_ns + scenario.settle_ns


def test_a_failure_carries_the_seed_the_time_and_the_history() -> None:
    when_ns = 11 * SECOND_NS + 17
    with pytest.raises(RunFailedError, match="too late") as caught:
        Simulation("checked", Checked(when_ns), 3, faults=Faults()).run()
    assert (caught.value.seed, caught.value.at_ns) == (3, when_ns)
    assert [line.split()[2] for line in caught.value.history] == ["begin", "boot", "healed"]
    assert "bursar sim checked --seed 3" in str(caught.value)


def test_a_failing_audit_fails_the_run() -> None:
    with pytest.raises(RunFailedError, match="do not balance"):
        Simulation("checked", Checked(audit=False), 3, faults=Faults()).run()


def test_every_node_is_up_at_the_audit_and_the_scenario_was_told_of_each_death() -> None:
    scenario = Plain({"a": idle, "b": idle})
    sim = Simulation("plain", scenario, 2, faults=Faults(crashes=3.0, outage_ns=2 * SECOND_NS))
    run = sim.run()
    crashes = [line.split()[1].split("/")[0] for line in run.history if " crash " in line]
    assert scenario.deaths == crashes and len(crashes) > 3
    healed = next(number for number, line in enumerate(run.history) if " healed" in line)
    assert not any(" crash " in line for line in run.history[healed:])


def test_a_workload_ends_with_the_faults() -> None:
    times: list[int] = []

    async def work(sim: Simulation) -> None:
        while True:
            await sleep(sim, 100 * MILLISECOND_NS)
            times.append(sim.now_ns)

    run_nodes({"a": idle}, work)
    assert times[-1] == 10 * SECOND_NS and len(times) == 100
