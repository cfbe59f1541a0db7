"""The allocation written again, plainly, from the paper's equations: one tenant at a time, lists
and loops, no arrays. It is the yardstick for `bursar.shares.borrowing`, and never its source."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Row:
    weight: float
    demand: int
    record: int
    previous: int
    remainder: float


def allocate(tokens, rows, needed_first=True, borrow_cap=None, lend_cap=None):
    """(initial, redistributed, final, record, remainder), each a list."""
    everyone = range(len(rows))
    remainder = [row.remainder for row in rows]
    weights = add(row.weight for row in rows)
    p = [row.weight / weights for row in rows]  # (1)
    alpha = whole([tokens * p[x] for x in everyone], remainder, tokens)  # (2)
    u = [rows[x].demand / max(1, rows[x].previous or alpha[x]) for x in everyone]  # (3)
    df = [u[x] + u[x] * p[x] if u[x] > 1 else u[x] * p[x] for x in everyone]  # (6)

    surplus = [max(0, alpha[x] - rows[x].demand) for x in everyone]  # (4)
    if lend_cap is not None:
        surplus = [min(surplus[x], max(0, lend_cap - rows[x].record)) for x in everyone]
    total = sum(surplus)  # (5)
    alpha_rd = list(alpha)
    if total:
        room = [
            math.inf if borrow_cap is None else min(total, max(0, borrow_cap + row.record)) for row in rows
        ]
        share = [0] * len(rows)
        left = total
        if needed_first:
            need = [min(room[x], max(0, rows[x].demand - alpha[x])) for x in everyone]
            amount = min(left, sum(need))
            if amount:
                share = whole(fill(amount, df, need), remainder, amount, need)
                left -= amount
        if left and borrow_cap is None:
            factors = add(df)
            more = whole([df[x] / factors * left for x in everyone], remainder, left)  # (7)
            share, left = [share[x] + more[x] for x in everyone], 0
        elif left:
            limit = [room[x] - share[x] for x in everyone]
            amount = min(left, sum(limit))
            if amount:
                more = whole(fill(amount, df, limit), remainder, amount, limit)
                share, left = [share[x] + more[x] for x in everyone], left - amount
        if left:
            back = whole([surplus[x] * (left / total) for x in everyone], [0.0] * len(rows), left, surplus)
            surplus = [surplus[x] - back[x] for x in everyone]
        alpha_rd = [alpha[x] - surplus[x] + share[x] for x in everyone]
    r_rd = [rows[x].record + alpha[x] - alpha_rd[x] for x in everyone]  # (8)

    plus = [x for x in everyone if rows[x].record > 0 and r_rd[x] > 0]  # (9)
    minus = [x for x in everyone if rows[x].record < 0 and r_rd[x] < 0]  # (10)
    future = [rows[x].demand / max(1, alpha_rd[x]) for x in everyone]  # (12)
    c = min(1.0, add(p[x] * (max(1.0, u[x]) + max(0.0, 1.0 - future[x])) / 2 for x in plus))  # (13)
    reclaim = [0] * len(rows)
    if c:
        for x in minus:  # (14), with the bounds that keep a debtor alive
            half = alpha_rd[x] - -(-alpha[x] // 2)
            called_in = max(1, math.floor(c * alpha_rd[x]))
            reclaim[x] = max(0, min(-rows[x].record, -r_rd[x], called_in, half))
    owed = {x: r_rd[x] for x in plus}
    if needed_first:
        owed = {x: min(owed[x], max(0, rows[x].demand - alpha_rd[x])) for x in plus}
    payees = [x for x in plus if owed[x] > 0]
    pot = min(sum(reclaim), sum(owed.values()))  # (17)
    alpha_rc = list(alpha_rd)
    if pot:
        if pot < sum(reclaim):
            scale = pot / sum(reclaim)
            reclaim = whole([reclaim[x] * scale for x in everyone], [0.0] * len(rows), pot, reclaim)
        limit = [owed[x] for x in payees]
        due = [remainder[x] for x in payees]
        paid = whole(fill(pot, [df[x] for x in payees], limit), due, pot, limit)  # (18) to (20)
        alpha_rc = [alpha_rd[x] - reclaim[x] for x in everyone]  # (15)
        for position, x in enumerate(payees):
            alpha_rc[x] += paid[position]
            remainder[x] = due[position]
    record = [r_rd[x] + alpha_rd[x] - alpha_rc[x] for x in everyone]  # (16), (20)
    return alpha, alpha_rd, alpha_rc, record, remainder


def add(numbers):
    total = 0.0
    for number in numbers:
        total += number
    return total


def whole(raw, remainder, total, limit=None):
    """Equations 21 to 25; changes `remainder` in place."""
    before = list(remainder)
    tokens = []
    for x, share in enumerate(raw):
        due = share + remainder[x]
        tokens.append(max(0, math.floor(due)))
        if limit is not None:
            tokens[x] = min(tokens[x], limit[x])
        remainder[x] = due - tokens[x]
    missing = total - sum(tokens)
    while missing:
        # One round: each tenant is changed at most once, the neediest first.
        step = 1 if missing > 0 else -1
        for x in sorted(range(len(raw)), key=lambda x: (-step * remainder[x], x)):
            if step > 0 and limit is not None and tokens[x] >= limit[x]:
                continue
            if step < 0 and tokens[x] == 0:
                continue
            tokens[x], remainder[x] = tokens[x] + step, remainder[x] - step
            missing -= step
            if missing == 0:
                break
    if limit is not None:
        for x in range(len(raw)):
            if tokens[x] >= limit[x]:
                remainder[x] = before[x]
    return tokens


def fill(total, factor, limit):
    """Proportional shares under limits: raise the level until the next limit is reached."""
    order = sorted(range(len(factor)), key=lambda x: limit[x] / factor[x])
    rest = [0.0] * (len(order) + 1)
    for position in reversed(range(len(order))):
        rest[position] = rest[position + 1] + factor[order[position]]
    taken = 0
    for position, x in enumerate(order):
        level = (total - taken) / rest[position]
        if level * factor[x] <= limit[x]:
            return [min(level * factor[y], limit[y]) for y in range(len(factor))]
        taken += limit[x]
    return [float(most) for most in limit]
