"""The book of claims: it makes every transaction that changes who owns what.

All that safety rests on is in the store, and in what the transactions below check before they
change it; what an instance remembers (`View`) may be as stale as it likes, but must once have been
so: a version and what the node held *at that version*. So an instance can be slow, paused or dead
at any point, and several can work at once: the worst that a stale view does is a transaction that
the store refuses as a whole. A guess never enters a view: what a transaction will have made is kept
in its draft until the store has confirmed it. (Guessing the version that a transaction of one's own
would leave, and building the next one on it, records conflicting owners: another's change may have
taken that very number.)

Invariants of the store, each kept by every transaction made here:

1. *No conflict.* A name has an exclusive owner, or sharers, or neither. Who takes it exclusively
   sets its node at the version seen (so nobody else changed the owner meanwhile) and deletes its
   `S` folder if it has one (which fails while a sharer is in it). Who shares it creates its own
   node in `S` and checks the version seen, so sharers do not disturb each other. Neither is planned
   while the node, at that version, has an owner, whatever the queue says.
2. *All or nothing.* All names of a task change with its record, in one transaction.
3. *Recorded once.* Every change of a record checks its version: of two that finish, requeue or
   depose a task, one happens.
4. *Fences grow.* The phase of a name rises when an exclusive owner or a new shared phase begins and
   when an owner is removed by force; it never falls. (A shared phase may outlast a moment without
   sharers: whoever shares it next conflicts with none of those before.)
5. *No leak.* A name's owner and sharers are tasks whose record says RUNNING or DONE: the transaction
   that ends a task removes all its ownership. (Figure 4-5 of the thesis deletes step by step; a
   crash in between leaves a name owned by nobody for ever.)
6. *Counts.* What lots have of a counted name and what tasks have are together as many as its node says
   (see `lots`): a grant deletes lots, an end makes one, in the transaction that changes the record.
7. *Forgetting forgets no fence.* Names that nobody uses are removed. The folder of the names keeps
   the *floor*, the highest phase of any name removed, at which a name begins that comes back; its
   version counts the removals, and every transaction on names checks it. So a version seen before
   a removal is never taken for the same number of a node that was created after it.
8. *One claim a key.* The node of a key is created with the record of the claim that has it and removed
   with it. The claim's own id is never used again, so that whoever ends it late, by a record and a
   version that it once saw, cannot end the next claim of that key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bursar.claims.layout import Layout
from bursar.claims.lots import LOTS_A_GRANT, LotBook, Purse
from bursar.claims.model import Holding, Mark, Outcome, State, Task, encode, step
from bursar.claims.requirements import Counts, Mode
from bursar.errors import UsageError
from bursar.world import (
    NAME_MAX_BYTES,
    TRANSACTION_MAX_BYTES,
    Check,
    CheckAbsent,
    Create,
    Delete,
    Operation,
    Set,
    Stat,
)

OPERATIONS_A_NAME = 3
OPERATIONS_A_TASK = 7
"""The most that a transaction has for each name of a task, and besides: its record, mark and key, the
floor, a line for the audit."""

OPERATIONS_A_COUNT = LOTS_A_GRANT + 1
"""And for each counted name: the lots that a grant takes, and what is left of them."""

OPERATION_BYTES = 100
"""What one operation takes beside its path and data, with some room for where in a store it is kept."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The phase at which new names begin, and the version of the folder that says so."""

    version: int
    phase: int


@dataclass(slots=True)
class View:
    """What this instance last knew of a name. version None: it has no node yet. `sharers` is for the
    queue and for people; no transaction rests on it. `number`: of two reads, the one sent later."""

    version: int | None = None
    holding: Holding = field(default_factory=Holding)
    sharers: dict[str, None] = field(default_factory=dict)
    read_ns: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Heir:
    """Whom a name is reserved for: a task, its place in line, and how it needs the name."""

    id: str
    since: int
    mode: Mode


NO_HEIRS: Mapping[str, Heir] = {}


@dataclass(frozen=True, slots=True)
class Idle:
    """A node of a name that nobody owns, shares or has reserved. `created`: two nodes of one path,
    one after the other, are not the same."""

    path: str
    version: int
    created: int
    phase: int
    shared: bool


