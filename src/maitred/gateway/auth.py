"""API keys: who may ask, and as whom.

Of a key that clients show, only its SHA-256 is kept. A key that was shown is hashed and looked up, so a check costs the same
with one tenant and with ten thousand. The table's own comparisons could tell an attacker something of the hash they hit, so
it is indexed by a tag that nobody outside can compute, and the hash found there is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

import msgspec

HASHED: Final = "sha256:"
"""Before the hash of a key, in hexadecimal."""
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_SENDABLE: Final = re.compile(r"[!-~]+")
_BEARER: Final = b"bearer "


def hashed(key: str) -> str:
    """`key` as sha256:HEX, if it is not that already. Raises ValueError for what cannot be a key; it is not repeated there."""
    if key.startswith(HASHED):
        if not _DIGEST.fullmatch(key.removeprefix(HASHED)):
            raise ValueError("must have 64 hexadecimal digits after sha256:")
        return key.lower()
    if not sendable(key):
        raise ValueError("must be visible ASCII characters without spaces")
    return HASHED + hashlib.sha256(key.encode()).hexdigest()


def sendable(key: str) -> bool:
    """Whether it can stand in a header."""
    return bool(_SENDABLE.fullmatch(key))


class Rights(Enum):
    TENANT = auto()
    ALL = auto()
    """Of the key that all share: it may administrate, too."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who showed a valid key."""

    tenant: str
    """As policies name it: `auth:ID`."""
    rights: Rights


class Keys:
    """The keys that open the gateway. Without any, it is open to everybody."""

    def __init__(self, shared: str | None, tenants: Mapping[str, str]) -> None:
        """`shared` and the values of `tenants` (by the tenant's id) as `hashed` has them."""
        self._secret = secrets.token_bytes(32)
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        for tenant, key in tenants.items():
            self._add(key, Caller(f"auth:{tenant}", Rights.TENANT))
        if shared is not None:
            self._add(shared, Caller(f"auth:{shared.removeprefix(HASHED)}", Rights.ALL))

    def __bool__(self) -> bool:
        return bool(self._callers)

    def caller(self, authorization: bytes) -> Caller | None:
        """Whose key the header `authorization` shows; None: nobody's."""
        if authorization[: len(_BEARER)].lower() != _BEARER:
            return None
        digest = hashlib.sha256(authorization[len(_BEARER) :].strip()).digest()
        found = self._callers.get(self._tag(digest))
        if found is None or not hmac.compare_digest(found[0], digest):
            return None
        return found[1]

    def _add(self, key: str, caller: Caller) -> None:
        digest = bytes.fromhex(key.removeprefix(HASHED))
        self._callers[self._tag(digest)] = digest, caller

    def _tag(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")
