"""From a file to a policy, or to the list of everything that is wrong with it.

What is read is bounded before it is read: a file by its size, text by its nesting. Whatever the
bytes, the outcome is a Policy or a PolicyError.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

import msgspec

from bursar.errors import PolicyError, Problem
from bursar.policy.building import BUILDERS, build_alert, build_daemon, build_descriptors, build_pools
from bursar.policy.checks import CHECKS, check_alert, check_daemon, check_descriptors, check_envoy
from bursar.policy.keys import DAEMON, POLICY
from bursar.policy.outline import DEPTH_MAX, Lines, find_key, find_lines, find_too_deep
from bursar.policy.shapes import Complaint, Path, Place, is_read
from bursar.policy.values import Policy, ResourcePolicy, Table
from bursar.units import write_size

FILE_MAX_BYTES = 16 * 1024 * 1024
"""Room for 100,000 tenants."""
PROBLEMS_MAX = 100
WHOLE = "(whole file)"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_AT = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$")


def load(path: str | os.PathLike[str]) -> Policy:
    """Read a policy file. Raises PolicyError, which lists every problem."""
    source = os.fspath(path)
    return parse(_decode(_read_bytes(source), source), source)


def parse(text: str, source: str = "policy") -> Policy:
    """Read a policy from TOML text; `source` is what messages call it. Raises PolicyError."""
    table = read_table(text, source)
    complaints: list[Complaint] = []
    policy = _build(table, source, complaints)
    if policy is None:
        raise PolicyError(source, _number(complaints, find_lines(text)))
    return msgspec.structs.replace(policy, text=text)


def settle(policy: Policy | None, settings: Mapping[str, Any], store: str | None = None) -> Policy:
    """A policy with settings of the node's own, written as in [daemon], in place of those of its file;
    without a policy they are all there is. Raises PolicyError."""
    source = "the node's settings"
    before = _read_daemon(policy)
    complaints: list[Complaint] = []
    place = Place(complaints)
    url = store or (policy.store if policy is not None else "memory://")
    POLICY.keys["store"].shape.read(url, place.at("store"))
    found = DAEMON.read({**before, **settings}, place.at("daemon"))
    if not complaints:
        check_daemon(found, url, place.at("daemon"))
    if complaints:
        raise PolicyError(source, _number(complaints, {}))
    daemon = build_daemon(found)
    if policy is None:
        return Policy(resources=Table(), store=url, daemon=daemon, source=source)
    return msgspec.structs.replace(policy, store=url, daemon=daemon)


def _read_daemon(policy: Policy | None) -> dict[str, Any]:
    """[daemon] as it is written in the policy's text."""
    if policy is None or not policy.text:
        return {}
    return dict(read_table(policy.text, policy.source).get("daemon", {}))


def read_table(text: str, source: str = "policy") -> dict[str, Any]:
    """What TOML text says, not checked. Raises PolicyError if it is not TOML."""
    if len(text) > FILE_MAX_BYTES:
        raise _too_large(source, len(text))
    return _parse_toml(text, source)


def build(table: Mapping[str, Any], source: str = "policy") -> Policy:
    """A policy from the table that TOML would have given. Raises PolicyError."""
    complaints: list[Complaint] = []
    policy = _build(dict(table), source, complaints)
    if policy is None:
        raise PolicyError(source, _number(complaints, {}))
    return policy


def _build(table: dict[str, Any], source: str, complaints: list[Complaint]) -> Policy | None:
    place = Place(complaints)
    found = POLICY.read(table, place)
    resources = found["resource"] or {}
    for name, resource in resources.items():
        if is_read(resource):
            raw, values = resource
            CHECKS[raw["kind"]](raw, values, place.at("resource", name))
            if raw["kind"] == "pool":
                _check_node_names(name, values, resources, place.at("resource", name, "nodes"))
    if is_read(found["daemon"]):
        check_daemon(found["daemon"], found["store"], place.at("daemon"))
    if is_read(found["daemon"]) and found["daemon"]["envoy"]:
        check_envoy(resources, place.at("resource"))
    check_descriptors(found["descriptor"], resources, place.at("descriptor"))
    if is_read(found["alert"]):
        check_alert(found["alert"], place.at("alert"))
    if complaints:
        return None
    built: dict[str, ResourcePolicy] = {}
    for name, (raw, values) in resources.items():
        if raw["kind"] == "pool":
            built |= build_pools(name, values)
        else:
            built[name] = BUILDERS[raw["kind"]](name, values)
    return Policy(
        store=found["store"],
        daemon=build_daemon(found["daemon"]),
        alert=build_alert(found["alert"]),
        descriptors=build_descriptors(found["descriptor"]),
        resources=Table(built),
        source=source,
    )


