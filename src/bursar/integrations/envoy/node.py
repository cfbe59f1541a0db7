"""What the services for Envoys see of their node: its resources, its policy, who may do what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bursar.errors import DeniedError
from bursar.fleet.rights import NO_RIGHTS, Caller, Rights
from bursar.policy.descriptors import Descriptors
from bursar.policy.values import Policy
from bursar.resource.door import Resource

BEARER = "bearer "


@dataclass
class Node:
    """`policy` is asked each time: it may be another one by then. `certified`: callers have shown a
    certificate of our authority."""

    resources: Mapping[str, Resource]
    policy: Callable[[], Policy]
    now: Callable[[], int]
    rights: Rights = NO_RIGHTS
    certified: bool = False
    _read: tuple[Policy, Descriptors] | None = field(default=None, repr=False)

    def descriptors(self) -> Descriptors:
        policy = self.policy()
        if self._read is None or self._read[0] is not policy:
            self._read = (policy, Descriptors(policy))
        return self._read[1]

    def identify(self, context: Any) -> Caller:
        """Who asks: by a token in the metadata, or by the names in its certificate. Raises DeniedError."""
        if self.rights.is_open:
            return self.rights.identify(None)
        token = None
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and value.lower().startswith(BEARER):
                token = value[len(BEARER) :].strip()
        names = self._read_names(context) if self.certified else ()
        try:
            return self.rights.identify(token, names)
        except DeniedError as error:
            self.rights.note_refused(str(context.peer()), str(error))
            raise

    def _read_names(self, context: Any) -> tuple[str, ...]:
        found = context.auth_context().get("x509_common_name", ())
        return tuple(name.decode(errors="replace") for name in found)
