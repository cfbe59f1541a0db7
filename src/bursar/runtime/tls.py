"""Mutual TLS: both sides show a certificate of one authority, and are who it says they are.

The files are read again when they have changed, and count for the next handshake on.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bursar.errors import UsageError
from bursar.policy.names import is_loopback
from bursar.policy.values import Tls
from bursar.runtime import logs
from bursar.runtime.revocation import read_revoked


class Certificates:
    """What a node shows and whom it believes. Raises UsageError if the files will not do."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._files = [path for path in (tls.cert, tls.key, tls.ca, tls.crl) if path is not None]
        self._read()

    def _read(self) -> None:
        self._seen = self._look()
        contexts = [
            _open_context(self._tls, protocol)
            for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        ]
        self.revoked = _read_crl(self._tls.crl) if self._tls.crl is not None else frozenset()
        self.listening, self.dialling = contexts

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]

    def reload(self, *, only_changed: bool = True) -> bool:
        """Read the files again. False: nothing is new, or what is new will not do; then what was read
        before still counts."""
        if only_changed and self._look() == self._seen:
            return False
        try:
            self._read()
        except UsageError as error:
            logs.warning("certificates.kept", why=str(error), remedy="correct the files; they are read again")
            return False
        logs.info("certificates.read", cert=self._tls.cert, revoked=len(self.revoked))
        return True

    def is_revoked(self, certificate: Mapping[str, Any] | None) -> bool:
        return certificate is not None and int(certificate["serialNumber"], 16) in self.revoked


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_crl(path: str) -> frozenset[int]:
    try:
        return read_revoked(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"the crl {path} will not do: {error}; `openssl ca -gencrl` makes one") from error


def _open_context(tls: Tls, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Names of nodes are not host names: the link compares them after the handshake.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(tls.cert, tls.key)
        context.load_verify_locations(tls.ca)
        if tls.crl is not None:
            context.load_verify_locations(tls.crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"TLS cannot be set up from {tls.cert}, {tls.key} and {tls.ca}: {error}; "
            "each must be a readable PEM file, and the key that of the certificate"
        ) from error
    return context


def names_in(certificate: Mapping[str, Any]) -> set[str]:
    """The common name and the alternative names (DNS and IP) of a verified certificate."""
    names = {value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")}
    for part in certificate.get("subject", ()):
        names.update(value for key, value in part if key == "commonName")
    return names


def is_named(certificate: Mapping[str, Any], name: str) -> bool:
    """Whether the certificate is for `name`, or for the part of it before a slash: the clients of
    one program share a certificate and tell themselves apart by what follows."""
    names = names_in(certificate)
    return name in names or name.partition("/")[0] in names


def check_client_address(host: str, address: str, tls: Tls | None) -> None:
    """Refuse to speak in clear to another machine."""
    if tls is None and not is_loopback(address):
        raise UsageError(
            f"{host} is another machine and there is no TLS: pass tls=Tls(cert=..., key=..., ca=...) "
            "(docs/security.md)"
        )
