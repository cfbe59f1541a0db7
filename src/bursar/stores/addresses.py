"""Addresses of servers that several hosts share: hosts, a user, files with secrets and certificates.

    SCHEME://user:password@a:PORT,b:PORT/PATH?ca=FILE&cert=FILE&key=FILE&auth=FILE

`auth=FILE` reads "user:password" from a file instead. `ca` switches TLS on: the authority that signed
the servers' certificates, or `ca=system` for those that the machine trusts; `cert` and `key` are this
side's own. No error repeats a password.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote

from bursar.errors import UsageError

OPTIONS = ("auth", "ca", "cert", "key")
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says. `path` has no slash at its end; `options` are the engine's own."""

    hosts: tuple[tuple[str, int], ...]
    user: str
    password: str
    path: str
    tls: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def hide_password(url: str) -> str:
    """The URL, for people and for what is kept."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    netloc, slash, path = rest.partition("/")
    return f"{scheme}://{netloc.rpartition('@')[2]}{slash}{path}"


def read_address(parts: SplitResult, port: int, form: str, options: Sequence[str] = ()) -> Address:
    """`port` is for hosts without one, `form` what to write instead. Raises UsageError."""
    given = _read_options(parts.query, (*OPTIONS, *options))
    before, _, hosts = parts.netloc.rpartition("@")
    user, _, password = before.partition(":")
    user, password = unquote(user), unquote(password)
    if "auth" in given:
        user, _, password = _read_text("auth", given["auth"]).strip().partition(":")
    if ("cert" in given or "key" in given) and "ca" not in given:
        raise UsageError("store: cert and key go with ca=FILE, the authority that signed the servers'")
    return Address(
        _read_hosts(hosts, port, form),
        user,
        password,
        unquote(parts.path).rstrip("/"),
        {name: given[name] for name in ("ca", "cert", "key") if name in given},
        {name: given[name] for name in options if name in given},
    )


def _read_hosts(hosts: str, default: int, form: str) -> tuple[tuple[str, int], ...]:
    found = []
    for item in hosts.split(","):
        host, colon, port = item.rpartition(":") if not item.endswith("]") else (item, "", "")
        host = host if colon else item
        number = port if colon else str(default)
        if not host or not number.isdecimal() or not 0 < int(number) < 65536:
            raise UsageError(f"store: {item!r} is not host:port; write {form}")
        found.append((host.strip("[]"), int(number)))
    return tuple(found)


def _read_options(query: str, known: Sequence[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            raise UsageError(f"store: unknown option {name!r} in the address; there are {', '.join(known)}")
    return options


def _read_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"store: {option}={path} cannot be read: {error}") from error


def make_tls(files: Mapping[str, str]) -> ssl.SSLContext | None:
    """None where no authority is named. Raises UsageError."""
    if "ca" not in files:
        return None
    try:
        context = ssl.create_default_context(cafile=None if files["ca"] == SYSTEM else files["ca"])
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"store: the TLS files cannot be used: {error}") from error
    return context


def read_tls_files(files: Mapping[str, str]) -> tuple[bytes | None, bytes | None, bytes | None]:
    """ca, key and cert as bytes, for who makes no use of `ssl`. Raises UsageError."""
    make_tls(files)  # says what is wrong with them
    named = {name: path for name, path in files.items() if (name, path) != ("ca", SYSTEM)}
    if "cert" in named:
        named.setdefault("key", named["cert"])
    ca, key, cert = (named.get(name) for name in ("ca", "key", "cert"))
    return _read_bytes(ca), _read_bytes(key), _read_bytes(cert)


def _read_bytes(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
