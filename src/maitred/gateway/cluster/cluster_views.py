"""What the pages of schedulers and gateways say of the link between them."""

from __future__ import annotations

from maitred.core.units import to_seconds
from maitred.gateway.observe.state import ClusterState, LinkedGatewayState
from maitred.scheduler.interface import RemoteScheduler, SchedulerHost
from maitred.wire.clock import Clock


class SchedulerView:
    """Looks at a scheduler."""

    def __init__(self, name: str, host: SchedulerHost) -> None:
        self._name, self._host = name, host

    def state(self) -> ClusterState:
        """Return its leadership, and its gateways."""
        host, elector = self._host, self._host.elector
        leader = None if elector is None else elector.leader
        return ClusterState(
            role="scheduler",
            name=self._name,
            mode=host.mode,
            epoch=host.epoch or host.highest_epoch,
            leader=None if leader is None else leader.address,
            problem=None if elector is None else elector.problem,
            gateways=[LinkedGatewayState(*each) for each in host.gateway_views()],
        )


class GatewayView:
    """Looks at a gateway's end of the link."""

    def __init__(self, scheduler: RemoteScheduler, clock: Clock) -> None:
        self._scheduler, self._clock = scheduler, clock

    def state(self) -> ClusterState:
        """Return how its link is."""
        link = self._scheduler.link
        lease_until = link.end.lease_until
        return ClusterState(
            role="gateway",
            name=link.end.name,
            mode=self._scheduler.mode,
            epoch=link.end.epoch,
            leader=None if lease_until is None else str(link.dialer.address),
            problem=link.problem,
            lease_secs=None if lease_until is None else round(to_seconds(lease_until - self._clock.now()), 3),
        )
