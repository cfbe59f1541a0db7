"""Finding the Bursar of a program: `module:app`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from bursar.errors import UsageError
from bursar.runtime.client import Bursar


def find_app(where: str) -> Bursar:
    """Raises UsageError."""
    module_name, colon, attribute = where.partition(":")
    if not colon:
        raise UsageError(f"{where!r}: write module:app, such as shop.tasks:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{where!r} cannot be loaded: {error}") from error
    if not isinstance(found, Bursar):
        raise UsageError(f'{where!r} is no Bursar: write {attribute} = bursar.Bursar("policy.toml")')
    if not found.functions.names:
        raise UsageError(f"{where!r} has no tasks: declare some with @{attribute}.task(needs=...)")
    return found
