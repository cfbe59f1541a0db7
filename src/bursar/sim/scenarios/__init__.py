"""The scenarios, one module each, found by name and imported when asked for.

A module says `SCENARIO = TheScenario`, and `SMALL_WORLD = TheSmallWorld` if it can be searched.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from bursar.errors import UsageError
from bursar.sim.faults import Faults
from bursar.sim.scenario import Scenario
from bursar.sim.simulation import Run, Simulation


def scenario_names() -> list[str]:
    """Every scenario there is."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_module(name: str) -> ModuleType:
    if name not in scenario_names():
        raise UsageError(f"there is no scenario {name!r}: choose from {', '.join(scenario_names())}")
    return importlib.import_module(f"{__name__}.{name}")


def make_scenario(name: str) -> Scenario:
    """A fresh scenario for one run."""
    scenario = load_module(name).SCENARIO()
    assert isinstance(scenario, Scenario), f"{name}.SCENARIO makes no Scenario"
    return scenario


def run_seed(name: str, seed: int, *, faults: Faults | None = None, keep: int | None = None) -> Run:
    """One run. Raises RunFailedError."""
    return Simulation(name, make_scenario(name), seed, faults=faults, keep=keep).run()
