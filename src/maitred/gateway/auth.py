"""Who may ask, and as whom: by the API key that a request shows.

A key that was shown is hashed and looked up, so a check costs the same with one tenant and with ten thousand. The table's own
comparisons could tell an attacker something of the hash they hit, so it is indexed by a tag that nobody outside can compute,
and the hash found there is compared in constant time.

Whose request is it? The first of these that there is:

    auth:ID        the caller showed the key of a tenant, or the shared one (then ID is the key's SHA-256)
    header:VALUE   a header that the operator trusts names one
    ip:ADDRESS     where the connection comes from
    anonymous      no address is known: a request that came over no network

A key beats the header, so whoever has one cannot pass for somebody else.
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

from maitred.gateway import error_responses
from maitred.gateway.config import HASH_PREFIX
from maitred.wire.asgi import Scope


class KeyRights(Enum):
    TENANT = auto()
    ALL = auto()
    """Of the key that all share: it may administrate, too."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who showed a valid key."""

    tenant: str
    """As policies name it: `auth:ID`."""
    rights: KeyRights


_NO_CALLER: Final[tuple[bytes, Caller | None]] = (bytes(32), None)


class ApiKeys:
    """The keys that open the gateway. Without any, it is open to everybody."""

    def __init__(self, shared: str | None, tenants: Mapping[str, str]) -> None:
        """`shared` and the values of `tenants` (by the tenant's id) as `hashed` has them."""
        self._secret = secrets.token_bytes(32)
        self._callers: dict[bytes, tuple[bytes, Caller | None]] = {}
        for tenant, key in tenants.items():
            self._add(key, Caller(f"auth:{tenant}", KeyRights.TENANT))
        if shared is not None:
            self._add(shared, Caller(f"auth:{shared.removeprefix(HASH_PREFIX)}", KeyRights.ALL))

    def __bool__(self) -> bool:
        return bool(self._callers)

    def authenticate(self, authorization: bytes | None) -> Caller | None:
        """Whose key the header `authorization` shows; None if nobody needs one. Raises ApiError 401."""
        if not self._callers:
            return None
        if authorization is None:
            raise error_responses.missing_api_key()
        scheme, _, key = authorization.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            raise error_responses.missing_api_key()
        digest = hashlib.sha256(key.strip()).digest()
        expected, caller = self._callers.get(self._tag(digest), _NO_CALLER)
        if not hmac.compare_digest(expected, digest) or caller is None:
            raise error_responses.invalid_api_key()
        return caller

    def require_administrator(self, authorization: bytes | None, scope: Scope) -> None:
        """Raises ApiError 401 or 403 if this request may not administrate: only the shared key may; as long as there are no
        keys at all, whoever asks from this machine."""
        caller = self.authenticate(authorization)
        if caller is None:
            if not _is_loopback(scope):
                raise error_responses.admin_forbidden("without an api_key this is allowed from the gateway's own machine only")
        elif caller.rights is not KeyRights.ALL:
            raise error_responses.admin_forbidden("this needs the gateway's own api_key; the key of a tenant is not enough")

    def _add(self, key: str, caller: Caller) -> None:
        digest = bytes.fromhex(key.removeprefix(HASH_PREFIX))
        self._callers[self._tag(digest)] = digest, caller

    def _tag(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def _is_loopback(scope: Scope) -> bool:
    peer = scope.get("client")
    try:
        return peer is not None and ip_address(peer[0]).is_loopback
    except ValueError:
        return False


ANONYMOUS: Final = "anonymous"


def resolve_tenant(caller: Caller | None, header_value: bytes | None, scope: Scope) -> str:
    """As policies name it. `named` is the value of the trusted header; None: there is none, or it is not trusted."""
    if caller is not None:
        return caller.tenant
    name = (header_value or b"").strip()
    if name:
        return f"header:{name.decode('utf-8', 'backslashreplace')}"
    peer = scope.get("client")
    return f"ip:{peer[0]}" if peer else ANONYMOUS
