"""What the pages of schedulers and gateways say of the link between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from maitred.core.histogram import Histogram
from maitred.core.units import Micros, to_seconds
from maitred.gateway.observe.metric_families import counter, gauge, histogram
from maitred.gateway.observe.state import ClusterState, LinkedGatewayState
from maitred.scheduler.interface import BookedGateway, ModeTimes, RemoteScheduler, SchedulerHost
from maitred.wire.clock import Clock

SCHEDULER_MODES: Final = ("standby", "learning", "leading")
GATEWAY_MODES: Final = ("linked", "waiting", "share", "closed")


class SchedulerView:
    """Looks at a scheduler."""

    def __init__(self, name: str, host: SchedulerHost, clock: Clock) -> None:
        self._name, self._host, self._clock = name, host, clock

    def state(self) -> ClusterState:
        """Return its leadership, and its gateways."""
        leadership, elector = self._host.leadership, self._host.leadership.elector
        leader = None if elector is None else elector.leader
        return ClusterState(
            role="scheduler",
            name=self._name,
            mode=leadership.mode,
            epoch=leadership.epoch or leadership.highest_epoch,
            leader=None if leader is None else leader.address,
            problem=None if elector is None else elector.problem,
            gateways=[_gateway_state(each, self._clock.now()) for each in self._host.end.books.gateways.values()],
        )

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        host, state = self._host, self.state()
        yield from _mode_families(host.leadership.modes, SCHEDULER_MODES, state.epoch, self._clock.now())
        slots, connected = Counter[str](), 0
        for gateway in state.gateways:
            slots[gateway.name] += gateway.in_flight
            connected += gateway.connected
        yield gauge("maitred_cluster_gateways", "Gateways that are connected.", [], [([], connected)])
        rows = (([name], n) for name, n in slots.items())
        yield gauge("maitred_cluster_gateway_slots", "Slots that a gateway holds.", ["gateway"], rows)
        text = "Slots of gateways that were gone which are free again, since this scheduler leads."
        yield counter("maitred_cluster_reclaimed_slots", text, [], [([], host.end.settling.num_reclaimed)])


class GatewayView:
    """Looks at a gateway's end of the link."""

    def __init__(self, scheduler: RemoteScheduler, clock: Clock) -> None:
        self._scheduler, self._clock = scheduler, clock

    def state(self) -> ClusterState:
        """Return how its link is."""
        link = self._scheduler.link
        lease_until = link.end.lease.until
        return ClusterState(
            role="gateway",
            name=link.end.name,
            mode=self._scheduler.unlinked.mode,
            epoch=link.end.epoch,
            leader=None if lease_until is None else str(link.dialer.address),
            problem=link.problem,
            lease_secs=None if lease_until is None else round(to_seconds(lease_until - self._clock.now()), 3),
        )

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        end = self._scheduler.link.end
        yield from self.mode_families()
        yield from link_families(end.lease.answer_times, end.num_grants, end.num_declined)

    def mode_families(self) -> Iterator[Metric]:
        """Yield the mode of the link, and the time in each."""
        epoch = self._scheduler.link.end.epoch
        yield from _mode_families(self._scheduler.unlinked.modes, GATEWAY_MODES, epoch, self._clock.now())


def link_families(answer_times: Histogram, num_grants: int, num_declined: int) -> Iterator[Metric]:
    """Yield what was counted at links to schedulers."""
    text = "Time from a beat to its answer."
    yield histogram("maitred_link_latency_seconds", text, [], [([], answer_times)])
    yield counter("maitred_link_grants", "Slots that the scheduler has granted.", [], [([], num_grants)])
    text = "Preemptions that came after the first byte."
    yield counter("maitred_link_declined_preemptions", text, [], [([], num_declined)])


def _gateway_state(gateway: BookedGateway, now: Micros) -> LinkedGatewayState:
    in_flight = sum(request.holds_slot for request in gateway.requests.values())
    return LinkedGatewayState(
        name=gateway.id[0],
        connected=gateway.connection is not None,
        in_flight=in_flight,
        waiting=len(gateway.requests) - in_flight,
        heard_secs_ago=round(to_seconds(now - gateway.heard_at), 3),
    )


def _mode_families(times: ModeTimes, modes: Sequence[str], epoch: int, now: Micros) -> Iterator[Metric]:
    here, spans = times.mode, times.spans(now)
    text = "1 for the mode of this end of the link."
    yield gauge("maitred_cluster_mode", text, ["mode"], (([mode], mode == here) for mode in modes))
    text = "Time in each mode."
    yield counter("maitred_cluster_mode_seconds", text, ["mode"], (([mode], to_seconds(spans[mode])) for mode in modes))
    yield gauge("maitred_cluster_epoch", "The epoch under which a scheduler leads, as far as is known.", [], [([], epoch)])
