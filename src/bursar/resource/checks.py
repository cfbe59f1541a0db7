"""What is asked of the front door is checked once, here, before anybody decides anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bursar import units
from bursar.errors import UsageError
from bursar.policy.live import RESTART, WHY_NOT
from bursar.policy.values import ResourcePolicy
from bursar.world import NAME_MAX_BYTES, SECOND_NS

AMOUNT_MAX = 2**63 - 1
WAIT_MAX_S = 86_400.0
HOLD_MAX_NS = 30 * 86_400 * SECOND_NS


def check_name(what: str, name: object) -> None:
    """Refuse a name that could not stand in a file, a path or a metric."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"{what} must be a non-empty string, not {name!r}")
    if len(name.encode("utf-8", "surrogatepass")) > NAME_MAX_BYTES:
        raise UsageError(f"{what} is longer than {NAME_MAX_BYTES} bytes: {name[:40]!r}...")
    if not name.isprintable():
        raise UsageError(f"{what} has characters that cannot be printed: {name[:40]!r}")


def check_amount(amount: object) -> None:
    if not isinstance(amount, int) or isinstance(amount, bool) or not 1 <= amount <= AMOUNT_MAX:
        raise UsageError(f"amount must be a whole number from 1 to 2^63 - 1, not {amount!r}")


def check_wait(wait: float) -> int:
    """The wait in nanoseconds."""
    if not isinstance(wait, int | float) or not 0 <= wait <= WAIT_MAX_S:
        raise UsageError(f"wait is a number of seconds from 0 to {WAIT_MAX_S:.0f}, not {wait!r}")
    return int(wait * SECOND_NS)


def check_hold(hold: object) -> int:
    """How long a grant is held, in nanoseconds: seconds, or a duration as in the policy ("10min")."""
    if isinstance(hold, str):
        hold_ns = units.read_duration_ns(hold)
    elif isinstance(hold, int | float) and not isinstance(hold, bool) and 0 <= hold <= HOLD_MAX_NS:
        hold_ns = int(hold * SECOND_NS)
    else:
        hold_ns = 0
    if not SECOND_NS <= hold_ns <= HOLD_MAX_NS:
        raise UsageError(f'hold is a time from 1 s to 30 days (600, or "10min"), not {hold!r}')
    return hold_ns


def check_used(used: object) -> int:
    if not isinstance(used, int) or isinstance(used, bool) or not 0 <= used <= AMOUNT_MAX:
        raise UsageError(f"settle takes a whole number from 0 to 2^63 - 1, not {used!r}")
    return used


def check_arguments(name: str, verb: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Those of a verb come over the wire, so that wrong ones are the caller's mistake and not a fault here:
    one that it does not take, or is missing; and no text, or no whole number, where it takes just that."""
    signature = inspect.signature(verb)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{name}{signature}: {error}") from error
    for key, value in arguments.items():
        taken = signature.parameters.get(key)
        if taken is not None and taken.annotation == "str" and not isinstance(value, str):
            raise UsageError(f"{key} must be a text, not {value!r}")
        if taken is not None and taken.annotation == "int" and not isinstance(value, int):
            raise UsageError(f"{key} must be a whole number, not {value!r}")


def check_change(old: ResourcePolicy, new: ResourcePolicy, live: Collection[str]) -> None:
    """Refuse a changed policy if anything but the `live` fields differs: nothing in it is ignored."""
    fields = [name for name in old.__struct_fields__ if name not in live]
    changed = [name for name in fields if getattr(old, name) != getattr(new, name)]
    if changed:
        whys = [f"{name.removesuffix('_ns')}: {WHY_NOT.get((old.kind, name), RESTART)}" for name in changed]
        raise UsageError(f"{old.name} cannot change so while it runs. {'; '.join(whys)}")
