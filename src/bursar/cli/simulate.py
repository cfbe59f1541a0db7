"""`bursar simulate POLICY`: what would my tenants get?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

if TYPE_CHECKING:
    from bursar.policy import Policy, RatePolicy

MULTIPLE_MAX = 100.0


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(simulate)


def simulate(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="The policy file.", show_default=False)],
    resource: Annotated[
        str | None, typer.Option(help="Which resource of kind rate; the only one if left out.")
    ] = None,
    demand: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Given or recorded demand: tenant,server,rate[,start,end]."),
    ] = None,
    mix: Annotated[str, typer.Option(help="Demand to draw: mixed, zipf, ycsb, bursts or even.")] = "mixed",
    multiple: Annotated[float, typer.Option(help="Drawn demand, over what each tenant is promised.")] = 1.5,
    seed: Annotated[int, typer.Option(help="For what is drawn.")] = 1,
    assume: Annotated[
        str | None, typer.Option(metavar="RATE", help='What a server of capacity "auto" can do: 100k/s.')
    ] = None,
    out: Annotated[Path, typer.Option(help="The report.")] = Path("simulation.html"),
    one_more: Annotated[
        bool, typer.Option("--one-more/--no-one-more", help="Also with one more server.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Simulate one period of a rate, request by request, and say who gets what.

    Demand is read from a CSV file or drawn; it is served with the allocation and the scheduler
    of the live servers. Writes a report with pictures.

    Example: bursar simulate examples/policy.toml --mix bursts --multiple 2
    """
    from bursar.cli.plan import read_assumed
    from bursar.policy import load

    if not 0 < multiple <= MULTIPLE_MAX:
        raise UsageError(f"--multiple is above 0 and at most {MULTIPLE_MAX:g}, not {multiple:g}")
    chosen = _choose(load(policy), resource)
    assumed = read_assumed(assume)

    from bursar.simulate.demand import draw_flows, read_flows
    from bursar.simulate.outcome import simulate as run
    from bursar.simulate.outcome import simulate_one_more
    from bursar.simulate.report import tell, write_report
    from bursar.simulate.simulation import read_terms

    terms = read_terms(chosen, assumed)
    flows = read_flows(demand, chosen) if demand else draw_flows(chosen, mix, multiple, seed)
    told = f"demand from {demand}" if demand else f"demand drawn: {mix}, {multiple:g} times, seed {seed}"
    outcome = run(terms, flows, seed)
    more = simulate_one_more(terms, flows, seed) if one_more else None
    _write_file(out, write_report(chosen.name, told, outcome, more))
    if as_json:
        found = {"resource": chosen.name, "demand": told, "report": str(out), **outcome.summarize()}
        found["one_more_server"] = more.summarize() if more else None
        typer.echo(json.dumps({**found, "tenant": outcome.list_worst(None)}, indent=2))
        return
    typer.echo("\n".join([f"{chosen.name}: {told}.", *tell(outcome, more), f"The report is in {out}."]))


def _choose(policy: Policy, name: str | None) -> RatePolicy:
    from bursar.policy.values import RatePolicy

    if name is not None:
        found = policy.resource(name)
        if not isinstance(found, RatePolicy):
            raise UsageError(f"{name} is of kind {found.kind}; resources of kind rate are simulated")
        return found
    rates = [found for found in policy.resources.values() if isinstance(found, RatePolicy)]
    if len(rates) != 1:
        listed = ", ".join(found.name for found in rates) or "none"
        raise UsageError(f"say which resource of kind rate with --resource; there is {listed}")
    return rates[0]


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; give another with --out") from error
