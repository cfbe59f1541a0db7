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
    servers has as many parts as those are, whichever of them are up."""
    if part.of == 0 or terms is None:
        return 0
    place, of = part.place, part.of
    if terms.servers is not None:
        if server not in terms.servers:
            return 0
        place, of = terms.servers.index(server), len(terms.servers)
    if terms.limit is None:
        return UNBOUNDED
    whole, rest = divmod(terms.limit, of)
    return whole + ((crc32(tenant.encode()) + place) % of < rest)
