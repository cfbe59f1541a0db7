"""`bursar token create | list | revoke`: who may do what, kept in the fleet's store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.cli.visiting import OfPolicy, StoreUrl, find_store, name_visitor, visit, write_time
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.fleet.rights import Scope
    from bursar.fleet.tokens import Token
    from bursar.world import World

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
Patterns = list[str] | None


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Rights: create, list, revoke.", no_args_is_help=True)
    for command in (create, list_tokens, revoke):
        group.command(command.__name__.partition("_")[0], epilog=EXIT_CODES)(command)
    app.add_typer(group, name="token")


def create(
    tenant: Annotated[
        Patterns, typer.Option(help='"acme", "acme/*" (all below it), "*".', show_default=False)
    ] = None,
    resource: Annotated[Patterns, typer.Option(help='"llm", "*".', show_default=False)] = None,
    verb: Annotated[Patterns, typer.Option(help="acquire, read, change or join.", show_default=False)] = None,
    administrator: Annotated[bool, typer.Option("--administrator", help="It may do everything.")] = False,
    certificate: Annotated[
        str, typer.Option(metavar="NAME", help="Who shows this certificate has the rights, without a token.")
    ] = "",
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help='After so long, such as "30d".', show_default=False)
    ] = None,
    store: StoreUrl = None,
    policy: OfPolicy = None,
    as_json: AsJson = False,
) -> None:
    """Make a token: printed now, and never again, because only its hash is kept.

    Each of --tenant, --resource and --verb may be given several times. Without --tenant or
    --resource it is for all of them, without --verb for acquire and read. From the first token on,
    whoever shows none is denied at every daemon of this store.

    Example: bursar token create --tenant 'acme/*' --resource llm --verb acquire --store sqlite:///s.db
    """
    from bursar.fleet.tokens import create_token, is_required
    from bursar.units import read_duration_ns

    scope = _read_scope(tenant, resource, verb, administrator)
    try:
        expires_in_ns = 0 if expires is None else read_duration_ns(expires)
    except ValueError as error:
        raise UsageError(f'--expires {error}: write a duration, such as "30d"') from error

    async def act(world: World) -> tuple[Token, str, bool]:
        now, was_required = world.clock.wall(), await is_required(world.store)
        made = await create_token(
            world.store,
            [scope],
            by=name_visitor(),
            at_ns=now,
            note=note or ("administrator" if administrator and not certificate else ""),
            certificate=certificate,
            expires_ns=now + expires_in_ns if expires_in_ns else 0,
        )
        return *made, not was_required

    token, text, is_first = visit(find_store(store, policy), act)
    if as_json:
        typer.echo(json.dumps({**describe(token), "token": text or None}, indent=2))
    elif text:
        typer.echo(text)
        typer.echo(f"{token.name} may {scope}; it is not shown again", err=True)
    else:
        typer.echo(f"{token.name} may {scope}; its id is {token.id}")
    if is_first:
        denied = "whoever shows none is denied from now on, at every daemon of this store"
        typer.echo(f"it is the first: {denied}", err=True)


def _read_scope(tenants: Patterns, resources: Patterns, verbs: Patterns, administrator: bool) -> Scope:
    from bursar.fleet.rights import EVERYTHING, VERBS, Scope

    if administrator:
        if tenants or resources or verbs:
            raise UsageError("--administrator is everything: leave out --tenant, --resource and --verb")
        return EVERYTHING
    chosen = tuple(verb for verb in VERBS if verb in (verbs or ("acquire", "read")))
    wrong = [verb for verb in verbs or () if verb not in VERBS]
    if wrong:
        raise UsageError(f"--verb {wrong[0]}: the verbs are {', '.join(VERBS)}")
    return Scope(resources=tuple(resources or ("*",)), tenants=tuple(tenants or ("*",)), verbs=chosen)


def list_tokens(store: StoreUrl = None, policy: OfPolicy = None, as_json: AsJson = False) -> None:
    """List the tokens that there are: who they are for, what they may do.

    Example: bursar token list --store sqlite:///s.db
    """
    from bursar.fleet import tokens

    async def act(world: World) -> tuple[list[Token], bool]:
        return await tokens.list_tokens(world.store), await tokens.is_required(world.store)

    found, required = visit(find_store(store, policy), act)
    if as_json:
        typer.echo(json.dumps([describe(token) for token in found], indent=2))
    elif found:
        _print(found)
    elif required:
        typer.echo("every token was revoked: nobody is let in until one is created")
    else:
        typer.echo("no rights were given out: whoever reaches a daemon of this store may do everything")


def _print(tokens: list[Token]) -> None:
    from bursar.cli.tables import print_rows

    print_rows(
        [
            {
                "id": token.id,
                "for": f"certificate {token.certificate}" if token.certificate else token.note,
                "verbs": ", ".join(scope.verbs),
                "resources": ", ".join(scope.resources),
                "tenants": ", ".join(scope.tenants),
                "by": token.by,
                "at": write_time(token.at_ns),
                "expires": write_time(token.expires_ns) if token.expires_ns else "",
            }
            for token in tokens
            for scope in token.scopes
        ]
    )


def describe(token: Token) -> dict[str, Any]:
    """As JSON, without what proves it."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(token)
    del found["digest"]
    return found


def revoke(
    token: Annotated[
        str | None, typer.Argument(metavar="ID", help="Its id, or the token itself.", show_default=False)
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Every one, and turn rights off.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --all: do it without asking.")] = False,
    store: StoreUrl = None,
    policy: OfPolicy = None,
) -> None:
    """Revoke a token: within a second nobody gets anything by it, at any node.

    What was handed out by it ahead of use is recalled. When the last one is revoked nobody is let
    in; --all turns rights off: whoever reaches a daemon may then do everything.

    Example: bursar token revoke 7f3a91c2d4e5 --store sqlite:///s.db
    """
    from bursar.fleet import tokens

    if all == (token is not None):
        raise UsageError("say which token: its id (`bursar token list`), or --all for every one")
    if all and not yes:
        raise UsageError("this lets everybody in who reaches a daemon: add --yes if that is meant")

    async def act(world: World) -> str:
        by, now = name_visitor(), world.clock.wall()
        if token is None:
            return f"{await tokens.revoke_all(world.store, by=by, at_ns=now)} revoked, rights are off"
        return f"{(await tokens.revoke_token(world.store, token, by=by, at_ns=now)).name}: revoked"

    typer.echo(visit(find_store(store, policy), act))
