"""Where things are in the store. Below `/claims/RESOURCE`:

    names                         the floor: the highest phase of any name that was removed
    names/SHARD/NAME              a Holding: phase, exclusive owner, reservation
    names/SHARD/NAME/S            there while the name is in a shared phase
    names/SHARD/NAME/S/TASK       one sharer
    tasks/SHARD/TASK              a Task
    tasks/SHARD/TASK/SUBTASK      a subtask of it that runs: until that is over, so is not its parent
    busy/SHARD/TASK               ephemeral: a Mark, the instance that looks after the task, and how far it is
    released/SHARD/TASK           a Task that is over, kept for a while
    dead/SHARD/TASK               a Task that was given up, kept until somebody has it tried again
    keys/SHARD/KEY                the claim that has the key: there for as long as its record
    instances/INSTANCE            ephemeral: an instance that runs; INSTANCE+ if it has tasks done
    counts/NAME                   a counted name: how many there are, and how many are still to go
    counts/NAME/lots/LOT          so many of them, at an instance or at none (see `lots`); others are at tasks
    counts/NAME/wants/WANT        ephemeral: an instance whose tasks wait for some
    offered/SHARD/TASK            a task that was submitted or left, for whoever has it done to take: what
                                  is new is found without listing what waits
    cancels/TASK                  somebody asked that it be cancelled while it runs: there until it is over
    durations                     how long tasks take that were done, by kind (see `durations`)
    asking                        an INSTANCE+ that has room and nothing to do

The node of the resource itself holds an Era: the store cannot know that it was rebuilt, so the epoch comes
from outside of it, and rises when the store is adopted.

All but `instances`, `cancels` and `asking` are split into shards, so that no node has more children than one
listing can carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import quote

from bursar.world import Random

NODE_NAME_MAX = 240
NODE_NAME_KEPT = 200
WORKS = "+"
"""Ends the node of an instance that has tasks done. (Its name ends in its incarnation, a number.)"""

PATHS_KEPT = 1 << 15
"""Names and tasks whose place is remembered: each is asked for several times in its life."""

NAME_SHARDS = tuple(f"{number:02x}" for number in range(64))
TASK_SHARDS = tuple(f"{number:02x}" for number in range(16))
"""Fewer: they are listed whenever an instance looks for tasks that nobody looks after."""

RELEASED_SHARDS = tuple(f"{number:02x}" for number in range(256))
"""More: what is over stays for an hour, at 200 tasks a second 720,000 of them."""


@lru_cache(PATHS_KEPT)
def shard_of(name: str, shards: tuple[str, ...]) -> str:
    return shards[blake2b(name.encode(), digest_size=1).digest()[0] % len(shards)]


def new_id(kind: str, random: Random) -> str:
    return f"{kind}{random.randrange(0, 2**63):016x}{random.randrange(0, 2**31):08x}"


def task_id(tenant: str, key: str) -> str:
    """An id made from the key that the tenant gave: the same key is the same task. What another tenant
    calls by the same key is another one."""
    return "k" + digest(f"{len(tenant)}:{tenant}:{key}")


def digest(key: str) -> str:
    """A key as it stands in the store, which does not take every text."""
    return blake2b(key.encode(), digest_size=15).hexdigest()


def divide(id: str, workers: Sequence[str]) -> str:
    """Which of them a task falls to. When a worker comes or goes, only what falls to it moves."""
    return max(workers, key=lambda worker: blake2b(f"{worker}/{id}".encode(), digest_size=8).digest())


SCOPE = "\x1f"
"""No name that can be claimed has it."""


def scoped(name: str, parent: str) -> str:
    """What the subtasks of one parent take in place of a name that it holds, so that they exclude each
    other and nobody else."""
    return f"{name}{SCOPE}{parent}"


def is_claim_id(id: str) -> bool:
    """Ids of claims begin with c, so that they can be told without reading."""
    return id.startswith("c")


@lru_cache(PATHS_KEPT)
def node_name(name: str) -> str:
    """A path's slashes and whatever a store refuses are written as %XX: one name, one node. What
    would be too long for a node is cut and ends in a digest of the whole."""
    encoded = quote(name, safe="#@+=~ !$&()*;")
    if len(encoded) > NODE_NAME_MAX:
        encoded = encoded[:NODE_NAME_KEPT] + "~" + blake2b(name.encode(), digest_size=16).hexdigest()
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def instance_node(name: str, *, works: bool) -> str:
    return node_name(name) + WORKS * works


def is_worker(node: str) -> bool:
    return node.endswith(WORKS)


class Layout:
    """The paths of one resource. All instances of it must use the same shards."""

    name_shards = NAME_SHARDS
    task_shards = TASK_SHARDS
    released_shards = RELEASED_SHARDS

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.root = f"/claims/{quote(resource, safe='')}"
        self.asking = f"{self.root}/asking"
        self.cancels = f"{self.root}/cancels"
        self.instances = f"{self.root}/instances"
        self.names = f"{self.root}/names"
        self.durations = f"{self.root}/durations"

    def folders(self) -> list[str]:
        """Everything that must exist before the first task, parents first."""
        kinds = ("tasks", "busy", "offered", "dead", "keys")
        parents = {"names": self.name_shards, "released": self.released_shards}
        parents |= dict.fromkeys(kinds, self.task_shards)
        folders = [self.instances, self.asking, self.cancels, *(f"{self.root}/{kind}" for kind in parents)]
        return folders + [f"{self.root}/{kind}/{shard}" for kind in parents for shard in parents[kind]]

    def name(self, name: str) -> str:
        return f"{self.names}/{shard_of(name, self.name_shards)}/{node_name(name)}"

    def sharers(self, name: str) -> str:
        return f"{self.name(name)}/S"

    def sharer(self, name: str, task: str) -> str:
        return f"{self.name(name)}/S/{task}"

    def task_folder(self, task: str) -> str:
        return f"{self.root}/tasks/{shard_of(task, self.task_shards)}"

    def task(self, task: str) -> str:
        return f"{self.task_folder(task)}/{task}"

    def subtask(self, parent: str, id: str) -> str:
        """There while the subtask runs: a record with nodes below it cannot be removed."""
        return f"{self.task(parent)}/{id}"

    def offers(self, shard: str) -> str:
        return f"{self.root}/offered/{shard}"

    def offered(self, task: str) -> str:
        return f"{self.offers(shard_of(task, self.task_shards))}/{task}"

    def busy(self, task: str) -> str:
        return f"{self.root}/busy/{shard_of(task, self.task_shards)}/{task}"

    def cancel(self, task: str) -> str:
        return f"{self.cancels}/{task}"

    def released(self, task: str) -> str:
        return f"{self.root}/released/{shard_of(task, self.released_shards)}/{task}"

    def dead(self, task: str) -> str:
        return f"{self.root}/dead/{shard_of(task, self.task_shards)}/{task}"

    def key(self, digest: str) -> str:
        return f"{self.root}/keys/{shard_of(digest, self.task_shards)}/{digest}"

    def count(self, name: str) -> str:
        return f"{self.root}/counts/{name}"

    def lots(self, name: str) -> str:
        return f"{self.count(name)}/lots"

    def wants(self, name: str) -> str:
        return f"{self.count(name)}/wants"

    def instance(self, node: str) -> str:
        return f"{self.instances}/{node}"
