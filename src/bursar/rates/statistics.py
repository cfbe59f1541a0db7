"""What is counted of a rate, beside what the front door counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bursar.resource.statistics import counter, gauge, labelled, listed


class CellStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant at a server, in the server's present period."""

    allowance: Annotated[int | None, gauge("tokens that it may use at the server in this period, if bounded")]
    priority: Annotated[int, gauge("how many of them come before others' tokens")]
    dispatched: Annotated[int, gauge("tokens charged to it at the server in this period")]
    pace: Annotated[int | None, gauge("tokens a period that it may go through at the server, if paced")]
    waiting: Annotated[int, gauge("requests that wait at the server")]


class ServerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A server that runs on this node."""

    capacity: Annotated[float, gauge("tokens a second that it can do, as given or as estimated")]
    period: Annotated[int, gauge("the period that it has tokens of")]
    good: Annotated[bool, gauge("whether its tokens are good now")]
    alone: Annotated[bool, gauge("whether it goes on without a controller (without_bursar)")]
    in_service: Annotated[int, gauge("requests that it is busy with, where its capacity is estimated")]
    # Tenants times servers would be too many series for whoever stores them.
    tenants: Annotated[Mapping[str, CellStatistics], listed("each tenant at the server")]


class TenantStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant, over the servers of this node."""

    reservation: Annotated[int, gauge("tokens a period that it is promised")]
    limit: Annotated[int | None, gauge("tokens a period that it never passes, if it has a limit")]
    burst: Annotated[int | None, gauge("tokens that it may use at once, ahead of its pace")]
    shortfall: Annotated[int, gauge("tokens of its reservation that fit on no server (at the leader)")]
    allowance: Annotated[int | None, gauge("tokens that it may use here in this period, if bounded")]
    dispatched: Annotated[int, gauge("tokens charged to it here in this period")]
    waiting: Annotated[int, gauge("its requests that wait here")]
    charged: Annotated[int, counter("tokens charged to periods here")]
    charged_alone: Annotated[int, counter("tokens that servers here spent without a controller")]
    returned: Annotated[int, counter("charged tokens that came back unused in time")]


class RateStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A rate, as this node sees it."""

    leading: Annotated[bool, gauge("whether this node places tokens on servers")]
    epoch: Annotated[int, gauge("how often a leader was elected, as far as this node knows")]
    period: Annotated[int, gauge("the newest period that this node knows of")]
    period_s: Annotated[float, gauge("the length of a period", "seconds")]
    interval_s: Annotated[float, gauge("how often tokens are placed anew", "seconds")]
    rounds: Annotated[int, counter("times that this node, leading, asked servers and gave them tokens")]
    messages: Annotated[int, counter("messages between this node, leading, and servers")]
    talking_s: Annotated[float, counter("time that rounds took without computing", "seconds")]
    servers: Annotated[Mapping[str, ServerStatistics], labelled("server")]
    tenants: Annotated[Mapping[str, TenantStatistics], labelled("tenant")]
