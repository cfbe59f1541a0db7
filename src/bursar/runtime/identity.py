"""How a node proves that it belongs to the fleet, before anything of the nodes' own is listened to.

The fleet's secret is in the store, so whoever may read the store is a node and nobody else is. Both sides
draw a nonce for each connection, and each shows an HMAC of both by the secret:

    dialler -> HELLO(name, incarnation, nonce)
    dialled -> HELLO(name, incarnation, nonce, proof)
    dialler -> PROOF(proof)

The two proofs differ by a label, so that neither can be sent back as the other, and name both sides, so
that none is worth anything at another node. A client has no nonce and proves nothing: its name has a
slash ("web/7f3a"), a node's has none, and neither can be taken for the other.
"""

from __future__ import annotations

import hmac
import secrets

import msgspec

from bursar.runtime.frames import Hello

NONCE_BYTES = 16
DIALLER, DIALLED = "bursar dialler", "bursar dialled"

_encode = msgspec.msgpack.Encoder().encode


def draw_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def prove(secret: bytes, label: str, dialler: Hello, dialled: Hello) -> bytes:
    """What the side with that label shows."""
    sides = [(hello.name, hello.incarnation, hello.nonce) for hello in (dialler, dialled)]
    return hmac.digest(secret, _encode((label, sides)), "sha256")


def is_proved(secret: bytes, label: str, dialler: Hello, dialled: Hello, proof: bytes) -> bool:
    """Whether that side knows the secret."""
    fresh = len(dialler.nonce) == len(dialled.nonce) == NONCE_BYTES
    return fresh and hmac.compare_digest(prove(secret, label, dialler, dialled), proof)


def is_client_name(name: str) -> bool:
    return "/" in name
