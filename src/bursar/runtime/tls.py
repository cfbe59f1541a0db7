"""Mutual TLS: both sides show a certificate of one authority, and are who it says they are."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from bursar.errors import UsageError
from bursar.policy.names import is_loopback
from bursar.policy.values import Tls


def listening(tls: Tls) -> ssl.SSLContext:
    return _open_context(tls, ssl.PROTOCOL_TLS_SERVER)


def dialling(tls: Tls) -> ssl.SSLContext:
    return _open_context(tls, ssl.PROTOCOL_TLS_CLIENT)


def _open_context(tls: Tls, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Names of nodes are not host names: the link compares them after the handshake.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(tls.cert, tls.key)
        context.load_verify_locations(tls.ca)
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
