"""Failures: instances stop serving at random instants, lose all that is in them, and come back with empty caches.

Each instance alternates between serving and being down. Both times are drawn from exponential distributions, with the means
`mtbf_secs` and `mttr_secs`, from a random stream of the instance, so that instances fail independently of each other:

    availability = MTBF / (MTBF + MTTR)
    P(at least k of n serve) = Σ over i = k..n of C(n, i) · availability^i · (1 - availability)^(n - i)

(R. E. Barlow, F. Proschan, Mathematical Theory of Reliability, 1965.) The requests of a failed instance fare as behind a
gateway. One whose client has seen nothing yet (no token of a streamed answer) is routed again at once and keeps its slot; it
ends as FAILED where its client has seen a token, where `max_attempts` instances have been tried, and where no instance serves.
Where the slots of admission are reported, they are
those of the serving instances. What an instance would have emitted at the very instant of its failure is lost with it.

    t = 10.0 s   instance 1 fails. Request 7 waits in it, request 8 has streamed 20 tokens
                 7 goes to instance 0, where its prompt is computed anew; 8 ends as FAILED with 20 tokens
    t = 75.2 s   instance 1 serves again; its cache is empty

Not simulated: the time until a gateway notices (a connection to a process that has died is refused at once), failures of
several instances together, and instances that answer wrongly.
"""

from __future__ import annotations

from random import Random

from maitred.admission.terms.lead import NO_LEAD
from maitred.compat.instance_rules import instance_rules
from maitred.core.errors import ConfigError
from maitred.core.units import Micros, from_seconds
from maitred.instance import InstanceConfig
from maitred.programs import ProgramsConfig
from maitred.sim.admission_driver import AdmissionDriver
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.lifecycle import InstanceLifecycle
from maitred.sim.membership import InstanceState, Membership


class Failures:
    """The failures and repairs of all instances."""

    def __init__(
        self,
        cluster: ClusterConfig,
        fleet: SimulatedFleet,
        driver: AdmissionDriver | None,
        arrivals: ArrivalFeed,
        event_queue: EventQueue,
        seed: int,
    ) -> None:
        """`driver` is that of admission if its slots follow the instances."""
        config = cluster.failures
        assert config.mtbf_secs is not None
        self._means = {InstanceState.SERVING: config.mtbf_secs, InstanceState.DOWN: config.mttr_secs}
        self.max_attempts = config.max_attempts
        self._fleet, self._driver = fleet, driver
        self._membership = fleet.membership = Membership(fleet.views)
        self._arrivals, self._event_queue = arrivals, event_queue
        self._streams = [Random(f"{seed}/failures/{replica.index}") for replica in fleet.replicas]
        self._lifecycle: InstanceLifecycle

    def attach(self, lifecycle: InstanceLifecycle) -> None:
        """Set the object that carries out the effects of failures, and draw the first ones."""
        self._lifecycle = lifecycle
        for index in range(len(self._streams)):
            self._schedule_end(index, InstanceState.SERVING, 0)

    def on_due(self, index: int, now: Micros) -> None:
        """Let an instance fail, or serve again."""
        if not (self._arrivals or self._lifecycle.live):
            return  # The run is over, and what would happen later is not part of it.
        is_failing = self._membership.state(index) is InstanceState.SERVING
        state = InstanceState.DOWN if is_failing else InstanceState.SERVING
        self._membership.enter(index, state, now)
        self._fleet.views = self._membership.serving
        self._schedule_end(index, state, now)
        if is_failing:
            self._lifecycle.lose_instance(self._fleet.replicas[index], now)
        if self._driver is not None:
            slots = self._fleet.slots_of([view.index for view in self._membership.serving])
            self._driver.resize(slots, now, NO_LEAD)

    def _schedule_end(self, index: int, state: InstanceState, now: Micros) -> None:
        """Draw how long the instance will be in `state`."""
        drawn = from_seconds(self._streams[index].expovariate(1.0 / self._means[state]))
        self._event_queue.push(now + max(drawn, 1), SimEventKind.FLEET, index)


def make_failures(
    cluster: ClusterConfig,
    instance: InstanceConfig,
    programs: ProgramsConfig | None,
    fleet: SimulatedFleet,
    driver: AdmissionDriver | None,
    arrivals: ArrivalFeed,
    event_queue: EventQueue,
    seed: int,
) -> Failures | None:
    """Return the failures of a run, or None if no instance fails. Raises ConfigError for what they do not go with."""
    if cluster.failures.mtbf_secs is None:
        return None
    for part, is_used in (
        ("prefill and decode instances", bool(cluster.disaggregation)),
        ("learned slots", cluster.slots == "learned"),
        ("changes of limits", bool(cluster.limit_changes)),
        ("programs", programs is not None and programs.mode != "off"),
        ("a delayed view of caches", bool(cluster.cache_signal_delay_ms)),
        (f"flavour {instance.flavour}", instance_rules(instance).starts_in_turn),
    ):
        if is_used:
            raise ConfigError(f"failures are not simulated with {part}", where="cluster.failures", hint="leave out one of them")
    return Failures(cluster, fleet, driver if cluster.capacity is None else None, arrivals, event_queue, seed)
