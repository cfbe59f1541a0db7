"""What is counted of the Envoys of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bursar.resource.statistics import counter, gauge, labelled


class EnvoyTenantStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant over all Envoys of this node."""

    demand: Annotated[float, gauge("requests a second that Envoys want for it")]
    assigned: Annotated[float, gauge("requests a second that Envoys may be letting through")]
    charged: Annotated[int, counter("tokens charged for Envoys")]
    owed: Annotated[float, gauge("tokens that Envoys may have used beyond what is charged")]


class EnvoyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    envoys: Annotated[int, gauge("Envoys that are connected")]
    events: Annotated[Mapping[str, Annotated[int, counter("what happened")]], labelled("event")]
    tenants: Annotated[Mapping[str, EnvoyTenantStatistics], labelled("tenant")]