class Draft:
    """What the names will be if a transaction succeeds. Several plans of one transaction share it."""

    def __init__(self, views: dict[str, View], floor: Floor) -> None:
        self._views = views
        self.floor = floor
        self.changed: dict[str, tuple[int, Holding]] = {}
        self.purse = Purse()

    def see(self, name: str) -> tuple[int | None, Holding]:
        if name in self.changed:
            return self.changed[name]
        view = self._views[name]
        if view.version is None:
            return None, Holding(phase=self.floor.phase)
        return view.version, view.holding


@dataclass(slots=True)
class Plan:
    """A transaction, or part of one, that is to change one task, and what is so if it succeeds. `is_more`:
    the task runs, and is given what `task` says besides."""

    task: Task
    version: int
    after: Task | None
    operations: list[Operation]
    draft: Draft
    is_more: bool = False

    @property
    def id(self) -> str:
        return self.task.id


class ClaimBook:
    """Views of names, lots of what is counted, and the plans made from them."""

    def __init__(self, layout: Layout, me: str) -> None:
        self.layout = layout
        self.me = me
        self.views: dict[str, View] = {}
        self.floor = Floor(-1, 0)
        self.is_floor_sure = False
        self.lots = LotBook(layout)

    # Submitting and taking

    def submit(self, task: Task, *, take: bool) -> list[Operation]:
        """A new task; fails if it is known already, waiting or over."""
        operations: list[Operation] = []
        if task.kept:
            operations += [CheckAbsent(path(task.id)) for path in (self.layout.released, self.layout.dead)]
        operations.append(Create(self.layout.task(task.id), encode(task)))
        operations += self._take_key(task)
        if take:
            # The answer to the last one tells the revision, which is the task's place in line.
            operations += [self.mark(task.id), Set(self.layout.task_folder(task.id), b"")]
        else:
            operations.append(self.offer(task.id))
        return operations

    def offer(self, id: str) -> Operation:
        """Let whoever can have it done find it."""
        return Create(self.layout.offered(id))

    def leave(self, id: str) -> list[Operation]:
        """Look after a task no more, for others to take it."""
        return [Delete(self.layout.busy(id)), self.offer(id)]

    def _take_key(self, task: Task) -> list[Operation]:
        return [Create(self.layout.key(task.key), task.id.encode())] if task.key else []

    def mark(self, id: str) -> Operation:
        """Look after a task: fails while another instance does."""
        return Create(self.layout.busy(id), encode(Mark(self.me)), ephemeral=True)

    def take(self, id: str, *, offered: bool) -> list[Operation]:
        taking = [Check(self.layout.task(id)), self.mark(id)]
        return [*taking, Delete(self.layout.offered(id))] if offered else taking

    # Drafts

    def draft(self) -> Draft:
        return Draft(self.views, self.floor)

    def join(self, plans: Sequence[Plan]) -> list[Operation]:
        """One transaction of plans that change names."""
        checks = dict.fromkeys(self.check_floor(plan.draft) for plan in plans if plan.task.names)
        first = {id(plan.draft): plan for plan in reversed(plans)}
        closing = [op for plan in first.values() for op in self._close_purse(plan)]
        return [*checks, *(operation for plan in plans for operation in plan.operations), *closing]

    def _close_purse(self, plan: Plan) -> list[Operation]:
        return self.lots.close(plan.draft.purse, f"{plan.id}.{plan.task.attempt}g")

    def check_floor(self, draft: Draft) -> Operation:
        return Check(self.layout.names, draft.floor.version)

    def stand_on(self, floor: Floor) -> None:
        """What the folder of the names says now: after a removal nothing that was seen counts."""
        if floor != self.floor:
            self.views.clear()
            self.floor = floor
        self.is_floor_sure = True

    def confirm(self, draft: Draft, now_ns: int) -> None:
        """The store did it."""
        self.lots.confirm(draft.purse)
        if draft.floor != self.floor:
            return
        for name, (version, holding) in draft.changed.items():
            known = self.views.get(name)
            if known is None or known.version is None or known.version < version:
                self.views[name] = View(version, holding, {}, now_ns)

    # Granting

    def grant(
        self,
        task: Task,
        version: int | None,
        draft: Draft,
        heirs: Mapping[str, Heir] = NO_HEIRS,
        *,
        begun: int = 0,
    ) -> Plan | None:
        """Own all of its names, from the wall clock's `begun` on. version None: the record is created by
        the same transaction. No plan if one of the names has an owner, by what was seen. (Of sharers the
        transaction finds out.) `heirs`: for whom each name is reserved from now on."""
        if any(draft.see(name)[1].owner for name, _ in task.needs) or not self._may_borrow(task, draft):
            return None
        operations: list[Operation] = []
        self.lots.pay(operations, draft.purse, task)
        borrowed = self._borrow(operations, task, draft)
        phases = []
        for name, mode in task.requirements:
            own = self._own if mode is Mode.EXCLUSIVE else self._share
            phases.append(own(operations, name, draft, task.id, heirs.get(name)))
        after = msgspec.structs.replace(
            task,
            state=step(task.state, "granted"),
            attempt=task.attempt + 1,
            holder=self.me,
            phases=tuple(phases),
            inherited_phases=borrowed,
            begun=begun,
        )
        if version is None:
            if task.kept:
                operations.append(CheckAbsent(self.layout.released(task.id)))
            operations += [Create(self.layout.task(task.id), encode(after)), self.mark(task.id)]
            operations += self._take_key(task)
        else:
            operations.append(Set(self.layout.task(task.id), encode(after), version))
        return Plan(task, -1 if version is None else version, after, operations, draft)

    def _may_borrow(self, task: Task, draft: Draft) -> bool:
        """By what was seen. What its parent shares, the transaction finds out."""
        return all(
            draft.see(name)[1].owner in ("", task.parent)
            and (mode == Mode.SHARED or draft.see(name)[1].owner == task.parent)
            for name, mode in task.inherited
        )

    def _borrow(self, operations: list[Operation], task: Task, draft: Draft) -> tuple[int, ...]:
        """Use names of its parent's, which stays their owner and cannot end meanwhile. For each that is used
        exclusively a new phase begins: those who had it before, its parent too, are refused by guards. All of
        them are written: a parent that gives up its names, and keeps its record, checks their versions."""
        phases = []
        for name, mode in task.inherited:
            version, holding = draft.see(name)
            if mode == Mode.EXCLUSIVE:
                holding = msgspec.structs.replace(holding, phase=holding.phase + 1)
            elif not holding.owner:
                operations.append(Check(self.layout.sharer(name, task.parent)))
            self._write(operations, name, draft, version, holding)
            phases.append(holding.phase)
        if task.parent:
            operations.append(Create(self.layout.subtask(task.parent, task.id)))
        return tuple(phases)

    def regain(self, task: Task, version: int) -> Plan | None:
        """Its subtasks are over: what they used exclusively is its own again, in a new phase. No plan where
        nothing changed."""
        draft, operations, phases = self.draft(), list[Operation](), list[int]()
        for (name, mode), phase in zip(task.needs, task.phases, strict=True):
            at, holding = draft.see(name)
            if mode == Mode.EXCLUSIVE and holding.phase != phase and holding.owner == task.id:
                holding = msgspec.structs.replace(holding, phase=holding.phase + 1)
                self._write(operations, name, draft, at, holding)
                phase = holding.phase
            phases.append(phase)
        if not operations:
            return None
        after = msgspec.structs.replace(task, phases=tuple(phases))
        operations.append(Set(self.layout.task(task.id), encode(after), version))
        return Plan(task, version, after, operations, draft, is_more=True)

    def grow(
        self, task: Task, wanted: Task, version: int, draft: Draft, heirs: Mapping[str, Heir] = NO_HEIRS
    ) -> Plan | None:
        """Own what `wanted` needs besides, all of it or nothing. No plan as for `grant`."""
        if any(draft.see(name)[1].owner for name, _ in wanted.needs):
            return None
        operations: list[Operation] = []
        self.lots.pay(operations, draft.purse, wanted)
        phases = dict(zip(task.needs, task.phases, strict=True))
        for name, mode in wanted.requirements:
            own = self._own if mode is Mode.EXCLUSIVE else self._share
            phases[name, str(mode)] = own(operations, name, draft, task.id, heirs.get(name))
        after = msgspec.structs.replace(
            task,
            state=step(task.state, "grown"),
            needs=tuple(sorted(phases)),
            phases=tuple(phases[need] for need in sorted(phases)),
            counts=add_counts(task.counts, wanted.counts),
            asks=(),
            grown=(*task.grown, *wanted.needs),
            grown_counts=add_counts(task.grown_counts, wanted.counts),
        )
        operations.append(Set(self.layout.task(task.id), encode(after), version))
        return Plan(wanted, version, after, operations, draft, is_more=True)

    def wanting(self, task: Task, needs: tuple[tuple[str, str], ...], counts: Counts) -> Task:
        """What a task that runs needs besides, as a task of its own."""
        return msgspec.structs.replace(task, needs=needs, counts=counts, phases=())

    def ask(self, task: Task, version: int, names: tuple[tuple[str, str], ...]) -> tuple[Task, Operation]:
        """Write down what a task that runs waits for: what is reserved for it then is no mistake."""
        after = msgspec.structs.replace(task, asks=names)
        return after, Set(self.layout.task(task.id), encode(after), version)

    def _own(
        self, operations: list[Operation], name: str, draft: Draft, id: str, heir: Heir | None = None
    ) -> int:
        version, seen = draft.see(name)
        holding = self._pass_on(seen, id, heir)
        taken = msgspec.structs.replace(holding, phase=holding.phase + 1, owner=id, shared=False)
        self._write(operations, name, draft, version, taken)
        if holding.shared:
            operations.append(Delete(self.layout.sharers(name)))
        return taken.phase

    def _share(
        self, operations: list[Operation], name: str, draft: Draft, id: str, heir: Heir | None = None
    ) -> int:
        version, seen = draft.see(name)
        # Those who share a name do not write it, so that they do not disturb each other.
        holding = self._pass_on(seen, id, heir) if seen.reserved == id or not seen.shared else seen
        if not holding.shared:
            holding = msgspec.structs.replace(holding, phase=holding.phase + 1, shared=True)
            self._write(operations, name, draft, version, holding)
            operations.append(Create(self.layout.sharers(name)))
        elif holding is seen:
            operations.append(Check(self.layout.name(name), version))
        else:
            self._write(operations, name, draft, version, holding)
        operations.append(Create(self.layout.sharer(name, id)))
        return holding.phase

    def _pass_on(self, holding: Holding, id: str, heir: Heir | None) -> Holding:
        """A reservation ends when it is used, and goes to whoever is next."""
        if holding.reserved and holding.reserved == id:
            holding = msgspec.structs.replace(holding, reserved="", reserved_since=0, reserved_mode="")
        return holding if heir is None else self._reserve_for(holding, heir)

    def _reserve_for(self, holding: Holding, heir: Heir) -> Holding:
        """Unless an older task has it reserved."""
        if holding.reserved == heir.id:
            return holding
        if holding.reserved and (holding.reserved_since, holding.reserved) < (heir.since, heir.id):
            return holding
        return msgspec.structs.replace(
            holding, reserved=heir.id, reserved_since=heir.since, reserved_mode=str(heir.mode)
        )

    def _write(
        self, operations: list[Operation], name: str, draft: Draft, version: int | None, holding: Holding
    ) -> None:
        path = self.layout.name(name)
        if version is None:
            operations.append(Create(path, encode(holding)))
            draft.changed[name] = 0, holding
        else:
            operations.append(Set(path, encode(holding), version))
            draft.changed[name] = version + 1, holding

    # Ending

    def finish(
        self, task: Task, version: int, outcome: Outcome, result: bytes = b"", *, ended: int = 0
    ) -> Plan:
        """Record the outcome and give everything back: two steps of the table at once."""
        event = "withdrawn" if task.state is State.PENDING else "finished"
        state = task.state if task.state is State.DONE else step(task.state, event)
        after = msgspec.structs.replace(
            task,
            state=step(state, "released"),
            outcome=task.outcome or outcome,
            result=task.result or result,
            ended=ended,
        )
        after = _shed(after)
        operations: list[Operation] = []
        draft = self.draft()
        if task.state is not State.PENDING:
            self._give_back(operations, task, draft, forced=False)
        self._close(operations, after, version)
        return Plan(task, version, after, operations, draft)

    def try_again(self, task: Task, version: int, failure: str, not_before: int) -> Plan:
        """It failed: it gives everything back, what it was given while it ran too, and waits to be granted
        again. The mark stays, so that whoever looks after it does so still. Whoever carries this out looks
        for subtasks after it was made: one that begins later writes a name whose version is checked."""
        after = msgspec.structs.replace(
            task.original,
            state=step(task.state, "failed"),
            phases=(),
            inherited_phases=(),
            holder="",
            failures=task.failures + 1,
            failure=failure,
            not_before=not_before,
        )
        operations: list[Operation] = []
        draft = self.draft()
        self._give_back(operations, task, draft, forced=False)
        for name, mode in task.needs:
            if mode == Mode.SHARED:
                operations.append(Check(self.layout.name(name), draft.see(name)[0]))
        operations.append(Set(self.layout.task(task.id), encode(after), version))
        return Plan(task, version, after, operations, draft)

    def complete(self, task: Task, version: int, outcome: Outcome, result: bytes = b"") -> Plan:
        """Record the outcome only; whoever looks after the task gives its names back."""
        after = msgspec.structs.replace(
            task, state=step(task.state, "finished"), outcome=outcome, result=result
        )
        path = self.layout.task(task.id)
        return Plan(task, version, after, [Set(path, encode(after), version)], self.draft())

    def depose(
        self, task: Task, version: int, outcome: Outcome = "deposed", *, ended: int = 0, busy: bool = True
    ) -> Plan:
        """Take everything from a holder that is dead, or is to be treated so."""
        done = step(task.state, "deposed")
        after = msgspec.structs.replace(
            task, state=step(done, "released"), outcome=outcome, ended=ended, phases=()
        )
        after = _shed(after)
        operations: list[Operation] = []
        draft = self.draft()
        self._give_back(operations, task, draft, forced=True)
        self._close(operations, after, version, busy=busy)
        return Plan(task, version, after, operations, draft)

    def requeue(self, task: Task, version: int) -> Plan:
        """The same, but the task waits to be granted again."""
        after = msgspec.structs.replace(
            task.original, state=step(task.state, "requeued"), phases=(), holder="", inherited_phases=()
        )
        operations: list[Operation] = []
        draft = self.draft()
        self._give_back(operations, task, draft, forced=True)
        operations.append(Set(self.layout.task(task.id), encode(after), version))
        return Plan(task, version, after, operations, draft)

    def inherit(self, task: Task, version: int, *, marked: bool) -> Plan:
        """A granted claim goes to this process as it is. The record changes, so that whoever had it
        before cannot end it any more."""
        after = msgspec.structs.replace(task, holder=self.me, attempt=task.attempt + 1, asks=())
        operations: list[Operation] = [Set(self.layout.task(task.id), encode(after), version)]
        if marked:
            operations.append(Delete(self.layout.busy(task.id)))
        operations.append(self.mark(task.id))
        return Plan(task, version, after, operations, self.draft())

    def _close(self, operations: list[Operation], after: Task, version: int, *, busy: bool = True) -> None:
        operations.append(Delete(self.layout.task(after.id), version))
        if busy:
            operations.append(Delete(self.layout.busy(after.id)))
        if after.key:
            operations.append(Delete(self.layout.key(after.key)))
        if after.kept:
            path = self.layout.dead if after.outcome == "dead" else self.layout.released
            operations.append(Create(path(after.id), encode(after)))

    def revive(self, task: Task, version: int) -> list[Operation]:
        """A task that was given up waits again. Its attempts are counted on, so that whoever did one of
        them, and slept, does not end a later one."""
        after = msgspec.structs.replace(
            task.original,
            state=State.PENDING,
            phases=(),
            inherited_phases=(),
            outcome=None,
            ended=0,
            holder="",
            result=b"",
            not_before=0,
        )
        removal = Delete(self.layout.dead(task.id), version)
        return [removal, Create(self.layout.task(task.id), encode(after)), self.offer(task.id)]

    def _give_back(self, operations: list[Operation], task: Task, draft: Draft, *, forced: bool) -> None:
        self.lots.give_back(operations, draft.purse, task, forced=forced)
        if task.parent:
            operations.append(Delete(self.layout.subtask(task.parent, task.id)))
        for name, mode in task.inherited if forced else ():
            version, holding = draft.see(name)
            if mode == Mode.EXCLUSIVE:
                raised = msgspec.structs.replace(holding, phase=holding.phase + 1)
                self._write(operations, name, draft, version, raised)
        for name, mode in task.requirements:
            version, holding = draft.see(name)
            raised = msgspec.structs.replace(holding, phase=holding.phase + forced)
            if mode is Mode.EXCLUSIVE:
                assert holding.owner == task.id, f"{name} is not owned by {task.id}"
                free = msgspec.structs.replace(raised, owner="")
                self._write(operations, name, draft, version, free)
            else:
                operations.append(Delete(self.layout.sharer(name, task.id)))
                if forced:
                    self._write(operations, name, draft, version, raised)

    def owns(self, task: Task) -> bool:
        """Whether the views say so of every name that it needs exclusively. (Of shared ones the
        transaction finds out.)"""
        return all(
            self.views[name].holding.owner == task.id
            for name, mode in task.requirements
            if mode is Mode.EXCLUSIVE
        )

    # Reserving

    def reserve(
        self, heirs: Mapping[str, Heir | None], mine: Mapping[str, str]
    ) -> tuple[list[Operation], Draft]:
        """Note in the store for whom names are reserved; for nobody any more where the heir is None and
        the reservation is the one that this instance once noted (`mine`)."""
        draft = self.draft()
        operations: list[Operation] = []
        for name, heir in heirs.items():
            version, holding = draft.see(name)
            freed = self._pass_on(holding, mine.get(name, ""), heir)
            if freed is not holding:
                self._write(operations, name, draft, version, freed)
        return operations, draft

    def unreserve(self, id: str, name: str) -> tuple[list[Operation], Draft]:
        return self.reserve({name: None}, {name: id})

    # Forgetting

    def remove(self, idle: Sequence[Idle], floor: Floor) -> tuple[list[Operation], Floor]:
        """Remove names that nobody uses. Fails if one of them changed, or is shared by now."""
        after = Floor(floor.version + 1, max(floor.phase, *(name.phase for name in idle)))
        operations: list[Operation] = [Set(self.layout.names, b"%d" % after.phase, floor.version)]
        for name in idle:
            if name.shared:
                operations.append(Delete(f"{name.path}/S"))
            operations.append(Delete(name.path, name.version))
        return operations, after

    def forget(self, names: Iterable[str]) -> None:
        """What was believed of them was wrong, or may be."""
        for name in names:
            self.views.pop(name, None)
        self.is_floor_sure = False


