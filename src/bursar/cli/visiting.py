"""Commands that go to the store itself, as a visitor: whoever reaches it may change what is in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Policy
    from bursar.runtime.world import LiveWorld
    from bursar.world import Store

ResultT = TypeVar("ResultT")

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", envvar="BURSAR_STORE", metavar="URL", help="The fleet's store.", show_default=False
    ),
]
OfPolicy = Annotated[
    Path | None, typer.Option("--policy", help="A policy file, for its store.", show_default=False)
]


def find_store(store: str | None, policy: Path | None) -> str:
    """The URL that is meant: given, or that of a policy file."""
    from bursar.policy import load

    if store is not None:
        return check_store(store)
    if policy is not None:
        return store_of(load(policy))
    raise UsageError("say which store with --store URL (or BURSAR_STORE), or --policy FILE for a file's")


def store_of(policy: Policy) -> str:
    """Where the daemon of this policy file keeps what it shares."""
    from bursar.runtime.host import choose_store

    return check_store(choose_store(policy))


def check_store(url: str) -> str:
    if url.startswith("memory://"):
        raise UsageError(
            "the store is in the daemon's own memory, out of reach: send the daemon SIGHUP to have it read "
            'its file again, use its HTTP API, or give the policy a store such as "sqlite:///path/store.db"'
        )
    return url


async def open_visitor(
    url: str, *, name: str = "visitor", any_form: bool = False, **options: Any
) -> LiveWorld:
    """A world at a store that this version of bursar reads and writes; of `any_form`: to look at it, or to
    make it its own. Raises UsageError."""
    from bursar.fleet.identity import check_form, read_identity
    from bursar.runtime.world import open_world
    from bursar.stores.addresses import hide_password

    world = await open_world(name, store=url, **options)
    try:
        if not any_form and (found := await read_identity(world.store)) is not None:
            check_form(found, hide_password(url))
    except BaseException:
        await world.close()
        raise
    return world


async def read_policy(store: Store) -> Policy:
    """The policy in force there."""
    from bursar.fleet.documents import read_document

    found = await read_document(store)
    if found is None:
        raise UsageError(
            "no policy is in this store yet: `bursar apply FILE` writes one, or name a file's with --policy"
        )
    return found.policy


def visit(url: str, act: Callable[[LiveWorld], Awaitable[ResultT]], *, any_form: bool = False) -> ResultT:
    """Do something at a store."""
    import asyncio

    async def go() -> ResultT:
        world = await open_visitor(url, any_form=any_form)
        try:
            return await act(world)
        finally:
            await world.close()

    return asyncio.run(go())


def name_visitor() -> str:
    """Who does it, for the audit."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"  # a container's user may have no name
    return f"cli {user}@{socket.gethostname()}"


def write_time(at_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
