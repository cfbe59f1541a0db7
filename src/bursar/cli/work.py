"""`bursar work module:app`: run the tasks of an app as they are granted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.tasks import ResourceName, choose_claim
from bursar.cli.visiting import open_visitor
from bursar.world import SECOND_NS

DRAIN_NS = 30 * SECOND_NS

if TYPE_CHECKING:
    import asyncio

    from bursar.policy import Policy
    from bursar.runtime.functions import Functions


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(work)


def work(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The Bursar.", show_default=False)],
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Another policy file than the app's own.")
    ] = None,
    resource: ResourceName = None,
    name: Annotated[
        str | None, typer.Option(help="This worker's name, its own (else made of host and process).")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Tasks at a time.")] = 32,
) -> None:
    """Run tasks as they are granted, until stopped.

    Told to stop (Ctrl-C, SIGTERM) it begins no more and finishes what it began, for 30 seconds.
    What tasks do runs in a thread of its own, so that one that blocks is not taken for dead.

    APP is a `bursar.Bursar("policy.toml")` with functions under `@app.task`. Any number of workers
    share the queue of one resource.

    Example: bursar work shop.tasks:app --name worker-1
    """
    import asyncio
    import os
    import socket

    from bursar.policy import load
    from bursar.runtime.apps import find_app

    found = find_app(app)
    terms = found.load_policy() if policy is None else load(policy)
    called = name or f"{socket.gethostname()}-{os.getpid()}"
    asyncio.run(_work(found.functions, app, terms, resource, called, at_once))


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
        typer.echo(f"{name} takes no more tasks and finishes {instance.stop_taking()}")
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
