"""Which control groups there are: tenants are their paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from bursar.errors import UsageError
from bursar.integrations.blkio.groups import Controller
from bursar.policy.values import find_template

GROUPS_MAX = 10_000
"""More than this are not looked at: each costs a few files in every interval."""


class Discovery:
    """The groups that are listed, and those below a template: "docker/*" covers what is below docker.

    In version 1 a group's limit holds for its own processes and for no group inside of it, so each is a
    tenant, however deep. In version 2 it holds for all that is inside, so only those directly below are."""

    def __init__(self, controller: Controller, listed: Iterable[str], templates: Iterable[str]) -> None:
        self._controller = controller
        self._listed = [check_path(name) for name in listed]
        self._templates = {check_path(name): None for name in templates}

    def look(self) -> dict[str, str]:
        """Path by tenant, which are the same."""
        found = dict.fromkeys(self._listed)
        for template in self._templates:
            for path in self._below(template.removesuffix("*").strip("/")):
                if find_template(self._templates, path) == template and len(found) < GROUPS_MAX:
                    found.setdefault(path)
        return {path: path for path in found}

    def _below(self, parent: str) -> Iterator[str]:
        root = self._controller.root
        for folder, names, _ in os.walk(root / parent):
            path = Path(folder).relative_to(root)
            yield from (str(path / name) for name in sorted(names))
            if self._controller.version == 2:
                return


def check_path(name: str) -> str:
    """A tenant of a disk is the path of its group. Raises UsageError."""
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise UsageError(f"tenant {name!r}: here a tenant is the path of a control group below the root")
    return name
