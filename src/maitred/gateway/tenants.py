"""Whose request is it? The first of these that there is:

    auth:ID        the caller showed the key of a tenant, or the shared one (then ID is the key's SHA-256)
    header:VALUE   a header that the operator trusts names one
    ip:ADDRESS     where the connection comes from
    anonymous      no address is known: a request that came over no network

A key beats the header, so whoever has one cannot pass for somebody else.
"""

from __future__ import annotations

from typing import Final

from maitred.gateway.auth import Caller
from maitred.wire.asgi import Scope

ANONYMOUS: Final = "anonymous"


def tenant_of(caller: Caller | None, named: bytes | None, scope: Scope) -> str:
    """As policies name it. `named` is the value of the trusted header; None: there is none, or it is not trusted."""
    if caller is not None:
        return caller.tenant
    name = (named or b"").strip()
    if name:
        return f"header:{name.decode('utf-8', 'backslashreplace')}"
    peer = scope.get("client")
    return f"ip:{peer[0]}" if peer else ANONYMOUS
