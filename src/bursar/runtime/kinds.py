"""Where the code of a kind is: loaded when a policy first names it, so that nobody pays for the
kinds they do not use.

The module of a kind has `open_resource(world, name, policy) -> Resource`: the front door around the
kind's decider (`bursar.resource.decider`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from typing import Any

from bursar.errors import UsageError
from bursar.policy.values import PoolPolicy, ResourcePolicy
from bursar.resource.door import Resource
from bursar.world import World

MODULES = {
    "rate": "bursar.rates.resource",
    "share": "bursar.shares.resource",
    "pool": "bursar.pools.resource",
    "quota": "bursar.quotas.resource",
    "claim": "bursar.claims.resource",
}
EXTRAS = {"rate": "rates", "share": "shares", "pool": "pools"}


def prepare(policies: Iterable[ResourcePolicy]) -> None:
    """Load what the kinds need, and compile it (seconds, once on a machine): before anybody can
    connect, because nothing is answered meanwhile. Raises UsageError if a kind cannot be loaded."""
    for policy in policies:
        module = _load(policy)
        if policy.kind == "rate":
            module.compile_kernels()


def prepare_all() -> None:
    """The same for every kind whose packages are installed: for a node that does not know yet which it
    will serve, so that the first policy does not find it compiling."""
    for module in MODULES.values():
        try:
            loaded = import_module(module)
        except ModuleNotFoundError:
            continue  # a policy that names it is answered with the extra that is missing
        if module == MODULES["rate"]:
            loaded.compile_kernels()


def open_resource(world: World, policy: ResourcePolicy) -> Resource:
    """The resource of a policy, not started yet. Raises UsageError if its kind cannot be loaded."""
    module = _load(policy)
    resource: Resource = module.open_resource(_with_words(world, policy), policy.name, policy)
    return resource


def _load(policy: ResourcePolicy) -> Any:
    try:
        return import_module(MODULES[policy.kind])
    except ModuleNotFoundError as error:
        raise _explain(policy.name, policy.kind, error) from error


def _with_words(world: World, policy: ResourcePolicy) -> World:
    """The world with the shared words that a pool's policy names, if they are not on this host."""
    if not isinstance(policy, PoolPolicy) or not policy.words.startswith("redis:"):
        return world
    from bursar.runtime.redis_words import RedisWords

    return replace(world, words=RedisWords.at(policy.words))


def _explain(name: str, kind: str, error: ModuleNotFoundError) -> UsageError:
    missing = error.name or ""
    if MODULES[kind].startswith(missing):
        return UsageError(f"resource {name}: the kind {kind!r} is not part of this version of bursar")
    remedy = f"pip install 'bursar[{EXTRAS.get(kind, 'all')}]'"
    return UsageError(f"resource {name}: the kind {kind!r} needs the package {missing}: {remedy}")
