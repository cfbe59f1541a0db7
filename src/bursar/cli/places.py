"""Where commands look: a daemon, or the store itself, which answers when no daemon does."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.reaching import DAEMON
from bursar.cli.visiting import StoreUrl, check_store, open_visitor, read_policy
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import ClaimPolicy, Policy

Ask = Callable[..., Awaitable[Any]]
"""A verb of the resource: its name, and what it takes."""

ResourceName = Annotated[str | None, typer.Option("--resource", help="Which one, if there are several.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="A policy file, for its store or daemon. Default: policy.toml, if it is there.",
        show_default=False,
    ),
]
AtDaemon = Annotated[
    str | None,
    typer.Option("--at", metavar="URL", help="A daemon: bursar://127.0.0.1:7070.", show_default=False),
]
DEFAULT_POLICY = Path("policy.toml")


@dataclass(frozen=True, slots=True)
class Place:
    """What a user said of it. The first that is there counts: `at`, `store`, `policy`, the file policy.toml
    in this folder, the daemon of this machine."""

    policy: Path | None = None
    store: str | None = None
    at: str | None = None
    resource: str | None = None

    def load_policy(self) -> Policy | None:
        from bursar.policy import load

        if self.policy is not None:
            return load(self.policy)
        is_meant = self.at is None and self.store is None and DEFAULT_POLICY.is_file()
        return load(DEFAULT_POLICY) if is_meant else None

    def find_address(self, loaded: Policy | None) -> str:
        """The URL of a daemon, or of a store."""
        from bursar.runtime.host import choose_store

        if self.at is not None:
            return self.at
        if self.store is not None:
            return check_store(self.store)
        if loaded is None:
            return DAEMON
        store = choose_store(loaded)
        return f"bursar://{loaded.daemon.listen}" if store.startswith("memory://") else store


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a `Place`, for a command that takes one as `place`."""
    options = {"policy": PolicyFile, "resource": ResourceName, "store": StoreUrl, "at": AtDaemon}
    own = inspect.signature(command, eval_str=True)
    kept = [parameter for name, parameter in own.parameters.items() if name != "place"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=None, annotation=option) for name, option in options.items()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        place = Place(**{name: given.pop(name) for name in options})
        command(place=place, **given)

    del run.__dict__["__wrapped__"]
    parameters = [*(each.replace(kind=keyword) for each in kept), *added]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def choose(kind: str, wanted: str | None, names: Sequence[str], where: object) -> str:
    """The resource that is meant: that of the name, or the only one."""
    from bursar.policy.values import suggest

    if not names:
        raise UsageError(f"{where} has no resource of kind {kind}")
    if wanted is None and len(names) > 1:
        raise UsageError(f"say which resource with --resource: {where} has {', '.join(names)}")
    if wanted is not None and wanted not in names:
        raise UsageError(f'{where} has no resource "{wanted}" of kind {kind}{suggest(wanted, list(names))}')
    return wanted or names[0]


def choose_claim(policy: Policy, resource: str | None) -> ClaimPolicy:
    """The resource of kind claim with that name, or the only one."""
    from bursar.policy import ClaimPolicy

    claims = {name: found for name, found in policy.resources.items() if isinstance(found, ClaimPolicy)}
    return claims[choose("claim", resource, list(claims), policy.source)]


@asynccontextmanager
async def open_claim(place: Place) -> AsyncIterator[Ask]:
    """The claim resource that is meant, to look at and to change, without taking part in its work."""
    loaded = place.load_policy()
    address = place.find_address(loaded)
    opened = _ask_daemon if address.startswith("bursar://") else _ask_store
    async with opened(address, loaded, place.resource) as ask:
        yield ask


@asynccontextmanager
async def _ask_daemon(url: str, loaded: Policy | None, resource: str | None) -> AsyncIterator[Ask]:
    """With TLS, as the node of the policy file."""
    from bursar.runtime.client import connect

    tls = None if loaded is None else loaded.daemon.tls
    name = None if loaded is None or tls is None else loaded.daemon.name
    async with await connect(url, name=name, tls=tls) as b:
        claims = [found for found in b.resources if b.resource(found).kind == "claim"]
        yield b.resource(choose("claim", resource, claims, url)).verb


@asynccontextmanager
async def _ask_store(url: str, loaded: Policy | None, resource: str | None) -> AsyncIterator[Ask]:
    from bursar.claims.resource import ClaimDecider

    world = await open_visitor(url)
    try:
        terms = choose_claim(loaded or await read_policy(world.store), resource)
        found = ClaimDecider(world, terms.name, terms)
        await found.instance.attach()

        async def ask(verb: str, **arguments: Any) -> Any:
            return await found.verbs[verb](**arguments)

        yield ask
    finally:
        await world.close()
