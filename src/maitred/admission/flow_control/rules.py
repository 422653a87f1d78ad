"""What a pool with flow control goes by: the configuration, resolved."""

from __future__ import annotations

import msgspec

from maitred.admission.config import AdmissionConfig
from maitred.admission.flow_control.config import Detector, Dispatch, DispatchOrder, FlowControlConfig
from maitred.slo_classes import SLO_PRIORITIES, priority_of


class FlowRules(msgspec.Struct, frozen=True, kw_only=True):
    """Complete."""

    limits: FlowControlConfig
    detector: Detector
    dispatch: Dispatch
    band_order: DispatchOrder
    """Which band is served first."""
    priorities: tuple[int, ...]
    """Bands that are there before anybody waits in them."""
    counts_unseen: bool
    """Whether those count for the saturation who were let in, and whom the load does not show yet."""

    @property
    def ticks(self) -> bool:
        """Whether time alone may let somebody in: the load of instances changes, or one may enter per tick. Requests in flight
        change by what the core is told."""
        return self.dispatch == "one" or self.detector == "utilization"


def flow_rules(config: AdmissionConfig) -> FlowRules:
    """BLIS makes a band when somebody first comes to wait in it, so that how urgent the second most urgent is depends on who
    has come before; it serves bands by priority whatever the order; and looks at the instances alone."""
    limits, blis = config.flow_control, config.flavour == "blis"
    known = {priority_of(name, config.slo_priorities) for name in (*SLO_PRIORITIES, *config.slo_priorities)}
    return FlowRules(
        limits=limits,
        detector=limits.saturation_detector or ("never" if blis else "concurrency"),
        dispatch=limits.dispatch or ("one" if blis else "all"),
        band_order="priority" if blis else limits.dispatch_order,
        priorities=() if blis else tuple(known),
        counts_unseen=not blis,
    )
