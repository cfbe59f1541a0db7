"""The lock names what is installed with `bursar[all]`, and the list of it (SBOM) names the same."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()


def read_lock() -> list[tuple[Requirement, int]]:
    """Each pinned package, and how many hashes it has."""
    pinned: list[tuple[Requirement, int]] = []
    for entry in re.split(r"\n(?=[a-z0-9])", re.sub(r"(?m)^\s*#.*\n", "", LOCK)):
        first, *hashes = re.split(r"\s+--hash=sha256:", entry.replace("\\\n", "\n"))
        assert all(re.fullmatch(r"[0-9a-f]{64}\s*", found) for found in hashes), entry[:100]
        pinned.append((Requirement(first.strip()), len(hashes)))
    return pinned


def list_requirements(extra: str) -> Iterator[Requirement]:
    for text in PROJECT["optional-dependencies"][extra]:
        wanted = Requirement(text)
        if wanted.name == "bursar":
            for each in wanted.extras:
                yield from list_requirements(each)
        else:
            yield wanted


def test_the_lock_pins_every_dependency_of_all_to_a_version_that_is_allowed() -> None:
    pinned: dict[str, list[str]] = {}
    for requirement, _ in read_lock():
        pinned.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier)[2:])
    for wanted in [*map(Requirement, PROJECT["dependencies"]), *list_requirements("all")]:
        found = pinned.get(canonicalize_name(wanted.name), [])
        assert found, f"{wanted} is not in requirements.lock: run `make lock`"
        assert all(wanted.specifier.contains(version) for version in found), f"{wanted}: run `make lock`"


def test_every_pin_is_exact_and_has_a_hash_and_no_address_is_given_away() -> None:
    for requirement, hashes in read_lock():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)) and hashes, requirement
    assert not re.search(r"://|index-url|find-links|trusted-host|@ ", LOCK)


def test_the_list_of_components_is_what_the_lock_installs() -> None:
    listed = json.loads((ROOT / "sbom.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX" and listed["metadata"]["component"]["name"] == "bursar"
    components = {canonicalize_name(each["name"]): each["version"] for each in listed["components"]}
    # Where two versions are pinned, by Python's version, the list has the one that was installed.
    pins: dict[str, set[str]] = {}
    for requirement, _ in read_lock():
        pins.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier)[2:])
    assert components and all(version in pins.get(name, ()) for name, version in components.items())
    everywhere = {canonicalize_name(found.name) for found, _ in read_lock() if found.marker is None}
    assert everywhere <= set(components), "run `make lock`"
