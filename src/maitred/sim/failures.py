"""Failures: instances stop serving at random instants, lose all that is in them, and come back with empty caches.

Each instance alternates between serving and being down. Both times are drawn from exponential distributions, with the means
`mtbf_secs` and `mttr_secs`, from a random stream of the instance, so that instances fail independently of each other:

    availability = MTBF / (MTBF + MTTR)
    P(at least k of n serve) = Σ over i = k..n of C(n, i) · availability^i · (1 - availability)^(n - i)

(R. E. Barlow, F. Proschan, Mathematical Theory of Reliability, 1965.) The requests of a failed instance fare as behind a
gateway. One whose client has seen nothing yet (no token of a streamed answer) is routed again at once and keeps its slot; it
ends as FAILED where its client has seen a token, where `max_attempts` instances have been tried, and where no instance serves.
Where the slots of admission are reported, they are those of the serving instances, so a request that comes while none serves
waits in its queue. The slots shrink before the lost requests end: those that wait get none of a failed instance. What
an instance would have emitted at the very instant of its failure is lost with it.

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
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros, from_seconds
from maitred.instance import InstanceConfig
from maitred.programs import ProgramsConfig
from maitred.sim.admission_driver import AdmissionDriver
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.lifecycle import InstanceLifecycle
from maitred.sim.membership import InstanceState, Membership
from maitred.sim.replica import Replica
from maitred.sim.request_state import RequestStage, RequestState


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
        self._max_attempts = config.max_attempts
        self._fleet, self._driver = fleet, driver
        self._membership = fleet.membership = Membership(fleet.views)
        self._arrivals, self._event_queue = arrivals, event_queue
        self._streams = [Random(f"{seed}/failures/{replica.index}") for replica in fleet.replicas]
        self._lifecycle: InstanceLifecycle
        self.lost: dict[RequestState, SequenceState | None] = {}
        """What an instance held that has failed just now, with its sequences there, as long as nothing has become of it. A
        request that is withdrawn for another reason is to be taken out."""

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
        replica = self._fleet.replicas[index]
        if is_failing:
            self._empty(replica, now)
        # Before any of its requests ends: their slots are gone with the instance, and no request that waits may take them.
        if self._driver is not None:
            slots = self._fleet.slots_of([view.index for view in self._membership.serving])
            self._driver.resize(slots, now, NO_LEAD)
        if is_failing:
            self._recover(replica, now)

    def _empty(self, replica: Replica, now: Micros) -> None:
        """Take all requests out of an instance that has failed."""
        lost = [state for state in self._lifecycle.live.values() if state.replica is replica]
        # Found before any is withdrawn, which may commit a step that ends others.
        in_instance, instance = RequestStage.IN_INSTANCE, replica.instance
        seqs = [instance.sequence(each.request.id) if each.stage is in_instance else None for each in lost]
        for state in lost:
            self._lifecycle.withdraw(state, now)
        self._fleet.restart(replica)
        self.lost = dict(zip(lost, seqs, strict=True))

    def _recover(self, replica: Replica, now: Micros) -> None:
        """Route the lost requests again whose clients have seen nothing, and end the others.

        The slot of one that ends goes to others, for which admission may take back the slot of another lost one: that one has
        left `lost` then."""
        while self.lost:
            state = next(iter(self.lost))
            seq = self.lost.pop(state)
            shown = state.request.stream and seq is not None and seq.first_token_at is not None and seq.first_token_at < now
            if shown or state.attempts >= self._max_attempts:
                self._lifecycle.fail(state, now, seq if shown else None, replica)
            else:
                self._lifecycle.route_again(state, now)

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
