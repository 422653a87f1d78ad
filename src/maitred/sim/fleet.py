"""The fleet: the instances, and when each of them is to be asked again.

Instances are advanced only when their own next event is due. Those to which something happened at this instant are noted, and
asked for their next event when all that happens at this instant has been said; entries of the agenda that this made obsolete
are dropped when they come up. So nothing here takes time in proportion to the number of instances, but a look at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush
from random import Random

from maitred.admission import fleet_load
from maitred.core.contracts import FleetLoad, InstanceView
from maitred.core.units import Micros, from_ms
from maitred.instance import InstanceConfig, new_instance
from maitred.instance.itl_log import ItlLog
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import INSTANCE, EventQueue
from maitred.sim.replica import BlockHashMemo, Replica
from maitred.sim.results import InstanceTotals, Ints, ItlGaps, itl_gaps_of
from maitred.sim.snapshots import FleetSnapshots, InitialView


class SimulatedFleet:
    """Equal instances, by their index."""

    def __init__(
        self, cluster: ClusterConfig, instance: InstanceConfig, seed: int, agenda: EventQueue, *, log_itl: bool = False
    ) -> None:
        """`log_gaps`: keep who has which gaps between tokens."""
        self._event_queue = agenda
        chains, latency = BlockHashMemo(), instance.latency_model()
        count = cluster.num_instances
        self._overhead = latency.overheads.per_output_token
        self._itl_logs = [ItlLog() for _ in range(count)] if log_itl else None
        self.dirty: dict[Replica, None] = {}
        """Those to which something happened at this instant: their next event is to be found anew."""
        self.replicas = [
            Replica(index, new_instance(instance, Random(f"{seed}/instance/{index}")), agenda, chains, latency, log)
            for index, log in enumerate(self._itl_logs or [None] * count)
        ]
        self.blis_step_order = instance.flavour == "blis"
        """Steps begin when it is the instance's turn (see `instance.blis`), so its next event is found at once."""
        self._snapshots = _make_snapshots(self.replicas, cluster, instance)
        self.views: Sequence[InstanceView] = self.replicas if self._snapshots is None else self._snapshots.views
        """What routers see of them."""
        self.has_snapshots = self._snapshots is not None
        """Whether somebody who is about to decide must `look`, so that views may be refreshed."""

    def refresh_views(self, now: Micros) -> None:
        """Somebody is about to decide by what `views` show."""
        if self._snapshots is not None:
            self._snapshots.refresh(now)

    def load(self, model: str, now: Micros) -> FleetLoad:
        """What `views` show as of `now`, for admission; all of them serve every model. O(instances)."""
        self.refresh_views(now)
        return fleet_load(self.views)

    def totals(self, counts: Ints) -> tuple[InstanceTotals, ...]:
        """What each instance did until now; `counts`: of their requests (`ResultRows.totals_by_instance`)."""
        return tuple(replica.totals(*of) for replica, of in zip(self.replicas, counts.tolist(), strict=True))

    def itl_gaps(self) -> ItlGaps | None:
        """Who had which gaps, at the end of the run; None: that was not kept."""
        return None if self._itl_logs is None else itl_gaps_of(self._itl_logs, self._overhead)

    def schedule_now(self, replica: Replica, now: Micros) -> None:
        """It has events for this very instant."""
        if replica.next_due != now:
            replica.next_due = now
            self._event_queue.push(now, INSTANCE, replica.index)

    def resume_dirty(self) -> None:
        """All that happens at this instant has been said: the instances concerned go on."""
        for replica in self.dirty:
            self.resume(replica)
        self.dirty.clear()

    def resume(self, replica: Replica) -> None:
        """All that happens there at this instant has been said."""
        due = replica.instance.next_event()
        if due != replica.next_due:
            replica.next_due = due
            if due is not None:
                heappush(self._event_queue.heap, (due, INSTANCE, replica.index))


def _make_snapshots(replicas: Sequence[Replica], cluster: ClusterConfig, instance: InstanceConfig) -> FleetSnapshots | None:
    """None: everything is seen as it is."""
    refresh, delay = from_ms(cluster.snapshot_refresh_interval_ms), from_ms(cluster.cache_signal_delay_ms)
    if not (refresh or delay):
        return None
    return FleetSnapshots(replicas, refresh, delay, InitialView.BLANK if instance.flavour == "blis" else InitialView.LIVE)
