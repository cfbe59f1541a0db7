"""What is counted of a fleet of Envoys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bursar.resource.statistics import counter, gauge, labelled


class FleetTenantStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant over all Envoys, in requests a second."""

    demand: Annotated[float, gauge("requests a second that it wants")]
    assigned: Annotated[float, gauge("requests a second that Envoys were told to let through")]
    in_force: Annotated[float, gauge("requests a second that Envoys may be letting through")]
    shortfall: Annotated[float, gauge("requests a second of its reservation that fit nowhere")]


class FleetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    envoys: Annotated[int, gauge("Envoys that are connected")]
    round_s: Annotated[float, gauge("how long the last decision took", "seconds")]
    events: Annotated[Mapping[str, Annotated[int, counter("what happened")]], labelled("event")]
    tenants: Annotated[Mapping[str, FleetTenantStatistics], labelled("tenant")]
