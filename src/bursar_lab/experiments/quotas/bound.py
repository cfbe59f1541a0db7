"""How many messages one re-allocation takes in the paper's form: between 3M and 3N (IV-B3).

The paper counts three between each child and its parent: a request, an answer, a share. Here the
child that asks sends its surplus with its request, so its two first messages are one.
"""

from __future__ import annotations

from dataclasses import replace

from bursar.book import Record, Send
from bursar.quotas.book import NodeBook
from bursar.quotas.messages import Credit
from bursar.quotas.rules import PAPER
from bursar.world import SECOND_NS

FANOUT = 5
NODES = 31
ACCOUNT = "quota"
UNITS = 10_000


def count_messages() -> tuple[int, int]:
    """(least, most): a leaf asks while a sibling has units, and while only the furthest leaf has."""
    return _count(holder=FANOUT + 2), _count(holder=NODES - 1)


def _count(holder: int) -> int:
    """Messages until the first leaf of the tree, which has nothing, is granted one unit."""
    books = [NodeBook(str(node), replace(PAPER, theta_ns=0)) for node in range(NODES)]
    lines = [0] * NODES
    flying: list[tuple[str, str, object]] = []
    asker, count = FANOUT + 1, 0

    def perform(node: int, effects: list[Send | Record]) -> None:
        while effects:
            flying.extend(
                (str(node), effect.to, effect.message) for effect in effects if isinstance(effect, Send)
            )
            written = sum(isinstance(effect, Record) for effect in effects)
            lines[node] += written
            effects = books[node].synced(0, lines[node]) if written else []

    for node, book in enumerate(books):
        parent = None if node == 0 else str((node - 1) // FANOUT)
        children = [str(child) for child in range(1, NODES) if (child - 1) // FANOUT == node]
        perform(node, book.open(0, 1))
        perform(node, book.join(0, parent, children, [str(other) for other in range(NODES)]))
        perform(node, book.mint(0, ACCOUNT, [(str(holder), UNITS)]))
    perform(asker, books[asker].request(0, "t", (ACCOUNT,), 1)[1])
    while flying:
        sender, to, message = flying.pop(0)
        count += not isinstance(message, Credit)
        perform(int(to), books[int(to)].receive(SECOND_NS // 1000, sender, message))  # type: ignore[arg-type]
    assert books[asker].answers, "the leaf was served"
    return count
