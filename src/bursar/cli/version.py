"""What `bursar --version` says."""

from __future__ import annotations

from importlib.metadata import version

LABELS = {
    "rate": "beta",
    "share": "beta",
    "pool": "beta",
    "quota": "beta",
    "claim": "beta",
}
"""How far each kind can be trusted. experimental: may change and may be wrong; beta: its promises
are tested, its interface may still change; stable: neither changes without notice."""


def write_version(*, verbose: bool) -> str:
    lines = [f"bursar {version('bursar')}"]
    if verbose:
        lines += [f"  {kind:<6} {label}" for kind, label in LABELS.items()]
    return "\n".join(lines)
