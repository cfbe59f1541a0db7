"""What a new text of the policy would change, and whether it can be done while everything runs.

`propose` says it beforehand, `apply` does it. What cannot be done is refused before anything is
written, so that the nodes never see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bursar.errors import PolicyError, UsageError
from bursar.fleet.documents import SCHEMA, Document, read_document, read_head, write_document
from bursar.fleet.layout import NodeRecord, Version, list_nodes
from bursar.fleet.tenants import read_index, read_shard, read_terms
from bursar.policy import Policy, ResourcePolicy, parse
from bursar.policy.live import LIVE, RESTART, WHY_NOT
from bursar.policy.reading import read_table
from bursar.world import Store

NAMED_MAX = 5


class ImpossibleChangeError(UsageError):
    """The policy is right, and cannot be taken over by what runs now. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `key` is the path as in the file; `why` is set if it cannot be done live."""

    key: str
    before: str
    after: str
    why: str = ""

    @property
    def possible(self) -> bool:
        return not self.why

    def __str__(self) -> str:
        if not self.before:
            line = f"+ {self.key} = {self.after}"
        elif not self.after:
            line = f"- {self.key} = {self.before}"
        else:
            line = f"~ {self.key}: {self.before} -> {self.after}"
        return line if self.possible else f"{line}   cannot be changed: {self.why}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a text would do. `expected` is the version that it would follow, 0 for none."""

    policy: Policy
    expected: int
    changes: tuple[Change, ...]
    problems: tuple[str, ...]

    @property
    def possible(self) -> bool:
        return not self.problems and all(change.possible for change in self.changes)


async def propose(store: Store, text: str, source: str = "policy") -> Proposal:
    """Raises PolicyError for a text that is wrong."""
    policy = parse(text, source)
    await store.sync()
    document = await read_document(store)
    up = await list_nodes(store)
    before = _understand(document)
    changes = tuple(compare(before, policy, running=bool(up)))
    problems = [*_find_old_builds(up), *await _find_clashes(store, policy)]
    return Proposal(policy, document.version.number if document else 0, changes, tuple(problems))


def _understand(document: Document | None) -> Policy | None:
    try:
        return document.policy if document is not None else None
    except PolicyError as error:
        assert document is not None
        raise UsageError(
            f"version {document.version.number} in the store was written by another build of bursar, and "
            f"this one does not understand it: use that build ({error})"
        ) from error


async def apply(
    store: Store,
    text: str,
    *,
    by: str,
    at_ns: int,
    origin: str = "apply",
    note: str = "",
    expected: int | None = None,
) -> Version:
    """Make this text the policy in force. Raises PolicyError, ImpossibleChangeError, ConflictError;
    then nothing was changed."""
    proposal = await propose(store, text)
    if not proposal.possible:
        raise ImpossibleChangeError("; ".join(_explain(proposal)))
    base = proposal.expected if expected is None else expected
    return await write_document(store, text, by=by, at_ns=at_ns, origin=origin, note=note, expected=base)


async def rollback(store: Store, number: int, *, by: str, at_ns: int) -> Version:
    """Make the text of an earlier version the policy in force again, as a new version."""
    document = await read_document(store, number)
    assert document is not None, "a version was named"
    return await apply(store, document.text, by=by, at_ns=at_ns, note=f"back to version {number}")


def _explain(proposal: Proposal) -> list[str]:
    return [*proposal.problems, *(str(change) for change in proposal.changes if not change.possible)]


def _find_old_builds(up: list[NodeRecord]) -> Iterator[str]:
    """Nodes that could not read what this build writes."""
    for node in up:
        if node.schema < SCHEMA:
            yield (
                f"node {node.name} runs bursar {node.build}, which reads policies of form {node.schema}, and "
                f"this one is of form {SCHEMA}: upgrade the node first, or apply with its build"
            )


async def _find_clashes(store: Store, policy: Policy) -> list[str]:
    """What the text would do to tenants that were set by themselves: one belongs to the text or was set,
    not both; it must have a resource, and its terms must be right beside the new text."""
    found = await read_head(store)
    problems: list[str] = []
    for name in found[0].tenants if found is not None else ():
        index = await read_index(store, name)
        terms: dict[str, Any] = {}
        for shard in (shard for shard, size in enumerate(index.sizes) if size):
            terms |= await read_shard(store, name, shard)
        if terms:
            problems += _find_clashes_of(policy, name, terms)
    return problems


