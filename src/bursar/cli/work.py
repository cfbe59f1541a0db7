"""`bursar work module:app`: run the tasks of an app as they are granted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.places import ResourceName, choose_claim
from bursar.cli.visiting import StoreUrl, check_store, open_visitor, read_policy, visit
from bursar.errors import UsageError
from bursar.world import SECOND_NS

DRAIN_NS = 30 * SECOND_NS

if TYPE_CHECKING:
    import asyncio

    from bursar.policy import Policy
    from bursar.runtime.client import Bursar
    from bursar.runtime.functions import Functions


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(work)


def work(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The Bursar.", show_default=False)],
    policy: Annotated[
        Path | None, typer.Option("--policy", help="A policy file, for its store; default: the app's own.")
    ] = None,
    store: StoreUrl = None,
    resource: ResourceName = None,
    name: Annotated[
        str | None, typer.Option(help="This worker's name, its own (else made of host and process).")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Tasks at a time.")] = 32,
) -> None:
    """Run tasks as they are granted, until stopped.

    Told to stop (Ctrl-C, SIGTERM) it begins no more and finishes what it began, for 30 seconds.
    What tasks do runs in a thread of its own, so that one that blocks is not taken for dead.

    APP is a `bursar.Bursar(...)` with functions under `@app.task`. Any number of workers share the
    queue of one resource. They go to the store themselves, so they need its URL or a policy file.

    Example: bursar work shop.tasks:app --policy policy.toml --name worker-1
    """
    import asyncio
    import os
    import socket

    from bursar.runtime.apps import find_app

    found = find_app(app)
    terms = _find_policy(found, policy, store)
    called = name or f"{socket.gethostname()}-{os.getpid()}"
    asyncio.run(_work(found.functions, app, terms, resource, called, at_once))


def _find_policy(app: Bursar, file: Path | None, store: str | None) -> Policy:
    from bursar.policy import load, settle

    if store is not None:
        url = check_store(store)
        return settle(visit(url, lambda world: read_policy(world.store)), {}, url)
    if file is not None:
        return load(file)
    if isinstance(app.target, str) and "://" in app.target:
        raise UsageError(
            f"the app connects to {app.target}, but a worker goes to the store: "
            "add --policy FILE or --store URL"
        )
    return app.load_policy()


async def _work(
    functions: Functions, app: str, policy: Policy, resource: str | None, name: str, at_once: int
) -> None:
    import asyncio
    import signal

    from bursar.claims.resource import ClaimDecider
    from bursar.runtime.children import Children
    from bursar.runtime.running import FunctionTracker
    from bursar.runtime.work_thread import WorkThread

    terms = choose_claim(policy, resource)
    timeout_ns = policy.daemon.session_timeout_ns
    world = await open_visitor(policy.store, name=name, session_timeout_ns=timeout_ns)
    thread = WorkThread()
    children = Children(app)
    tracker = FunctionTracker(functions, thread, children)
    instance = ClaimDecider(world, terms.name, terms, tracker=tracker, running_max=at_once).instance
    await instance.start()
    typer.echo(f"{name} works on {terms.name}: {', '.join(functions.names)}")
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        await _until(stopping, world.failure)
        typer.echo(f"{name} takes no more tasks, and finishes those that run: {instance.stop_taking()}")
        await instance.drain(DRAIN_NS)
    finally:
        await instance.stop()
        await world.close()
        await children.stop()
        thread.stop()


async def _until(stopping: asyncio.Event, failure: asyncio.Future[BaseException]) -> None:
    """Raises what made the node fail."""
    import asyncio

    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((told, failure), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if failure.done():
        raise failure.result()
