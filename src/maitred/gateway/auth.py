"""Who may ask, and as whom: by the API key that a request shows.

A key that was shown is hashed and looked up, so a check costs the same with one tenant and with ten thousand. The table's own
comparisons could tell an attacker something of the hash they hit, so it is indexed by a tag that nobody outside can compute,
and the hash found there is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from enum import Enum, auto
from ipaddress import ip_address
from typing import Final

import msgspec

from maitred.gateway import refusals
from maitred.gateway.keys import HASHED
from maitred.wire.asgi import Scope


class Rights(Enum):
    TENANT = auto()
    ALL = auto()
    """Of the key that all share: it may administrate, too."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who showed a valid key."""

    tenant: str
    """As policies name it: `auth:ID`."""
    rights: Rights


_NOBODY: Final[tuple[bytes, Caller | None]] = (bytes(32), None)


class Keys:
    """The keys that open the gateway. Without any, it is open to everybody."""

    def __init__(self, shared: str | None, tenants: Mapping[str, str]) -> None:
        """`shared` and the values of `tenants` (by the tenant's id) as `hashed` has them."""
        self._secret = secrets.token_bytes(32)
        self._callers: dict[bytes, tuple[bytes, Caller | None]] = {}
        for tenant, key in tenants.items():
            self._add(key, Caller(f"auth:{tenant}", Rights.TENANT))
        if shared is not None:
            self._add(shared, Caller(f"auth:{shared.removeprefix(HASHED)}", Rights.ALL))

    def __bool__(self) -> bool:
        return bool(self._callers)

    def caller(self, authorization: bytes | None) -> Caller | None:
        """Whose key the header `authorization` shows; None if nobody needs one. Raises ApiError 401."""
        if not self._callers:
            return None
        if authorization is None:
            raise refusals.missing_key()
        scheme, _, key = authorization.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            raise refusals.missing_key()
        digest = hashlib.sha256(key.strip()).digest()
        expected, caller = self._callers.get(self._tag(digest), _NOBODY)
        if not hmac.compare_digest(expected, digest) or caller is None:
            raise refusals.wrong_key()
        return caller

    def administrator(self, authorization: bytes | None, scope: Scope) -> None:
        """Raises ApiError 401 or 403 if this request may not administrate: only the shared key may; as long as there are no
        keys at all, whoever asks from this machine."""
        caller = self.caller(authorization)
        if caller is None:
            if not _is_loopback(scope):
                raise refusals.not_admin("without an api_key this is allowed from the gateway's own machine only")
        elif caller.rights is not Rights.ALL:
            raise refusals.not_admin("this needs the gateway's own api_key; the key of a tenant is not enough")

    def _add(self, key: str, caller: Caller) -> None:
        digest = bytes.fromhex(key.removeprefix(HASHED))
        self._callers[self._tag(digest)] = digest, caller

    def _tag(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def _is_loopback(scope: Scope) -> bool:
    peer = scope.get("client")
    try:
        return peer is not None and ip_address(peer[0]).is_loopback
    except ValueError:
        return False