def _find_clashes_of(policy: Policy, name: str, terms: Mapping[str, Any]) -> list[str]:
    if name not in policy.resources:
        return [f"{name} has {len(terms)} tenants that were set by themselves: remove them first"]
    both = [tenant for tenant in terms if tenant in policy.resources[name].tenants]
    if both:
        were = "was" if len(both) == 1 else "were"
        return [
            f"{', '.join(both[:NAMED_MAX])} of {name} {were} set by `bursar tenant set`: leave out of the "
            "file, or `bursar tenant remove` first"
        ]
    try:
        read_terms(read_table(policy.text, policy.source), name, terms, terms)
    except PolicyError as error:
        return [f"tenants that were set by themselves do not go with it: {error}"]
    return []


# -- comparing


def compare(before: Policy | None, after: Policy, *, running: bool = True) -> Iterator[Change]:
    """Every difference between the two, in the order of the file. `running`: nodes would have to take
    it over; otherwise nothing is impossible."""
    old: Mapping[str, ResourcePolicy] = before.resources if before is not None else {}
    for name in old:
        if name not in after.resources:
            yield Change(f"resource.{name}", old[name].kind, "")
    for name, policy in after.resources.items():
        if name not in old:
            count = len(policy.tenants)
            yield Change(f"resource.{name}", "", f"{policy.kind}, {count} tenant{'' if count == 1 else 's'}")
        elif old[name].kind != policy.kind:
            why = "a resource keeps its kind: give the new one another name" if running else ""
            yield Change(f"resource.{name}.kind", old[name].kind, policy.kind, why)
        else:
            yield from _compare_resource(old[name], policy, running)
    if before is not None and before.alert != after.alert:
        yield Change("alert", write(before.alert), write(after.alert))
    if before is not None:
        yield from _compare_tables("descriptor", before.descriptors, after.descriptors, "")


def _compare_resource(before: ResourcePolicy, after: ResourcePolicy, running: bool) -> Iterator[Change]:
    at = f"resource.{before.name}"
    for field in before.__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if old == new:
            continue
        live = not running or field in LIVE[before.kind]
        why = "" if live else WHY_NOT.get((before.kind, field), RESTART)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _compare_tables(f"{at}.{FILE_KEYS.get(field, field)}", old, new, why)
        else:
            key = FILE_KEYS.get(field, field.removesuffix("_ns"))
            yield Change(f"{at}.{key}", write(old, field), write(new, field), why)


FILE_KEYS = {"tenants": "tenant", "templates": "tenant", "any_server": 'servers."*"'}
"""Where the file calls it otherwise than the values do."""


def _compare_tables(at: str, old: Mapping[str, Any], new: Mapping[str, Any], why: str) -> Iterator[Change]:
    for name in old:
        if name not in new:
            yield Change(f"{at}.{write_key(name)}", write(old[name]), "", why)
    for name, value in new.items():
        if name not in old:
            yield Change(f"{at}.{write_key(name)}", "", write(value), why)
        elif old[name] != value:
            yield from _compare_terms(f"{at}.{write_key(name)}", old[name], value, why)


def _compare_terms(at: str, old: Any, new: Any, why: str) -> Iterator[Change]:
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            yield Change(f"{at}.{field}", write(before, field), write(after, field), why)


def write_key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else f'"{name}"'


def write(value: Any, field: str = "") -> str:
    """A value for people, as the file would have it."""
    from bursar.units import write_duration

    if value is None:
        return "none"
    if field.endswith("_ns"):
        return write_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "__struct_fields__") and not _is_rate(value):
        parts = {name: getattr(value, name) for name in value.__struct_fields__}
        shown = [f"{name} = {write(part, name)}" for name, part in parts.items() if part not in (None, ())]
        return "{ " + ", ".join(shown) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_rate(value: Any) -> bool:
    from bursar.units import Rate

    return isinstance(value, Rate)
