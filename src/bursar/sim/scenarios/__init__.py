"""The scenarios, one module each, found by name and imported when asked for: those here, and those of
the lab where it is installed.

A module says `SCENARIO = TheScenario`, and `SMALL_WORLD = TheSmallWorld` if it can be searched.
A scenario from elsewhere is named by its place: "package.module:TheScenario".
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec
from typing import Any

from bursar.errors import UsageError
from bursar.sim.faults import Faults
from bursar.sim.orders import OrderedWorld, OrderSearch
from bursar.sim.scenario import Scenario
from bursar.sim.search import Search, SmallWorld
from bursar.sim.simulation import Run, Simulation

LAB = "bursar_lab"


def scenario_names() -> list[str]:
    """Every scenario that comes with bursar."""
    return sorted(_find_modules())


def _find_modules() -> dict[str, str]:
    """Where each scenario is, by its name."""
    packages = [__name__, *([f"{LAB}.scenarios"] if find_spec(LAB) else [])]
    return {
        module.name: f"{package}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    }


def make_scenario(name: str) -> Scenario:
    """A fresh scenario for one run."""
    make = _find(name, "SCENARIO")
    scenario = make() if callable(make) else make
    if not isinstance(scenario, Scenario):
        raise UsageError(f"{name} is no scenario: derive it from bursar.sim.scenario.Scenario")
    return scenario


def make_search(name: str) -> Search | OrderSearch:
    """The search of the small world of a scenario."""
    make = _find(name, "SMALL_WORLD")
    world = make() if callable(make) else make
    if isinstance(world, OrderedWorld):
        return OrderSearch(make)
    if not isinstance(world, SmallWorld):
        raise UsageError(
            f"{name} is no small world: derive it from sim.search.SmallWorld or sim.orders.OrderedWorld"
        )
    return Search(world)


def run_seed(name: str, seed: int, *, faults: Faults | None = None, keep: int | None = None) -> Run:
    """One run. Raises RunFailedError."""
    return Simulation(name, make_scenario(name), seed, faults=faults, keep=keep).run()


def _find(name: str, attribute: str) -> Any:
    place, colon, given = name.partition(":")
    modules = _find_modules()
    if not colon and name not in modules:
        raise UsageError(f"there is no scenario {name!r}: choose from {', '.join(sorted(modules))}")
    try:
        module = importlib.import_module(place if colon else modules[name])
    except ModuleNotFoundError as error:
        raise UsageError(f"{name}: {error}: write it as package.module:TheScenario") from error
    if not hasattr(module, given or attribute):
        raise UsageError(f"{name} has no {given or attribute}: say there what to run, or run something else")
    return getattr(module, given or attribute)
