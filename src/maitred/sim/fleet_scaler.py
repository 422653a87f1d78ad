"""Autoscaling: instances are started and drained while the run goes on, as a policy wants (`autoscaling`).

The policy is asked every `interval_secs`. More instances are wanted at once: first those that drain serve again, then others
begin a cold start of `cold_start_secs` and come with empty caches. Fewer are wanted only if the policy has wanted no more for
`scale_down_delay_secs` (the stabilisation window of Kubernetes' Horizontal Pod Autoscaler), of which the size at the beginning
is the first entry: first cold starts are broken off,
then the instances with the fewest requests in flight drain. One that drains gets no more requests, works until its last one
has ended, and is gone with it.

    OFF -> STARTING -> SERVING -> DRAINING -> OFF
              |           ^___________|
              v
             OFF

The policy counts what waits in admission as waiting and in flight: with slots that follow the instances, a queue in front of a
small fleet is all that shows it to be small.

GPUs are held, and paid, in all states but OFF. Where the slots of admission are reported, they are those of the serving
instances.

Example: `in-flight(target=2)`, a look every 5 s, cold starts of 10 s. From t = 0 on 10 requests are in flight at one instance.
At t = 5 s the policy wants 5, so 4 start and serve from t = 15 s on.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from typing import Final

from maitred.admission.terms.lead import NO_LEAD
from maitred.autoscaling import AUTOSCALERS, FleetState
from maitred.compat.instance_rules import instance_rules
from maitred.core.errors import ConfigError
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros, from_seconds
from maitred.instance import InstanceConfig
from maitred.programs import ProgramsConfig
from maitred.sim.admission_driver import AdmissionDriver
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.lifecycle import RequestLifecycle
from maitred.sim.membership import InstanceState, Membership
from maitred.sim.replica import Replica

_SERVING: Final = InstanceState.SERVING
_DRAINING: Final = InstanceState.DRAINING
_STARTING: Final = InstanceState.STARTING
_OFF: Final = InstanceState.OFF


class FleetScaler:
    """The policy, and the instances that start and drain as it wants."""

    def __init__(
        self,
        cluster: ClusterConfig,
        fleet: SimulatedFleet,
        driver: AdmissionDriver | None,
        arrivals: ArrivalFeed,
        event_queue: EventQueue,
    ) -> None:
        """`driver` is that of admission if its slots follow the instances."""
        config = self._config = cluster.autoscaling
        self._policy = AUTOSCALERS.create(config.policy)
        self._fleet, self._driver = fleet, driver
        self._arrivals, self._event_queue = arrivals, event_queue
        self._membership = fleet.membership = Membership(fleet.views)
        self._interval, self._cold_start = from_seconds(config.interval_secs), from_seconds(config.cold_start_secs)
        self._delay = from_seconds(config.scale_down_delay_secs)
        self._ready_at: dict[int, Micros] = {}
        """When the cold start of each starting instance is over."""
        # The size at the beginning counts as wanted then, as that at the first look of Kubernetes' autoscaler does.
        self._wanted: deque[tuple[Micros, int]] = deque([(0, cluster.num_instances)])
        """What the policy has wanted within the delay."""
        self._ttfts: list[Micros] = []
        self._lifecycle: RequestLifecycle
        for replica in fleet.replicas[cluster.num_instances :]:
            self._membership.enter(replica.index, _OFF, 0)
        fleet.views = self._membership.serving

    def attach(self, lifecycle: RequestLifecycle) -> None:
        """Set the object that knows the requests, and schedule the first look."""
        self._lifecycle = lifecycle
        self._event_queue.push(self._interval, SimEventKind.SCALING)

    def on_request_end(self, seq: SequenceState | None, replica: Replica | None, now: Micros) -> None:
        """Note the TTFT of a request that has ended, and that the instance may be gone with it."""
        if seq is not None and seq.first_token_at is not None:
            self._ttfts.append(seq.first_token_at - seq.request.arrival)
        if replica is not None and self._membership.state(replica.index) is _DRAINING and not replica.in_flight:
            self._enter(replica.index, _OFF, now)

    def on_started(self, index: int, now: Micros) -> None:
        """Let an instance serve whose cold start is over, unless it was broken off."""
        if self._ready_at.get(index) == now:
            del self._ready_at[index]
            self._fleet.restart(self._fleet.replicas[index])
            self._enter(index, _SERVING, now)

    def on_look(self, now: Micros) -> None:
        """Ask the policy, and start or drain instances. A run without requests has no more looks."""
        if not (self._arrivals or self._lifecycle.live):
            return
        self._event_queue.push(now + self._interval, SimEventKind.SCALING)
        for index in self._in_state(_DRAINING):  # also those whose last request has left for another instance
            if not self._fleet.replicas[index].in_flight:
                self._enter(index, _OFF, now)
        wanted = min(max(self._desired(now), self._config.min_instances), self._config.max_instances)
        size = len(self._in_state(_SERVING)) + len(self._ready_at)
        while self._wanted and self._wanted[0][0] <= now - self._delay:
            self._wanted.popleft()
        self._wanted.append((now, wanted))
        if wanted > size:
            self._grow(wanted - size, now)
        else:
            self._shrink(size - max(each for _, each in self._wanted), now)

    def _desired(self, now: Micros) -> int:
        """Return what the policy wants. Raises ConfigError for one of somebody's own that wants no whole number."""
        desired = self._policy.desired(self._state(now))
        try:
            return operator.index(desired)
        except TypeError as error:
            what = f"{self._config.policy} wants {desired!r} instances"
            raise ConfigError(what, where="cluster.autoscaling.policy", hint="desired() returns a whole number") from error

    def _state(self, now: Micros) -> FleetState:
        serving = [self._fleet.replicas[index] for index in self._in_state(_SERVING)]
        for replica in serving:
            # SCALING comes after the turns of all instances, so steps that end now count.
            replica.instance.commit_ended_steps(now)
        ttfts, self._ttfts = self._ttfts, []
        outside = len(self._lifecycle.live) - sum(replica.in_flight for replica in self._fleet.replicas)
        return FleetState(
            serving=len(serving),
            starting=len(self._ready_at),
            in_flight=outside + sum(replica.in_flight for replica in serving),
            waiting=outside + sum(replica.waiting for replica in serving),
            running=sum(replica.running for replica in serving),
            slots=self._fleet.slots_of([replica.index for replica in serving]),
            kv_usage=sum(replica.instance.kv_usage for replica in serving) / len(serving) if serving else 0.0,
            ttfts=ttfts,
        )

    def _grow(self, count: int, now: Micros) -> None:
        draining = self._in_state(_DRAINING)[:count]
        for index in draining:
            self._enter(index, _SERVING, now)
        for index in self._in_state(_OFF)[: count - len(draining)]:
            self._enter(index, _STARTING, now)
            self._ready_at[index] = now + self._cold_start
            self._event_queue.push(now + self._cold_start, SimEventKind.FLEET, index)

    def _shrink(self, count: int, now: Micros) -> None:
        for _ in range(count):
            if self._ready_at:
                index = max(self._ready_at)
                del self._ready_at[index]
                self._enter(index, _OFF, now)
                continue
            replicas = self._fleet.replicas
            index = min(self._in_state(_SERVING), key=lambda each: (replicas[each].in_flight, -each))
            self._enter(index, _DRAINING if replicas[index].in_flight else _OFF, now)

    def _enter(self, index: int, state: InstanceState, now: Micros) -> None:
        self._membership.enter(index, state, now)
        self._fleet.views = self._membership.serving
        if self._driver is not None:
            self._driver.resize(self._fleet.slots_of(self._in_state(_SERVING)), now, NO_LEAD)

    def _in_state(self, state: InstanceState) -> Sequence[int]:
        return [replica.index for replica in self._fleet.replicas if self._membership.state(replica.index) is state]


