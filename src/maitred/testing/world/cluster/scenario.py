"""ClusterScenario: gateways and schedulers of their own, and what else takes part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from maitred.core.units import SECOND, Micros
from maitred.gateway.admin.reload import GatewaySettings
from maitred.testing.world.scenario import Scenario

LINK_PORT: Final = 7070
PAGES_PORT: Final = 7071
SECRET: Final = b"the secret of a world"
LEADER_LEASE: Final[Micros] = 2 * SECOND
"""For how long a leader goes on without an answer of the store, µs."""


def gateway_address(number: int) -> str:
    """Return the address of a gateway."""
    return f"10.0.2.{number + 1}"


def scheduler_address(number: int) -> str:
    """Return the address of a scheduler."""
    return f"10.0.3.{number + 1}"


class ClusterScenario(Scenario, frozen=True, kw_only=True):
    """A scenario with several gateways. Its configuration is that of all of them, and of the schedulers."""

    num_gateways: int = 3
    num_schedulers: int = 2
    finds_by_store: bool = False
    """Whether gateways ask the store for the scheduler that leads; otherwise they know the addresses of all."""
    degraded: Literal["wait", "closed", "share"] = "wait"
    """What a gateway does that has had no scheduler for long."""
    degraded_after_secs: float = 10.0

    def settings_of_gateway(self, fleet: GatewaySettings, address: str) -> GatewaySettings:
        """Return the configuration of the gateway at an address, by that of all."""
        return _replace(fleet, host=address, decision_log=None)

    def settings_of_scheduler(self, fleet: GatewaySettings, decision_log: str) -> GatewaySettings:
        """Return the configuration of a scheduler, by that of all."""
        return _replace(fleet, admin_port=None, admin_auth=None, access_log=False, decision_log=decision_log)

    def fleet_settings(self, backends: Sequence[str]) -> GatewaySettings:
        """Return the configuration of all gateways and schedulers."""
        return self.settings(backends, "")


def _replace(fleet: GatewaySettings, **changes: object) -> GatewaySettings:
    return msgspec.structs.replace(fleet, gateway=msgspec.structs.replace(fleet.gateway, **changes))
