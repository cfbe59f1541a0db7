"""`bursar experiment NAME`: a paper's experiment, run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bursar.cli.exits import EXIT_CODES
from bursar.errors import UsageError

EXPERIMENTS = {
    "door-clients": "bursar_lab.experiments.door:clients",
    "fleet-nodes": "bursar_lab.experiments.fleet:nodes",
    "fleet-rolling": "bursar_lab.experiments.fleet:rolling",
    "fleet-tenants": "bursar_lab.experiments.fleet:tenants",
    "claims-rectangular": "bursar_lab.experiments.claims:rectangular",
    "claims-hierarchical": "bursar_lab.experiments.claims:hierarchical",
    "claims-learned": "bursar_lab.experiments.claims.learned:learned",
    "claims-availability": "bursar_lab.experiments.claims:availability",
    "claims-servers": "bursar_lab.experiments.claims.on_servers:on_servers",
    "claims-scalability": "bursar_lab.experiments.claims:scalability",
    "claims-storm": "bursar_lab.experiments.claims.storm:storm",
    "envoy-fleet": "bursar_lab.experiments.envoy:fleet",
    "envoy-moving": "bursar_lab.experiments.envoy:moving",
    "store-histories": "bursar_lab.experiments.histories:run",
    "mixed-versions": "bursar_lab.experiments.versions:mixed",
    "memcached-clients": "bursar_lab.experiments.memcached:clients",
    "memcached-conformance": "bursar_lab.experiments.memcached:conformance",
    "pools-1a": "bursar_lab.experiments.pools.simulated:one_a",
    "pools-1b": "bursar_lab.experiments.pools.simulated:one_b",
    "pools-1c": "bursar_lab.experiments.pools.simulated:one_c",
    "pools-2a": "bursar_lab.experiments.pools.simulated:two_a",
    "pools-2b": "bursar_lab.experiments.pools.simulated:two_b",
    "pools-2c": "bursar_lab.experiments.pools.simulated:two_c",
    "pools-3": "bursar_lab.experiments.pools.simulated:three",
    "pools-4": "bursar_lab.experiments.pools.simulated:four",
    "pools-nodes": "bursar_lab.experiments.pools.nodes:several",
    "pools-live-1": "bursar_lab.experiments.pools.live:one",
    "pools-live-2a": "bursar_lab.experiments.pools.behind_card:two_a",
    "pools-live-2b": "bursar_lab.experiments.pools.behind_card:two_b",
    "pools-live-3": "bursar_lab.experiments.pools.behind_card:three",
    "pools-live-4": "bursar_lab.experiments.pools.behind_card:four",
    "pools-live-cost": "bursar_lab.experiments.pools.live:cost",
    "pools-live-kill": "bursar_lab.experiments.pools.live:kill",
    "pools-live-mpi": "bursar_lab.experiments.pools.mpi:programs",
    "pools-live-programs": "bursar_lab.experiments.pools.processes:three_programs",
    "pools-live-processors": "bursar_lab.experiments.pools.live:processors",
    "quotas-cost": "bursar_lab.experiments.quotas:cost",
    "quotas-forms": "bursar_lab.experiments.quotas:forms",
    "quotas-gateway": "bursar_lab.experiments.quotas:gateway",
    "quotas-live": "bursar_lab.experiments.quotas:live",
    "quotas-remaining": "bursar_lab.experiments.quotas:remaining",
    "quotas-response": "bursar_lab.experiments.quotas:response",
    "quotas-scale": "bursar_lab.experiments.quotas:scale",
    "quotas-sizes": "bursar_lab.experiments.quotas:sizes",
    "rates-1": "bursar_lab.experiments.rates.qos:one",
    "rates-2": "bursar_lab.experiments.rates.qos:two",
    "rates-3": "bursar_lab.experiments.rates_live:three",
    "rates-4": "bursar_lab.experiments.rates_live:four",
    "rates-4-many": "bursar_lab.experiments.rates_live:four_many",
    "rates-5": "bursar_lab.experiments.rates_live:five",
    "rates-auto": "bursar_lab.experiments.rates_auto:auto",
    "rates-costs": "bursar_lab.experiments.rates_surface:costs",
    "rates-pacing": "bursar_lab.experiments.rates_surface:pacing",
    "rates-interval": "bursar_lab.experiments.rates_live:intervals",
    "rates-moving": "bursar_lab.experiments.rates_live:moving",
    "rates-leader": "bursar_lab.experiments.fleet:leader",
    "rates-zones": "bursar_lab.experiments.rates_zones:zones",
    "rates-parallel": "bursar_lab.experiments.rates.controller:parallel",
    "rates-approximation": "bursar_lab.experiments.rates.controller:approximation",
    "rates-bqueue": "bursar_lab.experiments.rates.controller:bqueue",
    "shares-allocation": "bursar_lab.experiments.shares:allocation",
    "shares-redistribution": "bursar_lab.experiments.shares:redistribution",
    "shares-recompensation": "bursar_lab.experiments.shares:recompensation",
    "shares-overhead": "bursar_lab.benchmarks.shares:overhead",
    "shares-frequency": "bursar_lab.experiments.shares:frequency",
    "shares-lending": "bursar_lab.experiments.shares:lending",
    "shares-payback": "bursar_lab.experiments.shares:payback",
    "shares-blkio": "bursar_lab.experiments.shares:blkio",
    "web-workers": "bursar_lab.experiments.web:workers",
}
"""Name -> "module:function", called as function(out: Path, quick: bool) -> dict (see `findings`).
The function writes its figures into `out`; the dict it returns is written beside them here."""


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(experiment)


def experiment(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help=f"One of {', '.join(EXPERIMENTS)}.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see it run.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Where figures and NAME.json go.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Those of the five papers that were not done before.")
    ] = False,
) -> None:
    """Run a paper's experiment again, or those of all five papers.

    Figures as PNG and numbers as JSON in the --out directory, a table beside the paper's here. With --all a
    run that was broken off goes on where it was.

    Example: bursar experiment rates-1 --quick --out results
    """
    from bursar_lab.cli.findings import find_function, leave_if_not_ok, print_findings

    if every != (name is None):
        raise UsageError("say which experiment, or --all for those of the five papers")
    run = _run_all if name is None else find_function(name, EXPERIMENTS, "experiment")
    make_folder(out)
    findings = run(out, quick)
    text = json.dumps(findings, indent=2)
    written = out if name is None else out / f"{name}.json"
    if name is not None:
        written.write_text(text + "\n")
    if as_json:
        typer.echo(text)
    else:
        print_findings(findings)
        typer.echo(f"numbers in {written}")
    leave_if_not_ok(findings)


def _run_all(out: Path, quick: bool) -> dict[str, Any]:
    from bursar_lab.experiments.papers import run_all

    return run_all(out, quick, lambda line: typer.echo(line, err=True))


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}; give another with --out") from error
