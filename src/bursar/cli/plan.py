"""`bursar plan POLICY`: which reservations cannot be met, before anything runs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES, FAILED
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Policy, PoolPolicy, RatePolicy
    from bursar.rates.plan import Change, Plan, Question, Remedy, Shortage
    from bursar.units import Rate

NAMES_MAX = 8


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(plan)


def plan(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="The policy file.", show_default=False)],
    assume: Annotated[
        str | None, typer.Option(metavar="RATE", help='What a server of capacity "auto" can do: 100k/s.')
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say which reservations cannot be met, which servers make it so, and what would do.

    Looks at resources of kind rate and pool. Every tenant is taken to use all of its servers as
    it likes; what does not fit even so is short. Each remedy is enough by itself and was checked.
    A policy with a reservation that cannot be met exits with 1.

    Example: bursar plan examples/policy.toml --assume 100k/s
    """
    from bursar.policy import load

    loaded = load(policy)
    found = _plan_all(loaded, read_assumed(assume))
    typer.echo(json.dumps(_describe(found), indent=2) if as_json else _write(loaded, found))
    if any(made is not None and not made.feasible for _, made in found):
        raise typer.Exit(FAILED)


def write_plan(policy: Policy) -> str:
    """What is to be said of the reservations of a policy; nothing if there is none."""
    return _write(policy, found) if (found := _plan_all(policy, None)) else ""


def _plan_all(policy: Policy, assumed: Rate | None) -> list[tuple[RatePolicy | PoolPolicy, Plan | None]]:
    from bursar.policy.values import PoolPolicy, RatePolicy
    from bursar.rates.plan import plan as make_plan

    found: list[tuple[RatePolicy | PoolPolicy, Plan | None]] = []
    for resource in policy.resources.values():
        if isinstance(resource, RatePolicy | PoolPolicy):
            question = _ask(resource, assumed)
            found.append((resource, make_plan(question) if question else None))
    return found


def read_assumed(text: str | None) -> Rate | None:
    from bursar.units import read_rate

    if text is None:
        return None
    try:
        rate = read_rate(text)
    except ValueError as error:
        raise UsageError(f"--assume: {error}") from error
    if rate.per_second <= 0:
        raise UsageError(f'--assume: {text!r} is nothing; write a rate such as "100k/s"')
    return rate


def _ask(resource: RatePolicy | PoolPolicy, assumed: Rate | None) -> Question | None:
    """None where a capacity is not known. A pool is one server that all its tenants use."""
    from bursar.policy.values import RatePolicy
    from bursar.rates.plan import Question

    if _takes_any_server(resource):
        return None
    if isinstance(resource, RatePolicy):
        capacities = {name: server.capacity or assumed for name, server in resource.servers.items()}
        where = {name: tenant.servers for name, tenant in resource.tenants.items()}
    else:
        capacities = {"the data node": resource.capacity or assumed}
        where = {}
    known = {name: rate.per(resource.period_ns) for name, rate in capacities.items() if rate is not None}
    if len(known) < len(capacities):
        return None
    reservation = {
        name: tenant.reservation.per(resource.period_ns) for name, tenant in resource.tenants.items()
    }
    return Question(known, {name: tokens for name, tokens in reservation.items() if tokens}, where)


def _takes_any_server(resource: RatePolicy | PoolPolicy) -> bool:
    from bursar.policy.values import RatePolicy

    return isinstance(resource, RatePolicy) and resource.any_server is not None


def _write(policy: Policy, found: list[tuple[RatePolicy | PoolPolicy, Plan | None]]) -> str:
    if not found:
        return f"{policy.source}: no resource of kind rate or pool, so nothing is reserved"
    return "\n".join(line for resource, made in found for line in _write_one(resource, made))


def _write_one(resource: RatePolicy | PoolPolicy, made: Plan | None) -> list[str]:
    if made is None and _takes_any_server(resource):
        return [f'{resource.name}: not known beforehand, because any node may join it ("*" under servers)']
    if made is None:
        return [f'{resource.name}: not known, a capacity is "auto"; say what to assume with --assume 100k/s']
    second = _Seconds(resource.period_ns)
    of = f"{second.write(made.reserved)} of {second.write(made.capacity)} tokens a second are reserved"
    if made.feasible:
        return [f"{resource.name}: every reservation can be met ({of})"]
    lines = [f"{resource.name}: {len(made.shortages)} shortage{'s' * (len(made.shortages) > 1)} ({of})"]
    for shortage in made.shortages:
        lines += _write_shortage(shortage, second)
    return lines


def _write_shortage(shortage: Shortage, second: _Seconds) -> list[str]:
    tenants = _list_amounts(shortage.tenants, second)
    servers = _list_amounts(shortage.servers, second)
    verb = "reserves" if len(shortage.tenants) == 1 else "reserve"
    can = "can do" if len(shortage.servers) > 1 else "can do only"
    lines = [
        f"  {tenants} {verb} {second.write(shortage.required)}/s, but {servers} {can} "
        f"{second.write(shortage.capacity)}/s: {second.write(shortage.missing)}/s too much",
        "  any one of these is enough:",
    ]
    return lines + [f"    - {_write_remedy(remedy, second)}" for remedy in shortage.remedies]


def _list_amounts(amounts: Any, second: _Seconds) -> str:
    if len(amounts) == 1:
        return str(next(iter(amounts)))
    names = [f"{name} ({second.write(amount)}/s)" for name, amount in list(amounts.items())[:NAMES_MAX]]
    hidden = len(amounts) - len(names)
    return ", ".join(names) + (f" and {hidden:,} more" if hidden else "")


def _write_remedy(remedy: Remedy, second: _Seconds) -> str:
    said = [_write_change(change, second) for change in remedy[:NAMES_MAX]]
    hidden = len(remedy) - len(said)
    return ", and ".join(said) + (f", and {hidden:,} more such changes (see --json)" if hidden else "")


def _write_change(change: Change, second: _Seconds) -> str:
    if change.what == "placement":
        return f"let {change.tenant} use server {change.server} too (put its data there)"
    assert change.before is not None and change.value is not None
    before, value = second.write(change.before), second.write(change.value)
    if change.what == "capacity":
        return f"raise the capacity of {change.server} from {before}/s to {value}/s"
    return f"lower the reservation of {change.tenant} from {before}/s to {value}/s"


class _Seconds:
    """Tokens of a period, as tokens a second."""

    def __init__(self, period_ns: int) -> None:
        self._part = Fraction(10**9, period_ns)

    def write(self, tokens: int) -> str:
        rate = tokens * self._part
        return f"{int(rate):,}" if rate.denominator == 1 else f"{float(rate):,.3g}"


def _describe(found: list[tuple[RatePolicy | PoolPolicy, Plan | None]]) -> dict[str, Any]:
    import msgspec

    resources = {}
    for resource, made in found:
        resources[resource.name] = {
            "kind": resource.kind,
            "period_ns": resource.period_ns,
            "feasible": made.feasible if made else None,
            **(msgspec.to_builtins(made) if made else {}),
        }
    feasible = all(row["feasible"] is not False for row in resources.values())
    return {"feasible": feasible, "resources": resources}
