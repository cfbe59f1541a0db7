"""The scenarios, one module each, found by name and imported when asked for.

A module says `SCENARIO = TheScenario`, and `SMALL_WORLD = TheSmallWorld` if it can be searched.
A scenario from elsewhere is named by its place: "package.module:TheScenario".
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from bursar.errors import UsageError
from bursar.sim.faults import Faults
from bursar.sim.scenario import Scenario
from bursar.sim.search import SmallWorld
from bursar.sim.simulation import Run, Simulation


def scenario_names() -> list[str]:
    """Every scenario that comes with bursar."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def make_scenario(name: str) -> Scenario:
    """A fresh scenario for one run."""
    make = _find(name, "SCENARIO")
    scenario = make() if callable(make) else make
    if not isinstance(scenario, Scenario):
        raise UsageError(f"{name} is no scenario: derive it from bursar.sim.scenario.Scenario")
    return scenario


def make_small_world(name: str) -> SmallWorld:
    """The small world of a scenario, to be searched."""
    make = _find(name, "SMALL_WORLD")
    world = make() if callable(make) else make
    if not isinstance(world, SmallWorld):
        raise UsageError(f"{name} is no small world: derive it from bursar.sim.search.SmallWorld")
    return world


def run_seed(name: str, seed: int, *, faults: Faults | None = None, keep: int | None = None) -> Run:
    """One run. Raises RunFailedError."""
    return Simulation(name, make_scenario(name), seed, faults=faults, keep=keep).run()


def _find(name: str, attribute: str) -> Any:
    place, colon, given = name.partition(":")
    if not colon and name not in scenario_names():
        raise UsageError(f"there is no scenario {name!r}: choose from {', '.join(scenario_names())}")
    try:
        module = importlib.import_module(place if colon else f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(f"{name}: {error}: write it as package.module:TheScenario") from error
    if not hasattr(module, given or attribute):
        raise UsageError(f"{name} has no {given or attribute}: say there what to run, or run something else")
    return getattr(module, given or attribute)
