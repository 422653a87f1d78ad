"""Which tenants requests can come from, under one configuration (`auth.resolve_tenant`), and which rules wait for others.

    with keys      the tenants of the keys alone: every request needs one, and the key names its tenant
    without keys   addresses, and what the trusted header names, if one is trusted

A rule for any other tenant, such as a weight of `auth:acme` where acme has no key, never has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from maitred.admission import AdmissionConfig
from maitred.admission.terms.tenants import tenant_problem
from maitred.core.errors import nearest_name_hint
from maitred.gateway.config import HASH_PREFIX, GatewayConfig


def tenant_warnings(gateway: GatewayConfig, admission: AdmissionConfig) -> Iterator[str]:
    """Yield a warning for each rule about a tenant that no request can come from. Names that are malformed are left to
    `AdmissionConfig.warnings`."""
    for key, tenants in (("tenant_policies", admission.tenant_policies), ("tenant_budgets", admission.tenant_budgets)):
        for tenant in tenants:
            problem = None if tenant_problem(tenant) else _why_impossible(tenant, gateway)
            if problem is not None:
                yield f"admission.{key}: no request can come from {tenant}: {problem}"
    if gateway.has_keys and gateway.trust_tenant_header:
        yield "gateway.trust_tenant_header has no effect: every request needs a key, which names its tenant"


def _why_impossible(tenant: str, gateway: GatewayConfig) -> str | None:
    """Return why no request can come from `tenant`, or None if one can."""
    kind, _, name = tenant.partition(":")
    if not gateway.has_keys:
        if kind == "auth":
            return "there are no keys (gateway.tenant_api_keys)"
        if kind == "header" and not gateway.trust_tenant_header:
            return "no header is trusted (gateway.trust_tenant_header)"
        return None
    if kind != "auth":
        return "every request needs a key, which names its tenant (auth:ID)"
    if gateway.has_further_keys:  # It may have a key there.
        return None
    shared = gateway.api_key
    if name in gateway.tenant_api_keys or (shared is not None and name == shared.removeprefix(HASH_PREFIX)):
        return None
    return f"{name} has no key in gateway.tenant_api_keys ({nearest_name_hint(name, gateway.tenant_api_keys)})"
