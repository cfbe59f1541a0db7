"""`bursar check FILE`: is this policy right, and if not, everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES, MISUSED
from bursar.errors import PolicyError

if TYPE_CHECKING:
    from bursar.policy import Policy, ResourcePolicy


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(check)


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Report everything wrong with a policy file.

    All problems at once: where each stands, what is wrong, what to write instead. Nothing is
    started or changed. A file with problems exits with 2.

    Example: bursar check examples/policy.toml
    """
    from bursar.policy import load

    try:
        policy = load(file)
    except PolicyError as error:
        if not as_json:
            raise
        typer.echo(json.dumps(_describe_problems(error), indent=2))
        raise typer.Exit(MISUSED) from error
    typer.echo(json.dumps(_describe_policy(policy), indent=2) if as_json else _write_summary(policy))


def _describe_problems(error: PolicyError) -> dict[str, Any]:
    fields = ("path", "line", "what", "remedy")
    problems = [{field: getattr(problem, field) for field in fields} for problem in error.problems]
    return {"file": error.source, "ok": False, "problems": problems}


def _describe_policy(policy: Policy) -> dict[str, Any]:
    """The policy as it was understood: every default filled in, quantities as whole numbers."""
    import msgspec

    understood = msgspec.to_builtins(policy)
    del understood["text"]
    return {"file": policy.source, "ok": True, "problems": [], "policy": understood}


def _write_summary(policy: Policy) -> str:
    lines = [f"{policy.source}: fine"]
    for resource in policy.resources.values():
        shadow = ", shadow (refuses nobody)" if resource.shadow else ""
        lines.append(f"  {resource.name}: {resource.kind}, {_count_tenants(resource)}{shadow}")
    return "\n".join(lines)


def _count_tenants(resource: ResourcePolicy) -> str:
    count = len(resource.tenants)
    listed = [f"{count} tenant{'' if count == 1 else 's'}"] if count else []
    who = " and ".join([*listed, *(f'"{template}"' for template in resource.templates)])
    return who or ("any tenant" if resource.kind == "claim" else "no tenant: nobody may use it yet")
