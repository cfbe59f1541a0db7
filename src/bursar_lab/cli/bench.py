"""`bursar bench NAME`: bursar beside its peers or its floor, measured in one run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bursar.cli.exits import EXIT_CODES

BENCHMARKS = {
    "acquire": "bursar_lab.benchmarks.acquire:run",
    "allocation": "bursar_lab.benchmarks.allocation:run",
    "asgi": "bursar_lab.benchmarks.asgi:run",
    "claims": "bursar_lab.benchmarks.claims:run",
    "claims-waiting": "bursar_lab.benchmarks.waiting:run",
    "controller": "bursar_lab.benchmarks.controller:run",
    "envoy": "bursar_lab.benchmarks.envoy:run",
    "memcached-proxy": "bursar_lab.benchmarks.memcached_proxy:run",
    "metrics": "bursar_lab.benchmarks.metrics:run",
    "network": "bursar_lab.benchmarks.network:run",
    "peers": "bursar_lab.benchmarks.peers:run",
    "quotas": "bursar_lab.benchmarks.quotas:run",
    "quotas-scale": "bursar_lab.benchmarks.quota_scale:run",
    "shares": "bursar_lab.benchmarks.shares:run",
    "stores": "bursar_lab.benchmarks.stores:run",
    "tasks": "bursar_lab.benchmarks.tasks:run",
    "tokens": "bursar_lab.benchmarks.tokens:run",
}
"""Name -> "module:function", called as function(quick: bool) -> dict (see `findings`)."""


def register(app: typer.Typer) -> None:
    app.command(epilog=EXIT_CODES)(bench)


def bench(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"One of {', '.join(BENCHMARKS)}.", show_default=False)
    ],
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds: rougher figures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure bursar beside its peers.

    Both in one run on this machine, on the same work; the ratio is what counts.

    Example: bursar bench stores --quick
    """
    from bursar_lab.cli.findings import find_function, leave_if_not_ok, print_findings

    findings = find_function(name, BENCHMARKS, "benchmark")(quick)
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
    else:
        print_findings(findings)
    leave_if_not_ok(findings)
