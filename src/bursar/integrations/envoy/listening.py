"""Where a gRPC server listens: on loopback in clear, elsewhere with mutual TLS only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from bursar.errors import UsageError
from bursar.policy import Tls
from bursar.policy.names import is_loopback


def add_port(server: Any, address: str, tls: Tls | None) -> int:
    """The port. Raises UsageError if the address cannot be had, or should not."""
    if tls is None and not is_loopback(address):
        raise UsageError(f"{address} is beyond loopback: set daemon.tls in the policy, or use 127.0.0.1")
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, _read_credentials(tls)))
    except RuntimeError as error:
        raise UsageError(f"{address} cannot be had ({error}); pass another with --listen") from error


def _read_credentials(tls: Tls) -> Any:
    try:
        key, cert, ca = (Path(path).read_bytes() for path in (tls.key, tls.cert, tls.ca))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}; see daemon.tls") from error
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
