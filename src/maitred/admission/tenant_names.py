"""How tenants are called, and names that no tenant can have."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

_TENANTS: Final[Mapping[str, str]] = {"auth": "auth:ID", "header": "header:VALUE", "ip": "ip:ADDRESS"}


def tenant_problem(tenant: str) -> str | None:
    """Why no request can ever come from a tenant of that name; None if one can."""
    kind, colon, name = tenant.partition(":")
    if tenant == "anonymous":
        return None
    if not colon or kind not in _TENANTS:
        return f"{tenant!r} matches nobody: write auth:{tenant}, header:{tenant}, ip:ADDRESS or anonymous"
    if not name or name != name.strip():
        return f"{tenant!r} matches nobody: write {_TENANTS[kind]}, without spaces around it"
    if kind == "ip":
        try:
            normal = str(ip_address(name))
        except ValueError:
            return f"{tenant!r} matches nobody: {name!r} is not an IP address"
        if normal != name:
            return f"{tenant!r} matches nobody: write ip:{normal}"
    return None
