"""Which certificates a list of revoked ones names.

Handshakes check the list by themselves; this is for connections that were there before the list was. Of
the format (RFC 5280, DER in PEM) only the serial numbers are read. The file is the operator's own, as
the authority's certificate beside it is; its signature is checked where it is used for handshakes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

INTEGER, SEQUENCE = 0x02, 0x30
TIMES = (0x17, 0x18)

_BLOCK = re.compile(rb"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)


def read_revoked(pem: bytes) -> frozenset[int]:
    """The serial numbers in all lists of a file. Raises ValueError if it has none, or a broken one."""
    blocks = _BLOCK.findall(pem)
    if not blocks:
        raise ValueError("no list of revoked certificates (X509 CRL) is in it")
    try:
        return frozenset(serial for block in blocks for serial in _read_list(base64.b64decode(block)))
    except (IndexError, binascii.Error, StopIteration) as error:
        raise ValueError("its list of revoked certificates is broken") from error


def _read_list(der: bytes) -> Iterator[int]:
    whole = _expect(der)
    parts = list(_split(_expect(whole)))
    last_time = max(index for index, (tag, _) in enumerate(parts) if tag in TIMES)
    following = parts[last_time + 1 : last_time + 2]
    if following and following[0][0] == SEQUENCE:
        for _, entry in _split(following[0][1]):
            yield int.from_bytes(next(value for tag, value in _split(entry) if tag == INTEGER), "big")


def _expect(der: bytes) -> bytes:
    """What is in the sequence that begins here."""
    tag, value = next(_split(der))
    if tag != SEQUENCE:
        raise ValueError("its list of revoked certificates is broken")
    return value


def _split(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Each value with its tag."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[at : at + size], "big")
            at += size
        if at + length > len(der):
            raise IndexError("cut short")
        yield tag, der[at : at + length]
        at += length
