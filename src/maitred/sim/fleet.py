"""Fleet: all simulated instances, and the instant at which each of them is due next.

An instance is advanced only when its own next event is due. An instance to which something happens at an instant is marked
dirty. When everything at that instant has happened, each dirty instance is asked for its next event, which is pushed to the
event queue. Entries that became obsolete by this are dropped when they come up. So the cost of an event does not grow with the
number of instances; only routers and admission look at all of them.

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from maitred.admission import fleet_load
from maitred.compat.instance_rules import instance_rules
from maitred.core.contracts import FleetLoad, InstanceView
from maitred.core.units import Micros, from_seconds
from maitred.instance import Instance, InstanceConfig
from maitred.instance.step_meter import ItlLog
from maitred.routing import with_free_slots
from maitred.sim.config import ClusterConfig, LimitChange
from maitred.sim.event_queue import EventQueue, SimEventKind
from maitred.sim.membership import InstanceState, Membership
from maitred.sim.replica import NOT_DUE, BlockHashMemo, Replica
from maitred.sim.results import InstanceTotals, Ints, ItlGaps, itl_gaps_of
from maitred.sim.snapshots import make_snapshots


class SimulatedFleet:
    """The instances, by their index."""

    def __init__(
        self, cluster: ClusterConfig, instance: InstanceConfig, seed: int, event_queue: EventQueue, *, log_itl: bool = False
    ) -> None:
        """With `log_itl` the gaps between tokens are recorded per request (`itl_gaps`)."""
        self._event_queue = event_queue
        memo, count, rules = BlockHashMemo(), cluster.most_instances, instance_rules(instance)
        self._configs = cluster.instance_configs(instance)
        # Equal instances share one object each.
        latencies = {id(config): config.latency_model() for config in self._configs}
        self._overhead = latencies[id(self._configs[0])].overheads.per_output_token
        self._new_instance, self._seed, self._num_restarts = rules.new_instance, seed, 0
        self.limits: list[int] = []
        """The limits that are scheduled, by the index of their events."""
        self._itl_logs = [ItlLog() for _ in range(count)] if log_itl else None
        self.dirty: list[Replica] = []
        """Instances to which something happened at this instant, in that order; their next event must be found again."""
        logs: Sequence[ItlLog | None] = [None] * count if self._itl_logs is None else self._itl_logs
        self.replicas = [
            Replica(index, self._start(config, str(index)), event_queue, memo, latencies[id(config)], log)
            for index, (config, log) in enumerate(zip(self._configs, logs, strict=True))
        ]
        self.starts_in_turn = rules.starts_in_turn
        """Whether steps begin at the turn of the instance, so that its next event must be found at once."""
        self._snapshots = make_snapshots(self.replicas, cluster, rules)
        self.views: Sequence[InstanceView] = self.replicas if self._snapshots is None else self._snapshots.views
        """What routers and admission see of the instances that serve."""
        self.membership: Membership | None = None
        """Which instances serve, or None if all of them always do."""
        self._omits_first_tokens = False
        self.has_snapshots = self._snapshots is not None
        """Whether `refresh_views` must be called before every decision that uses `views`."""
        self.slots: Sequence[int] | None = None
        """The slots of each instance, by its index, where they limit what routers send there (`routing.free_slots`)."""

    def omit_first_tokens(self) -> None:
        """Let no instance return FIRST_TOKEN events from now on, because nothing waits for them."""
        self._omits_first_tokens = True
        for replica in self.replicas:
            replica.instance.omit_first_tokens()

    def schedule_limit_changes(self, changes: Sequence[LimitChange]) -> None:
        """Schedule other limits of all instances. Raises ConfigError if their batches cannot follow."""
        for index, change in enumerate(changes):
            self.limits.append(change.max_num_seqs)
            self._event_queue.push(from_seconds(change.at_secs), SimEventKind.LIMIT, index)
            for replica in self.replicas:
                replica.instance.set_limit(self._configs[replica.index].max_num_seqs, 0)

    def on_limit_change(self, index: int, now: Micros) -> None:
        """Put a limit in force that was scheduled."""
        for replica in self.replicas:
            replica.instance.set_limit(self.limits[index], now)
            self.mark_dirty(replica)

    def mark_dirty(self, replica: Replica) -> None:
        """Note that something happened to an instance at this instant."""
        if not replica.is_dirty:
            replica.is_dirty = True
            self.dirty.append(replica)

    def refresh_views(self, now: Micros) -> None:
        """Copy the state of the instances into `views`, if a refresh is due. Call this before a decision that uses them."""
        if self._snapshots is not None:
            self._snapshots.refresh(now)

    @property
    def candidates(self) -> Sequence[InstanceView]:
        """The instances that a router is shown."""
        return self.views if self.slots is None else with_free_slots(self.views, self._slots_of)

    def _slots_of(self, view: InstanceView) -> int:
        assert self.slots is not None
        return self.slots[view.index]

    def load(self, model: str, now: Micros) -> FleetLoad:
        """Return the load of the fleet as `views` show it, for admission. All instances serve every model. O(instances)."""
        self.refresh_views(now)
        return fleet_load(self.views)

    def slots_of(self, indices: Sequence[int]) -> int:
        """Return how many sequences the batches of these instances hold."""
        return sum(self._configs[index].max_num_seqs for index in indices)

    def restart(self, replica: Replica) -> None:
        """Put an instance with an empty cache into the place of one that has failed, and that no request is in."""
        self._num_restarts += 1
        instance = self._start(self._configs[replica.index], f"{replica.index}/restart/{self._num_restarts}")
        if self._omits_first_tokens:
            instance.omit_first_tokens()
        replica.restart(instance)
        self.mark_dirty(replica)

    def _start(self, config: InstanceConfig, name: str) -> Instance:
        """Return an instance that nothing is in, with a random stream of its own."""
        return self._new_instance(config, Random(f"{self._seed}/instance/{name}"))

    def totals(self, counts: Ints, end: Micros) -> tuple[InstanceTotals, ...]:
        """Return the totals of each instance, with `counts` of `ResultRows.totals_by_instance` and the `end` of the run."""
        return tuple(
            replica.totals(*self._times_of(replica.index, end), *of)
            for replica, of in zip(self.replicas, counts.tolist(), strict=True)
        )

    def _times_of(self, index: int, end: Micros) -> tuple[Micros, Micros, Micros]:
        """Return for how long an instance has served, its GPUs were held, and it has been down."""
        if self.membership is None:
            return end, end, 0
        time_in = self.membership.time_in
        held = self.membership.time_held(index, end)
        return time_in(index, InstanceState.SERVING, end), held, time_in(index, InstanceState.DOWN, end)

    def itl_gaps(self) -> ItlGaps | None:
        """Close the logs, and return the gaps between tokens per request, or None if they were not recorded."""
        return None if self._itl_logs is None else itl_gaps_of(self._itl_logs, self._overhead)

    def schedule_now(self, replica: Replica, now: Micros) -> None:
        """Give an instance a turn at this very instant, because it has events: deferred ones, or that it has refused a request.
        Otherwise its turn would come when steps begin, and with it their order among the turns of this instant, which must not
        depend on the steps that end at it."""
        if replica.next_due != now:
            replica.next_due = now
            self._event_queue.push_turn(now, replica.index)

    def resume(self, replica: Replica) -> None:
        """Begin the next step of an instance if it is due, and push its next event."""
        due = replica.instance.next_event()
        # The old entry stays in the heap and is dropped at its turn, which is cheaper than finding and removing it here.
        if due is None:
            replica.next_due = NOT_DUE
        elif due != replica.next_due:
            replica.next_due = due
            self._event_queue.push_turn(due, replica.index)
