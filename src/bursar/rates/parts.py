"""What a server has of a tenant that nobody has asked for yet: its part of the limit.

A rate may have a hundred thousand tenants, of which few ask for anything in a period. Nothing is sent,
counted or placed for the others: every server that the period was opened with has a part of each
tenant's limit, by a rule that servers and controller can both work out. The parts of a tenant add up to
its limit, exactly; where a limit does not divide evenly, who has a token more differs from tenant to
tenant. From the first report that names a tenant on, its tokens are placed one by one.
"""

from __future__ import annotations

from zlib import crc32

from bursar.rates.messages import UNBOUNDED, Part
from bursar.rates.terms import Terms


def count_part(tenant: str, terms: Terms | None, server: str, part: Part) -> int:
    """The tokens of a period that the tenant has at the server unasked. A tenant that is bound to some
    servers has as many parts as those are, whichever of them are up. With zones a limit is divided among
    these first, and then within each."""
    if part.of == 0 or terms is None:
        return 0
    (place, of), outer = (part.place, part.of), (part.zone, part.zones)
    if terms.servers is not None:
        if server not in terms.servers:
            return 0
        near, outer = _find_near(terms, terms.servers, server)
        place, of = near.index(server), len(near)
    if terms.limit is None:
        return UNBOUNDED
    limit = split(tenant, terms.limit, *outer) if part.zones else terms.limit
    return split(tenant, limit, place, of)


def split(tenant: str, tokens: int, place: int, of: int) -> int:
    """Part number `place` of `of`: all of them add up to the whole."""
    whole, rest = divmod(tokens, of)
    return whole + ((crc32(tenant.encode()) + place) % of < rest)


def _find_near(
    terms: Terms, servers: tuple[str, ...], server: str
) -> tuple[tuple[str, ...], tuple[int, int]]:
    """The tenant's servers in the zone of this one, and which of its zones that is, of how many."""
    for number, (_, group) in enumerate(terms.groups):
        if server in group:
            return group, (number, len(terms.groups))
    return servers, (0, 1)
