"""Authentication: whether a request may be served, and which tenant sends it. Which pages a sender may see: `page_access`.

**API keys.** A key comes as `Authorization: Bearer KEY`, or without that header as `x-api-key: KEY`, which is how Anthropic's
SDKs send it (`request_fields.read_credentials`). It is hashed and looked up, so that a check costs the same with one tenant and
with ten thousand. The comparisons inside a dict could tell an attacker something about the stored hashes. So the table is
indexed by a tag that cannot be computed outside this process, and the hash found there is compared in constant time.

**The tenant** is the first of these that applies:

    auth:ID        the request has the key of a tenant, or the shared one (then ID is the key's SHA-256)
    header:VALUE   a header that the operator trusts names one; of a VALUE beyond 128 characters, its hash
    ip:ADDRESS     the address of the connection
    anonymous      no address is known: the request came over no network

A key beats the header, so a client with a key of its own cannot pass for another tenant.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from maitred.admission.terms.tenants import KEY_TENANT_PREFIX
from maitred.core.request import PriorityClass
from maitred.gateway import error_responses
from maitred.gateway.bodies.request_fields import shorten_name
from maitred.gateway.config import HASH_PREFIX, keys_of_tenant
from maitred.wire.exchange import ClientAddress

T = TypeVar("T")


class KeyRights(Enum):
    """What a key allows."""

    TENANT = auto()
    """Send requests."""
    ALL = auto()
    """Send requests, and do what the operator may: the shared key."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The tenant that a valid key stands for, and what the key allows."""

    tenant: str
    """The name of the tenant in policies, `auth:ID`."""
    rights: KeyRights
    priority_class: PriorityClass | None = None
    """The highest class of its requests, in place of that of the tenant, and the class of those that name none. None: as the
    rules of the tenant have it."""


class KeyTable(Generic[T]):
    """What keys stand for, by their SHA-256. A look-up tells nothing of the hashes by the time that it takes."""

    def __init__(self, known: Mapping[bytes, T]) -> None:
        self._secret = secrets.token_bytes(32)
        self._known = {self._tag(digest): (digest, value) for digest, value in known.items()}

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, digest: bytes) -> T | None:
        """Return the value stored for a key, or None for an unknown one."""
        found = self._known.get(self._tag(digest))
        # An unknown key is compared as well, with a hash that no key has, so that refusing it takes the same time.
        is_right = hmac.compare_digest(_NO_HASH if found is None else found[0], digest)
        return found[1] if is_right and found is not None else None

    def _tag(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


_NO_HASH: Final = bytes(32)


class FurtherKeys(Protocol):
    """Keys that are not in the configuration (`caller_sources`)."""

    def find(self, key: bytes, digest: bytes) -> Caller | None:
        """Return whose key this is, or None if it is not known here. Raises ApiError for one that is not valid."""
        ...


class ApiKeys:
    """The keys that open the gateway. Without any key it is open to every client."""

    def __init__(
        self, shared: str | None, tenants: Mapping[str, str | tuple[str, ...]], further: Sequence[FurtherKeys] = ()
    ) -> None:
        """`shared` and the values of `tenants`, one or several by tenant id, are hashes as `hash_api_key` returns them.
        `further` are asked for keys that are none of these."""
        callers = dict[str, Caller]()
        for tenant, given in tenants.items():
            for key in keys_of_tenant(given):
                callers[key] = Caller(f"{KEY_TENANT_PREFIX}{tenant}", KeyRights.TENANT)
        if shared is not None:
            callers[shared] = Caller(f"{KEY_TENANT_PREFIX}{shared.removeprefix(HASH_PREFIX)}", KeyRights.ALL)
        self._callers = KeyTable({bytes.fromhex(key.removeprefix(HASH_PREFIX)): caller for key, caller in callers.items()})
        self._further = further

    def __bool__(self) -> bool:
        return bool(self._callers) or bool(self._further)

    def authenticate(self, credentials: bytes | None) -> Caller | None:
        """Return the owner of the key that `credentials`, a value of `Authorization`, names, or None if no keys are configured.
        Raises ApiError 401, or 503 if it may be valid
        soon."""
        if not self:
            return None
        if credentials is None:
            raise error_responses.missing_api_key()
        scheme, _, key = credentials.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            raise error_responses.missing_api_key()
        key = key.strip()
        digest = hashlib.sha256(key).digest()
        caller = self._callers.find(digest)
        if caller is not None:
            return caller
        for further in self._further:
            caller = further.find(key, digest)
            if caller is not None:
                return caller
        raise error_responses.invalid_api_key()


ANONYMOUS: Final = "anonymous"


def resolve_tenant(caller: Caller | None, header_value: bytes | None, client: ClientAddress) -> str:
    """Return the tenant of a request. `header_value` is that of the trusted header, or None if there is none."""
    if caller is not None:
        return caller.tenant
    name = (header_value or b"").strip()
    if name:
        return f"header:{shorten_name(name.decode('utf-8', 'backslashreplace'))}"
    return f"ip:{client[0]}" if client else ANONYMOUS
