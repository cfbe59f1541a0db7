"""`bursar tenant set | show | list | remove`: tenants that come and go without a new policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.cli.tasks import AsJson
from bursar.cli.visiting import OfPolicy, StoreUrl, find_store, name_visitor, visit
from bursar.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bursar.world import World

ResourceArgument = Annotated[str, typer.Argument(metavar="RESOURCE", show_default=False)]
TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Tenants beside the policy: set, show, list, remove.", no_args_is_help=True)
    for command in (set_tenant, show, list_tenants, remove):
        group.command(command.__name__.partition("_")[0], epilog=EXIT_CODES)(command)
    app.add_typer(group, name="tenant")


def set_tenant(
    resource: ResourceArgument,
    tenant: Annotated[str | None, typer.Argument(metavar="TENANT", show_default=False)] = None,
    terms: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="As in the policy.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--from", help="JSON: terms by tenant, any number of them.")
    ] = None,
    store: StoreUrl = None,
    policy: OfPolicy = None,
) -> None:
    """Give a tenant terms, or other ones: in force from the next period on, at every node.

    The tenant must not be in the policy's text. With --from many are set at once.

    Example: bursar tenant set cache acme limit=60k/s weight=2
    """
    from bursar.fleet.tenants import AT_ONCE_MAX

    wanted = _read_file(file) if file is not None else {_need(tenant): read_terms(terms or [])}
    names = list(wanted)
    for at in range(0, len(names), AT_ONCE_MAX):
        part = {name: wanted[name] for name in names[at : at + AT_ONCE_MAX]}
        _change(find_store(store, policy), resource, part)
    typer.echo(f"{len(wanted):,} set" if len(wanted) > 1 else f"{names[0]} is set")


def remove(
    resource: ResourceArgument,
    tenants: Annotated[list[str], typer.Argument(metavar="TENANT...", show_default=False)],
    store: StoreUrl = None,
    policy: OfPolicy = None,
) -> None:
    """Remove tenants that were set: what they hold they keep, new requests are refused.

    Example: bursar tenant remove cache acme
    """
    _change(find_store(store, policy), resource, dict.fromkeys(tenants))
    typer.echo(f"{', '.join(tenants)}: removed")


def show(
    resource: ResourceArgument, tenant: TenantArgument, store: StoreUrl = None, policy: OfPolicy = None
) -> None:
    """Show a tenant's terms, and where they come from.

    Exits with 1 for a tenant that nothing covers.

    Example: bursar tenant show cache acme
    """
    found = visit(find_store(store, policy), lambda world: _look_up(world, resource, tenant))
    typer.echo(json.dumps(found, indent=2))
    if found["from"] is None:
        raise typer.Exit(FAILED)


def list_tenants(
    resource: ResourceArgument,
    store: StoreUrl = None,
    policy: OfPolicy = None,
    as_json: AsJson = False,
) -> None:
    """List the tenants that were set beside the policy.

    Example: bursar tenant list cache
    """
    from bursar.fleet import tenants

    async def read(world: World) -> dict[str, Any]:
        found: dict[str, Any] = {}
        shard: int | None = 0
        while shard is not None:
            page, shard = await tenants.list_tenants(world.store, resource, shard=shard)
            found.update(page)
        return found

    found = visit(find_store(store, policy), read)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for tenant in sorted(found):
        typer.echo(f"{tenant}  {' '.join(f'{key}={value}' for key, value in found[tenant].items())}")
    if not found:
        typer.echo(f"no tenant of {resource} was set beside the policy")


def _change(url: str, resource: str, changes: Mapping[str, Any]) -> None:
    from bursar.fleet.tenants import set_tenants

    visit(
        url,
        lambda world: set_tenants(
            world.store, resource, changes, by=name_visitor(), at_ns=world.clock.wall()
        ),
    )


async def _look_up(world: World, resource: str, tenant: str) -> dict[str, Any]:
    from bursar.fleet.documents import read_document
    from bursar.fleet.tenants import show_tenant

    document = await read_document(world.store)
    if document is None:
        raise UsageError("there is no policy in the store yet: `bursar apply FILE` first")
    terms = document.policy.resource(resource)
    listed = document.table["resource"][resource].get("tenant", {})
    if tenant in listed:
        return {"tenant": tenant, "from": document.source, "terms": listed[tenant]}
    found = await show_tenant(world.store, resource, tenant)
    if found is not None:
        return {"tenant": tenant, "from": "bursar tenant set", "terms": found}
    template = terms.find_template(tenant)
    if template is None:
        return {"tenant": tenant, "from": None, "terms": None}
    return {"tenant": tenant, "from": f'the template "{template}"', "terms": listed[template]}


def read_terms(words: list[str]) -> dict[str, Any]:
    """limit=60k/s weight=2: whole numbers are numbers, the rest is text; a list is written with commas."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{word!r} is not KEY=VALUE, such as limit=60k/s")
        if key == "servers":
            found[key] = value.split(",")
        else:
            found[key] = int(value) if value.lstrip("-").isdecimal() else value
    return found


def _need(tenant: str | None) -> str:
    if tenant is None:
        raise UsageError("say which tenant, or give many with --from FILE")
    return tenant


def _read_file(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(terms, dict) for terms in found.values()):
        raise UsageError(f'{file}: write an object of terms by tenant: {{"acme": {{"limit": "60k/s"}}}}')
    return found
