"""What a task needs: names, each shared or exclusive; paths, parts, counts, and templates.

"vm-7:E, host-1:S"                        two names; a name without :S or :E is exclusive
"dc-1/host-1/vm-7:E"       (paths = true) the whole path is the name; dc-1 and dc-1/host-1 shared
"vm-7#power:E"                            a part of vm-7: takes vm-7 shared, so that whoever takes
                                          the whole exclusively is kept away, and other parts not
"gpu:4"                                   four of a counted name, of which the policy says how many
                                          there are; never without a number, and no other name has one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from bursar.errors import UsageError

NAME_MAX_BYTES = 200
REQUIREMENTS_MAX = 1_000
"""Names of one task, those taken for a path or a part counted: they go into one transaction."""


NOTHING_COUNTED: Mapping[str, int] = {}


class Mode(StrEnum):
    SHARED = "S"
    EXCLUSIVE = "E"


class Requirement(NamedTuple):
    name: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.name}:{self.mode}"


Requirements = tuple[Requirement, ...]

Counts = tuple[tuple[str, int], ...]
"""Counted names, sorted, and how many of each."""


class Needs(NamedTuple):
    """All that one claim or task needs."""

    names: Requirements
    counts: Counts = ()


def conflicts(one: Requirements, other: Requirements) -> bool:
    """Whether two tasks may not hold their sets at the same time (section 2.1)."""
    modes = dict(one)
    return any(name in modes and Mode.EXCLUSIVE in (mode, modes[name]) for name, mode in other)


def parse(texts: str | Iterable[str], *, paths: bool = False) -> Requirements:
    """Read requirements, take what lies above each name shared, and sort them by name. Of two modes
    for one name the exclusive one counts. Raises UsageError."""
    modes: dict[str, Mode] = {}
    for text in _split(texts):
        name, mode = _read(text)
        for above in _above(name, paths):
            modes.setdefault(above, Mode.SHARED)
        if modes.get(name) is not Mode.EXCLUSIVE:
            modes[name] = mode
        if len(modes) > REQUIREMENTS_MAX:
            raise UsageError(
                f"more than {REQUIREMENTS_MAX} names in one claim: split it, or claim what contains them"
            )
    if not modes:
        raise UsageError('a claim needs at least one name, such as "vm-7:E"')
    return tuple(Requirement(name, modes[name]) for name in sorted(modes))


def parse_needs(
    texts: str | Iterable[str], *, paths: bool = False, counted: Mapping[str, int] = NOTHING_COUNTED
) -> Needs:
    """As `parse`, with the names that the policy counts. Raises UsageError."""
    plain: list[str] = []
    counts: dict[str, int] = {}
    for text in _split(texts):
        name, _, number = text.rpartition(":")
        if name and number.isascii() and number.isdigit():
            _check_counted(text, name, int(number), counted)
            counts[name] = counts.get(name, 0) + int(number)
        else:
            plain.append(text)
    names = parse(plain, paths=paths) if plain or not counts else ()
    for name, _ in names:
        if name in counted:
            raise UsageError(f'{name!r} is counted ({counted[name]} in all): write how many, as "{name}:1"')
    return Needs(names, tuple(sorted(counts.items())))


def _check_counted(text: str, name: str, number: int, counted: Mapping[str, int]) -> None:
    if name not in counted:
        listed = ", ".join(counted) or "none"
        raise UsageError(
            f"requirement {text[:60]!r}: {name[:60]!r} is not counted (the policy counts {listed}): end it "
            'with ":S" (shared) or ":E" (exclusive), or add it to the table "counted" of the policy'
        )
    if number < 1:
        raise UsageError(f"requirement {text[:60]!r}: claim at least one")


def _split(texts: str | Iterable[str]) -> Iterable[str]:
    if not isinstance(texts, Iterable):
        raise UsageError(f'names are texts such as "vm-7:E", not {texts!r:.60}')
    for text in (texts,) if isinstance(texts, str) else texts:
        if not isinstance(text, str):
            raise UsageError(f'a requirement is text such as "vm-7:E", not {text!r:.60}')
        yield from (item.strip() for item in text.split(","))


def _read(text: str) -> Requirement:
    name, colon, mode = text.rpartition(":")
    if not colon:
        name, mode = text, "E"
    if mode not in ("S", "E"):
        raise UsageError(f'requirement {text[:60]!r}: end it with ":S" (shared) or ":E" (exclusive)')
    check_claim_name(name)
    return Requirement(name, Mode(mode))


def check_claim_name(name: str) -> None:
    """Raises UsageError for a name that could not stand in a store, a log line or a list."""
    if not name or not name.isprintable() or "," in name:
        raise UsageError(
            f"claimed name {name[:60]!r}: use printable characters other than a comma, at least one"
        )
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_MAX_BYTES:
        raise UsageError(f"claimed name {name[:40]!r}... has {size} bytes, at most {NAME_MAX_BYTES} go")
    if any(not segment for segment in re.split("[/#]", name)) or name.count("#") > 1:
        raise UsageError(f"claimed name {name[:60]!r}: write path/to/name or name#part, no empty segment")


def _above(name: str, paths: bool) -> Iterable[str]:
    """The whole of a part, and with paths every ancestor."""
    whole, mark, _ = name.partition("#")
    if mark:
        yield whole
    if paths:
        segments = whole.split("/")
        for depth in range(1, len(segments)):
            yield "/".join(segments[:depth])


Lookup = Callable[[str, str], str]
"""(relation, name) -> name: the host of this VM."""

_FIELD = re.compile(r"\{([^{}]*)\}")
_TERM = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\(\s*(.*?)\s*\))?\s*\Z")


class Template:
    """What an operation needs, with names still to be looked up (section 3.2.1):

    power_on = Template("{dc(vm)}:S, {cluster(vm)}:S, {host(vm)}:S, {vm}:E")
    power_on.fill(inventory.lookup, vm="vm-1")
    """

    def __init__(self, text: str) -> None:
        self.text = text
        for term in _FIELD.findall(text):
            _parse_term(term)

    def fill(self, lookup: Lookup, **names: str) -> str:
        """The requirements as text. Raises UsageError for a name that is not given."""
        return _FIELD.sub(lambda found: _resolve(found.group(1), lookup, names), self.text)


def _parse_term(term: str) -> tuple[str, str | None]:
    found = _TERM.match(term)
    if found is None:
        raise UsageError(f"template term {{{term}}}: write {{name}} or {{relation(name)}}")
    relation, inner = found.groups()
    if inner is not None:
        _parse_term(inner)
    return relation, inner


def _resolve(term: str, lookup: Lookup, names: Mapping[str, str]) -> str:
    relation, inner = _parse_term(term)
    if inner is not None:
        return _check_filled(lookup(relation, _resolve(inner, lookup, names)))
    if relation not in names:
        raise UsageError(f"the template needs {relation!r}: fill(lookup, {relation}=...)")
    return _check_filled(names[relation])


def _check_filled(name: str) -> str:
    """What is filled in is one name: it cannot add others, nor say how they are taken."""
    if "," in name or ":" in name:
        raise UsageError(f"{name[:60]!r} cannot be filled into a template: a name has no comma or colon")
    return name
