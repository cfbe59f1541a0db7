"""Who may reserve how much (II-C): no more than the data node can serve, no more than one client
alone can do."""

from __future__ import annotations

from collections.abc import Mapping

from bursar.errors import Refused
from bursar.pools.layout import check_amount


def admit_all(
    reservations: Mapping[str, int],
    before: Mapping[str, int],
    capacity: int,
    client_capacity: int | None = None,
) -> None:
    """Check all of them beside each other. Of those that do not fit, the one is named that grew most
    of what is reserved `before`. Raises Refused."""
    others = 0
    for tenant in sorted(reservations, key=lambda name: reservations[name] - before.get(name, 0)):
        admit(tenant, reservations[tenant], others, capacity, client_capacity)
        others += reservations[tenant]


def admit(
    tenant: str, reservation: int, others: int, capacity: int, client_capacity: int | None = None
) -> None:
    """Check one reservation beside what is reserved by others; all numbers are tokens a period. Raises
    Refused, which says which bound failed and what would fit."""
    check_amount(f"the reservation of {tenant}", reservation)
    fits = max(0, capacity - others)
    local = fits if client_capacity is None else min(fits, client_capacity)
    if client_capacity is not None and reservation > client_capacity:
        raise Refused(
            f"{tenant} cannot reserve {reservation}: a client alone does at most {client_capacity} a period "
            f"(local capacity); {local} would fit",
            limit=client_capacity,
            remaining=local,
        )
    if reservation > fits:
        raise Refused(
            f"{tenant} cannot reserve {reservation}: {others} of the capacity of {capacity} a period are "
            f"reserved by others (aggregate capacity); {local} would fit",
            limit=capacity,
            remaining=local,
        )


def fit(
    reservations: Mapping[str, int],
    before: Mapping[str, int],
    capacity: int,
    client_capacity: int | None = None,
) -> tuple[dict[str, int], dict[str, int]]:
    """What of each can be kept, and what those are short of for whom that is less: a node whose terms promise
    too much has to run all the same. Those that grew most of what is reserved `before` are cut first."""
    left = capacity
    kept: dict[str, int] = {}
    for tenant in sorted(reservations, key=lambda name: reservations[name] - before.get(name, 0)):
        most = left if client_capacity is None else min(left, client_capacity)
        kept[tenant] = min(most, reservations[tenant])
        left -= kept[tenant]
    return kept, {name: most - kept[name] for name, most in reservations.items() if most > kept[name]}


def can_still_meet(reservation: int, done: int, left_ns: int, period_ns: int, client_capacity: int) -> bool:
    """The local condition of definition 2 at one moment: R - N(t) <= (T - t) * C_L. A client for
    which it fails cannot get its reservation any more, whatever the others do."""
    return (reservation - done) * period_ns <= left_ns * client_capacity