def make_autoscaler(
    cluster: ClusterConfig,
    instance: InstanceConfig,
    programs: ProgramsConfig | None,
    fleet: SimulatedFleet,
    driver: AdmissionDriver | None,
    arrivals: ArrivalFeed,
    event_queue: EventQueue,
) -> FleetScaler | None:
    """Build the scaler of the fleet, or return None if its size is fixed. Raises ConfigError beside options that exclude it."""
    if not cluster.autoscaling.policy:
        return None
    for part, is_used in (
        ("failures", cluster.failures.mtbf_secs is not None),
        ("prefill and decode instances", bool(cluster.disaggregation)),
        ("instance groups", bool(cluster.groups)),
        ("slow instances", bool(cluster.failures.slow_instances)),
        ("learned slots", cluster.slots == "learned"),
        ("changes of limits", bool(cluster.limit_changes)),
        ("programs", programs is not None and programs.mode != "off"),
        ("a delayed view of caches", bool(cluster.cache_signal_delay_ms)),
        (f"flavour {instance.flavour}", instance_rules(instance).starts_in_turn),
    ):
        if is_used:
            raise ConfigError(f"autoscaling is not simulated with {part}", where="cluster.autoscaling", hint="leave out one")
    return FleetScaler(cluster, fleet, driver if cluster.capacity is None else None, arrivals, event_queue)
