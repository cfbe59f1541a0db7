"""Names, addresses and places that a policy file may mention, and what is wrong with the others.

Each function returns None for a text that will do, else what is wrong with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bursar.policy.values import ANYONE
from bursar.world import NAME_MAX_BYTES

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

PLAIN_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
SERVER_PATTERN = r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]*)$"
TENANT_PATTERN = r"^[^\u0000-\u001f\u007f/]+(/[^\u0000-\u001f\u007f/]+)*$"
STORE_PATTERN = r"^(memory://|sqlite:///.+|(zookeeper|etcd)://[^/]+(/.*)?|postgresql://[^/]+/[^/?]+(\?.*)?)$"
WORDS_PATTERN = r"^(shm://(/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?|rediss?://[^/]+(/.*)?)$"
WORDS_FORM = '"shm://", "shm:///name", "redis://user:password@host:port/0" or "rediss://..."'
BACKEND_PATTERN = r"^(memcached://.+|file:///.+)$"
ADDRESS_PATTERN = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"
URL_PATTERN = r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?([/?][!-~]*)?$"

NESTING_MAX = 8
PORT_MAX = 65535

_PLAIN = re.compile(PLAIN_PATTERN)


def check_plain_name(name: str) -> str | None:
    """Names of resources, servers and daemons: they appear in paths, labels and addresses."""
    if not name:
        return "the name is empty"
    if len(name.encode()) > NAME_MAX_BYTES:
        return f"the name is longer than {NAME_MAX_BYTES} bytes"
    if not _PLAIN.fullmatch(name):
        return "the name has other characters than letters, digits, '.', '_' and '-'"
    return None


def check_server_name(name: str) -> str | None:
    return None if name == ANYONE else check_plain_name(name)


OVERDRAFT = "//*overdraft"
"""Ends the name of an overdraft, which stands beside a tenant's. No tenant's name ends so: one that is listed
has no empty part, and one with a star is nobody's under a template."""


def check_tenant_name(name: str) -> str | None:
    """Tenants are named by others (an API key, a customer), so all that prints is allowed; "acme/search"
    is below "acme", which counts for a quota, for templates and for rights."""
    parts = name.split("/")
    if len(parts) > NESTING_MAX:
        return f"tenants are nested {len(parts)} deep, more than {NESTING_MAX}"
    if len(name.encode()) > NAME_MAX_BYTES:
        return f"the name is longer than {NAME_MAX_BYTES} bytes"
    wrong = next(filter(None, map(_check_part, parts)), None)
    return f"one of its parts will not do: {wrong}" if wrong and len(parts) > 1 else wrong


def _check_part(name: str) -> str | None:
    if not name.strip():
        return "the name is empty"
    if name != name.strip():
        return "the name begins or ends with a space"
    if not name.isprintable():
        return "the name has a character that does not print"
    return None


def check_store(url: str) -> str | None:
    return (
        None if re.fullmatch(STORE_PATTERN[1:-1], url) else f'"{url[:40]}" names no store that bursar knows'
    )


JOB_NODES_PATTERN = r"^(squeue|qstat|file:///[^\x00]+|command:[^\x00]*[^\x00\s][^\x00]*)$"


def check_job_nodes(source: str) -> str | None:
    return None if re.fullmatch(JOB_NODES_PATTERN[1:-1], source) else f'"{source[:40]}" knows no jobs'


def check_words(url: str) -> str | None:
    return None if re.fullmatch(WORDS_PATTERN[1:-1], url) else f'"{url[:40]}" names no shared words'


def check_backend(url: str) -> str | None:
    return (
        None
        if re.fullmatch(BACKEND_PATTERN[1:-1], url)
        else f'"{url[:40]}" names no backend that bursar knows'
    )


def check_address(address: str) -> str | None:
    if not re.fullmatch(ADDRESS_PATTERN[1:-1], address):
        return f'"{address[:40]}" is not a host and a port'
    port = int(address.rpartition(":")[2])
    return None if port <= PORT_MAX else f"{port} is not a port (0 to {PORT_MAX})"


def check_url(url: str) -> str | None:
    found = re.fullmatch(URL_PATTERN[1:-1], url)
    if found is None:
        return f'"{url[:40]}" is not the address of a page'
    port = int((found[2] or ":0")[1:])
    return None if port <= PORT_MAX else f"{port} is not a port (0 to {PORT_MAX})"


def find_host(url: str) -> str:
    """Where a page is: "host:port"."""
    found = re.fullmatch(URL_PATTERN[1:-1], url)
    assert found is not None, "it was checked"
    return found[1] + (found[2] or ":443")


def is_loopback(address: str) -> bool:
    """Whether an address ("host:port") is reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    at = _read_ip_address(host)
    # Another name may lead anywhere.
    return host == "localhost" if at is None else at.is_loopback


def is_ip_address(host: str) -> bool:
    return _read_ip_address(host.strip("[]")) is not None


def _read_ip_address(host: str) -> IPv4Address | IPv6Address | None:
    import ipaddress  # only the few addresses of a policy need it

    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def check_zone(name: str) -> str | None:
    """What is wrong with the name of a time zone, if anything is."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f'this machine knows no time zone "{name}"'
    return None
