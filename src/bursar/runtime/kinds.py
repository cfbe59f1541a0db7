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
from bursar.policy.values import (
    OWN_WORDS,
    ClaimPolicy,
    PoolPolicy,
    ResourcePolicy,
    SharePolicy,
    Tracker,
)
from bursar.resource.door import Resource
from bursar.runtime.words import open_named
from bursar.runtime.world import LiveWorld
from bursar.world import World

MODULES = {
    "rate": "bursar.rates.resource",
    "share": "bursar.shares.resource",
    "pool": "bursar.pools.resource",
    "quota": "bursar.quotas.resource",
    "claim": "bursar.claims.resource",
}
ENFORCERS = {
    "blkio": "bursar.integrations.blkio.opening",
    "io.max": "bursar.integrations.blkio.opening",
    "lustre": "bursar.integrations.lustre.opening",
}
"""Modules with `open_for(name, policy, state folder) -> Enforcer`; the shares' kind knows none of them."""

EXTRAS = {"rate": "rates", "share": "shares", "pool": "pools"}


def prepare(policies: Iterable[ResourcePolicy]) -> None:
    """Load what the kinds need, and compile it (seconds, once on a machine): before anybody can
    connect, because nothing is answered meanwhile. Raises UsageError if a kind cannot be loaded."""
    for policy in policies:
        module = _load(policy)
        if policy.kind == "rate":
            module.compile_kernels()


def open_resource(world: World, policy: ResourcePolicy) -> Resource:
    """The resource of a policy, not started yet. Raises UsageError if its kind cannot be loaded."""
    module = _load(policy)
    if isinstance(policy, SharePolicy) and policy.enforce != "program":
        return _open_enforced(world, policy)
    if isinstance(policy, ClaimPolicy) and policy.tracker is not None:
        return _open_tracked(world, policy, policy.tracker)
    resource: Resource = module.open_resource(_with_words(world, policy), policy.name, policy)
    return resource


def _open_enforced(world: World, policy: SharePolicy) -> Resource:
    """A share whose limits somebody else holds."""
    folder = world.node.folder if isinstance(world, LiveWorld) else None
    if folder is None:
        raise UsageError(f'[resource.{policy.name}] enforce = "{policy.enforce}" needs a state folder')
    enforcer = import_module(ENFORCERS[policy.enforce]).open_for(policy.name, policy, folder)
    resource: Resource = import_module("bursar.shares.enforced").open_enforced(
        world, policy.name, policy, enforcer
    )
    return resource


def _open_tracked(world: World, policy: ClaimPolicy, tracker: Tracker) -> Resource:
    """A claim whose tasks a service does."""
    from bursar.runtime.http_tracker import HttpTracker

    asked = HttpTracker(tracker)
    resource: Resource = _load(policy).open_resource(
        world, policy.name, policy, tracker=asked, running_max=tracker.at_once
    )
    return resource


def _load(policy: ResourcePolicy) -> Any:
    try:
        return import_module(MODULES[policy.kind])
    except ModuleNotFoundError as error:
        raise _explain(policy.name, policy.kind, error) from error


def _with_words(world: World, policy: ResourcePolicy) -> World:
    """The world with the shared words that a pool's policy names, if they are not the node's own."""
    if not isinstance(policy, PoolPolicy) or policy.words == OWN_WORDS:
        return world
    if policy.words.startswith(OWN_WORDS):
        return replace(world, words=open_named(policy.words.removeprefix(OWN_WORDS).strip("/")))
    from bursar.runtime.redis_words import RedisWords

    return replace(world, far_words=RedisWords(policy.words))


def _explain(name: str, kind: str, error: ModuleNotFoundError) -> UsageError:
    missing = error.name or ""
    if MODULES[kind].startswith(missing):
        return UsageError(f"resource {name}: the kind {kind!r} is not part of this version of bursar")
    remedy = f"pip install 'bursar[{EXTRAS.get(kind, 'all')}]'"
    return UsageError(f"resource {name}: the kind {kind!r} needs the package {missing}: {remedy}")
