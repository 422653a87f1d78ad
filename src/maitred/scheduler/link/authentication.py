"""Both ends of a link show each other that they know a secret, without saying it.

    gateway      Greeting(nonce g)
    scheduler    Challenge(nonce s, HMAC(secret, "scheduler" g s))
    gateway      Proof(HMAC(secret, "gateway" g s))

A proof covers both nonces, so one that was overheard is of no use on another connection; and it names the side, so an end that
does not know the secret cannot have its peer make the proof that it lacks. This keeps out who does not know the secret. It
hides nothing and does not guard the bytes that follow: on a network that others can write to, use TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from typing import Final

from maitred.scheduler.link.messages import VERSION

NONCE_BYTES: Final = 32


class Side(StrEnum):
    """Which end of a link."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"


def make_proof(secret: bytes, side: Side, gateway_nonce: bytes, scheduler_nonce: bytes) -> bytes:
    """Return the proof by which `side` shows on this connection that it knows the secret."""
    said = b"maitred link %d %s " % (VERSION, side.encode()) + gateway_nonce + scheduler_nonce
    return hmac.new(secret, said, hashlib.sha256).digest()


def is_proof(proof: bytes, secret: bytes, side: Side, gateway_nonce: bytes, scheduler_nonce: bytes) -> bool:
    """Return whether `proof` is that of `side` on this connection."""
    return hmac.compare_digest(proof, make_proof(secret, side, gateway_nonce, scheduler_nonce))