def _check_node_names(name: str, values: Any, resources: Mapping[str, Any], place: Place) -> None:
    """Each node is a resource of its own."""
    for node in values["nodes"] or {}:
        if f"{name}.{node}" in resources:
            place.at(node).complain(
                f'it is the resource "{name}.{node}", of which there is one', "rename one"
            )


def _read_bytes(source: str) -> bytes:
    """The file's bytes, its size known before any is read."""
    try:
        with open(source, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _whole_file(source, "it is not a file of bytes", "give the path of a policy file")
            if status.st_size > FILE_MAX_BYTES:
                raise _too_large(source, status.st_size)
            found = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise _whole_file(source, f"it cannot be read: {what}", "give the path of a policy file") from error
    except ValueError as error:  # a path with a NUL in it
        raise _whole_file(source, f"it cannot be read: {error}", "give the path of a policy file") from error
    if len(found) > FILE_MAX_BYTES:
        raise _too_large(source, len(found))
    return found


def _open_at_once(path: str, flags: int) -> int:
    """A pipe that nobody writes to would otherwise be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _decode(found: bytes, source: str) -> str:
    try:
        return found.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        what = f"byte {error.start} (0x{found[error.start]:02x}) is not UTF-8 text"
        raise _whole_file(source, what, "save the file as UTF-8", line) from error


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    deep = find_too_deep(text)
    if deep is not None:
        what = f"tables or lists are nested more than {DEPTH_MAX} deep"
        remedy = "write resources with tenants in them, as in docs/policy.md; nothing goes deeper"
        raise _whole_file(source, what, remedy, deep)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number of too many digits
        raise _syntax_error(source, str(error), text) from error


def _syntax_error(source: str, message: str, text: str) -> PolicyError:
    at = _AT.search(message)
    line = int(at[1]) if at and at[1] else text.count("\n") + 1
    column = f", at column {at[2]}" if at and at[2] else ""
    plain = _AT.sub("", message)
    if "digits" in message:
        return _whole_file(source, "a number has thousands of digits", "write a number below 2^63")
    if any(sign in message for sign in ("overwrite", "twice", "Duplicate", "Cannot mutate")):
        path, line = find_key(text, line)
        problem = Problem(write_path(path), "it is there twice", _ONCE, line)
        return PolicyError(source, [problem])
    unquoted = "Invalid value" in message or "after a statement" in message
    return _whole_file(source, f"not TOML{column}: {plain}", _QUOTES if unquoted else _PAIRS, line)


_ONCE = "a key, tenant or table stands once in a file: remove one of the two, or rename it"
_QUOTES = 'put texts, and quantities with a unit, in quotes: limit = "60k/s"'
_PAIRS = "look just before this place for a missing quote, bracket, '=' or comma"


def _number(complaints: list[Complaint], lines: Lines) -> list[Problem]:
    """Problems in the order of the file, each with the line of the nearest key that is written."""
    problems = [
        Problem(write_path(path), what, remedy, _find_line(path, lines)) for path, what, remedy in complaints
    ]
    problems.sort(key=lambda problem: problem.line or 0)
    more = len(problems) - PROBLEMS_MAX
    if more > 0:
        last = Problem(WHOLE, f"{more} more problems of this sort", "mend those above and check again")
        problems[PROBLEMS_MAX:] = [last]
    return problems


def _find_line(path: Path, lines: Lines) -> int | None:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path) if path else None


def write_path(path: Path) -> str:
    """A key path as one writes it in TOML: resource.llm.tenant."acme/search"."""
    parts = [_shorten(part) if _BARE_KEY.fullmatch(part) else f'"{_shorten(part)}"' for part in path]
    return ".".join(parts) or WHOLE


def _shorten(name: str) -> str:
    printable = name.encode("unicode_escape").decode() if not name.isprintable() else name
    return printable if len(printable) <= 60 else f"{printable[:57]}..."


def _too_large(source: str, size: int) -> PolicyError:
    most = write_size(FILE_MAX_BYTES)
    what = f"it has {size} bytes, more than {most}; nothing of it was read"
    return _whole_file(source, what, "give a policy file; one of that size is none")


def _whole_file(source: str, what: str, remedy: str, line: int | None = None) -> PolicyError:
    return PolicyError(str(FilePath(source)), [Problem(WHOLE, what, remedy, line)])
