"""The front door: everything a caller sees, the same for every kind, here or at a daemon.

checks       what may be asked
tickets      a request, and its answer
decider      what a kind offers the door
lots         tokens charged ahead: how `acquire` stays a local decrement
door         Resource: acquire and try_acquire, waiting, shadow, fallback, cancelling, counting
grants       what callers hold
strangers    tenants that no line of the policy names
statistics   what is counted; rows: tables of it that are made when they are read
alerts       what someone should look at
"""

from bursar.resource.checks import AMOUNT_MAX, WAIT_MAX_S, check_amount, check_change, check_name
from bursar.resource.decider import Decider, Explanation, Offers, Seen
from bursar.resource.lots import PLACE_NS, Ahead, Issue
from bursar.resource.strangers import Strangers, check_tenant
from bursar.resource.tickets import Answer, Granted, Ticket

__all__ = [
    "AMOUNT_MAX",
    "PLACE_NS",
    "WAIT_MAX_S",
    "Ahead",
    "Answer",
    "Decider",
    "Explanation",
    "Granted",
    "Issue",
    "Offers",
    "Seen",
    "Strangers",
    "Ticket",
    "check_amount",
    "check_change",
    "check_name",
    "check_tenant",
]
