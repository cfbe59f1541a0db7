"""bursar hands out shares of whatever is contended, ahead of time, so that using one is local.

    b = await bursar.connect("policy.toml")            # or "bursar://host:7070"
    async with b.resource("cache").acquire("acme", wait=0.2) as grant: ...

`bursar.sync` is the same without `await`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bursar.errors import (
    BursarError,
    CrashedError,
    DeniedError,
    FormatError,
    JournalError,
    NetworkError,
    NoAnswerError,
    NotDoneError,
    PolicyError,
    Refused,
    RemoteError,
    StoppedError,
    StoreError,
    TaskFailedError,
    Unknown,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from bursar import sync
    from bursar.policy import Policy
    from bursar.policy import Tls as Tls
    from bursar.policy import load as load_policy
    from bursar.resource.decider import Explanation
    from bursar.resource.door import Resource
    from bursar.resource.grants import Acquisition, Grant
    from bursar.resource.several import AcquisitionOfAll, GrantOfAll
    from bursar.resource.statistics import Statistics
    from bursar.runtime.client import Bursar, connect
    from bursar.runtime.current import current_task
    from bursar.runtime.tasks import Task, wait

__version__ = "0.1.0"

__all__ = [
    "Acquisition",
    "AcquisitionOfAll",
    "Bursar",
    "BursarError",
    "CrashedError",
    "DeniedError",
    "Explanation",
    "FormatError",
    "Grant",
    "GrantOfAll",
    "JournalError",
    "NetworkError",
    "NoAnswerError",
    "NotDoneError",
    "Policy",
    "PolicyError",
    "Refused",
    "RemoteError",
    "Resource",
    "Statistics",
    "StoppedError",
    "StoreError",
    "Task",
    "TaskFailedError",
    "Tls",
    "Unknown",
    "UnreachableError",
    "UsageError",
    "connect",
    "current_task",
    "load_policy",
    "sync",
    "wait",
]

_LATER = {
    "Acquisition": ("bursar.resource.grants", "Acquisition"),
    "AcquisitionOfAll": ("bursar.resource.several", "AcquisitionOfAll"),
    "Bursar": ("bursar.runtime.client", "Bursar"),
    "Explanation": ("bursar.resource.decider", "Explanation"),
    "Grant": ("bursar.resource.grants", "Grant"),
    "GrantOfAll": ("bursar.resource.several", "GrantOfAll"),
    "Policy": ("bursar.policy", "Policy"),
    "Resource": ("bursar.resource.door", "Resource"),
    "Statistics": ("bursar.resource.statistics", "Statistics"),
    "Task": ("bursar.runtime.tasks", "Task"),
    "Tls": ("bursar.policy", "Tls"),
    "connect": ("bursar.runtime.client", "connect"),
    "current_task": ("bursar.runtime.current", "current_task"),
    "load_policy": ("bursar.policy", "load"),
    "sync": ("bursar.sync", None),
    "wait": ("bursar.runtime.tasks", "wait"),
}
"""Loaded when first used, so that `import bursar` stays quick."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'bursar' has no attribute {name!r}")
    module_name, attribute = _LATER[name]
    module = import_module(module_name)
    found = module if attribute is None else getattr(module, attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
