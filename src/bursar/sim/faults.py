"""What may go wrong in a run, and how often."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from bursar.sim.chance import Chance
from bursar.world import MILLISECOND_NS, SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Everything is off unless given.

    For each message, a probability:
        loss            it never arrives
        duplicate       it arrives twice
        reorder         it may overtake, and be overtaken (otherwise a link keeps its order)
        slow            it takes up to `slow_ns` longer
    For each second of the whole world, how many on average:
        cuts            one node is cut off from all others, both ways
        one_way_cuts    one link loses everything in one direction
        clogs           one link holds everything back, and then delivers it at once
        store_cuts      one node does not reach the store: for long enough, its session expires
        crashes         one node loses its memory and its unsynced records, and comes back
        pauses          one node stands still (as by SIGSTOP) and then goes on
        forgeries       a client says to a node what only nodes may say: a message that it overheard,
                        as it was or with other numbers, in its own name or in a node's
    For each call of the store, a probability:
        store_lost      no reply: the request was lost, or it was done and the reply was lost
        store_slow      it takes up to `slow_ns` longer
        store_stale     a read shows what was a few changes ago
    For each sync of a journal, a probability:
        disk_slow       it takes up to a tenth of `slow_ns` longer
        disk_errors     it is slow and then raises JournalError; the node crashes and comes back
    drift               clocks run as fast or slow as the scenario's bound allows
    outage_ns           how long cuts, clogs, pauses and crashes last, on average
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    slow: float = 0.0
    cuts: float = 0.0
    one_way_cuts: float = 0.0
    clogs: float = 0.0
    store_cuts: float = 0.0
    crashes: float = 0.0
    pauses: float = 0.0
    forgeries: float = 0.0
    store_lost: float = 0.0
    store_slow: float = 0.0
    store_stale: float = 0.0
    disk_slow: float = 0.0
    disk_errors: float = 0.0
    drift: bool = False
    outage_ns: int = 500 * MILLISECOND_NS
    slow_ns: int = 3 * SECOND_NS

    @classmethod
    def everything(cls) -> Faults:
        """All of them, at rates at which a protocol still gets something done in between."""
        return cls(
            loss=0.05,
            duplicate=0.05,
            reorder=0.2,
            slow=0.02,
            cuts=0.1,
            one_way_cuts=0.1,
            clogs=0.1,
            store_cuts=0.05,
            crashes=0.25,
            pauses=0.1,
            forgeries=2.0,
            store_lost=0.03,
            store_slow=0.03,
            store_stale=0.2,
            disk_slow=0.1,
            disk_errors=0.005,
            drift=True,
        )

    def some(self, chance: Chance) -> Faults:
        """A part of them, each kept, dropped or doubled. Runs in which only a few things go wrong
        get further than those in which everything does, and find other bugs."""
        chosen: dict[str, float | bool] = {}
        for field in fields(self):
            rate = getattr(self, field.name)
            if field.name.endswith("_ns"):
                continue
            factor = chance.stream(f"faults/{field.name}").choice((0, 1, 1, 2))
            chosen[field.name] = (rate and factor > 0) if isinstance(rate, bool) else rate * factor
        return replace(self, **chosen)  # type: ignore[arg-type]

    def told(self) -> dict[str, float | bool]:
        """Those that are on, for the first line of a history."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: rate for name, rate in values.items() if rate and not name.endswith("_ns")}
