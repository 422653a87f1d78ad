"""What a pool with flow control goes by: the configuration, resolved."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from maitred.admission.config import AdmissionConfig
from maitred.admission.flow_control.config import Detector, Dispatch, DispatchOrder, Fairness, FlowControlConfig
from maitred.slo_classes import SLO_PRIORITIES, priority_of


class Lines(Enum):
    """In which lines those stand who wait at one priority, and which line is next."""

    ONE = "one for all"
    OLDEST = "one for each tenant; next is that of whoever came first, though another may be the first in it (BLIS)"
    IN_TURN = "one for each tenant, in the order of their names"
    IN_TURN_ANEW = "likewise; but where the one served last is empty, from the beginning again (BLIS)"


class FlowRules(msgspec.Struct, frozen=True, kw_only=True):
    """Complete."""

    limits: FlowControlConfig
    detector: Detector
    dispatch: Dispatch
    band_order: DispatchOrder
    """Which band is served first."""
    lines: Lines
    """Within a band."""
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
    has come before; it serves bands by priority whatever the order; within a band it first chooses a tenant, whatever the
    order, and then one of his; and it looks at the instances alone."""
    limits, blis = config.flow_control, config.flavour == "blis"
    known = {priority_of(name, config.slo_priorities) for name in (*SLO_PRIORITIES, *config.slo_priorities)}
    return FlowRules(
        limits=limits,
        detector=limits.detector(config.flavour),
        dispatch=limits.dispatch or ("one" if blis else "all"),
        band_order="priority" if blis else limits.dispatch_order,
        lines=_BLIS_LINES[limits.fairness_policy] if blis else _LINES[limits.fairness_policy],
        priorities=() if blis else tuple(known),
        counts_unseen=not blis,
    )


_LINES: Final[Mapping[Fairness, Lines]] = {"global-strict": Lines.ONE, "round-robin": Lines.IN_TURN}
_BLIS_LINES: Final[Mapping[Fairness, Lines]] = {"global-strict": Lines.OLDEST, "round-robin": Lines.IN_TURN_ANEW}
