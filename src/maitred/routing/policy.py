"""The registry of routers and the configuration that names one."""

from __future__ import annotations

from random import Random

import msgspec

from maitred.contracts import Router
from maitred.registry import Registry

ROUTERS: Registry[Router] = Registry("routing policy", group="maitred.routers", methods=["choose", "left"])


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an instance is chosen."""

    policy: str = "least-loaded"

    def router(self, rng: Random) -> Router:
        """Raises ConfigError for an unknown policy."""
        return ROUTERS.get(self.policy)(rng)
