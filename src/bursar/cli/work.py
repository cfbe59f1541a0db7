"""`bursar work module:app`: run the tasks of an app as they are granted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.tasks import DEFAULT_POLICY, PolicyFile, ResourceName
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.claims.app import TaskApp


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(work)


def work(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The TaskApp.", show_default=False)],
    policy: PolicyFile = DEFAULT_POLICY,
    resource: ResourceName = None,
    name: Annotated[str, typer.Option(help="This worker's name.")] = "worker",
    at_once: Annotated[int, typer.Option(min=1, help="Tasks at a time.")] = 32,
) -> None:
    """Run tasks as they are granted, until stopped.

    Any number of workers share the queue of one resource.

    Example: bursar work shop.tasks:app --policy policy.toml --name worker-1
    """
    import asyncio

    asyncio.run(_work(find_app(app), policy, resource, name, at_once))


def find_app(where: str) -> TaskApp:
    import sys
    from importlib import import_module

    from bursar.claims.app import TaskApp

    module_name, colon, attribute = where.partition(":")
    if not colon:
        raise UsageError(f"{where!r}: write module:app, such as shop.tasks:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{where!r} cannot be loaded: {error}") from error
    if not isinstance(found, TaskApp):
        raise UsageError(f"{where!r} is no TaskApp")
    return found


async def _work(app: TaskApp, policy: Path, resource: str | None, name: str, at_once: int) -> None:
    from bursar.claims.courier import Instance
    from bursar.claims.tracker import InProcessTracker
    from bursar.policy import ClaimPolicy, load
    from bursar.runtime.world import open_world

    loaded = load(policy)
    claims = {key: found for key, found in loaded.resources.items() if isinstance(found, ClaimPolicy)}
    chosen = resource or (next(iter(claims)) if len(claims) == 1 else "")
    if chosen not in claims:
        raise UsageError(f"say which resource of kind claim with --resource; {policy} has {list(claims)}")
    terms = claims[chosen]
    world = await open_world(name, store=loaded.store, session_timeout_ns=loaded.daemon.session_timeout_ns)
    instance = Instance(
        world,
        chosen,
        dead_holder=terms.dead_holder,
        aging_ns=terms.aging_ns,
        weights={tenant: found.weight for tenant, found in terms.tenants.items()},
        tracker=InProcessTracker(app.work),
        running_max=at_once,
    )
    await instance.start()
    typer.echo(f"{name} works on {chosen}: {', '.join(app.names)}")
    try:
        raise await world.failure
    finally:
        await instance.stop()
        await world.close()