def _shed(after: Task) -> Task:
    """What is kept of a task that is over. What was to be done is only kept where it may be tried again."""
    return after if after.outcome == "dead" else msgspec.structs.replace(after, payload=b"")


def add_counts(*parts: Counts) -> Counts:
    """All of them together."""
    sums: dict[str, int] = {}
    for name, units in (pair for part in parts for pair in part):
        sums[name] = sums.get(name, 0) + units
    return tuple(sorted(sums.items()))


def read_revision(results: Sequence[str | Stat | None]) -> int:
    """The revision of a transaction that submitted a task and took it."""
    assert isinstance(results[-1], Stat), "its last operation is a Set"
    return results[-1].modified


def measure(operation: Operation) -> int:
    """About how many bytes it takes in a transaction."""
    return len(operation.path) + (len(operation.data) if isinstance(operation, Create | Set) else 0)


def count_most(task: Task) -> int:
    """The most operations that granting this task, or ending it, takes, whatever its names hold."""
    names = sum(OPERATIONS_A_NAME - (mode is Mode.EXCLUSIVE) for _, mode in task.requirements)
    names += bool(task.parent) + 2 * len(task.inherited)
    return OPERATIONS_A_TASK + names + OPERATIONS_A_COUNT * len(task.counts)


def check_size(task: Task, layout: Layout, operations_max: int) -> None:
    """Raises UsageError for a task whose names could never be granted in one transaction."""
    most = count_most(task)
    if most > operations_max:
        raise UsageError(
            f"{len(task.needs)} names take up to {most} operations in one transaction, and the store takes "
            f"{operations_max}: claim fewer at once, or what contains them"
        )
    if most * (NAME_MAX_BYTES + OPERATION_BYTES) < TRANSACTION_MAX_BYTES // 2:
        return
    book = ClaimBook(layout, "")
    book.views = {name: View() for name, _ in task.needs}
    plain = msgspec.structs.replace(task, counts=(), inherited=())
    plan = book.grant(plain, 0, book.draft())
    assert plan is not None, "nobody owns anything"
    size = sum(measure(operation) + OPERATION_BYTES for operation in plan.operations)
    if size > TRANSACTION_MAX_BYTES:
        raise UsageError(
            f"{len(task.needs)} names take {size} bytes, and one transaction has {TRANSACTION_MAX_BYTES}: "
            "claim fewer at once, or what contains them"
        )


def names_of(plans: Sequence[Plan]) -> list[str]:
    """Every name of these plans, once, in order."""
    return list(dict.fromkeys(name for plan in plans for name in plan.task.names))
