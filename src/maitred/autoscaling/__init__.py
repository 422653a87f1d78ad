"""How many instances? A policy looks at the fleet from time to time and says how many it wants.

    base.py        the registry, and what a policy is shown
    policies.py    the policies

The driver (`sim.fleet_scaler`) starts and drains instances, and keeps to the minimum, the maximum and the delays.
"""

from __future__ import annotations

from maitred.autoscaling.base import AUTOSCALERS, Autoscaler, AutoscalerInfo, FleetState

__all__ = ["AUTOSCALERS", "Autoscaler", "AutoscalerInfo", "FleetState"]
