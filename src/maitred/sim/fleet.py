"""The fleet: the instances, and when each of them is to be asked again.

Instances are advanced only when their own next event is due. Those to which something happened at this instant are noted, and
asked for their next event when all that happens at this instant has been said; entries of the agenda that this made obsolete
are dropped when they come up. So nothing here takes time in proportion to the number of instances, but a look at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush
from random import Random

from maitred.admission import load_of
from maitred.contracts import FleetLoad, InstanceView
from maitred.instance import InstanceConfig, new_instance
from maitred.instance.gap_log import GapLog
from maitred.sim.agenda import INSTANCE, Agenda
from maitred.sim.columns import InstanceTotals, Ints
from maitred.sim.config import ClusterConfig
from maitred.sim.gaps import Gaps, gaps_of
from maitred.sim.replica import Chains, Replica
from maitred.sim.snapshots import First, Snapshots
from maitred.units import Micros, from_ms


class Fleet:
    """Equal instances, by their index."""

    def __init__(
        self, cluster: ClusterConfig, instance: InstanceConfig, seed: int, agenda: Agenda, *, log_gaps: bool = False
    ) -> None:
        """`log_gaps`: keep who has which gaps between tokens."""
        self._agenda = agenda
        chains, latency = Chains(), instance.latency_model()
        count = cluster.num_instances
        self._overhead = latency.overheads.per_output_token
        self._gap_logs = [GapLog() for _ in range(count)] if log_gaps else None
        self.touched: dict[Replica, None] = {}
        """Those to which something happened at this instant: their next event is to be found anew."""
        self.replicas = [
            Replica(index, new_instance(instance, Random(f"{seed}/instance/{index}")), agenda, chains, latency, log)
            for index, log in enumerate(self._gap_logs or [None] * count)
        ]
        self.by_turns = instance.flavour == "blis"
        """Steps begin when it is the instance's turn (see `instance.blis`), so its next event is found at once."""
        self._snapshots = _snapshots(self.replicas, cluster, instance)
        self.views: Sequence[InstanceView] = self.replicas if self._snapshots is None else self._snapshots.views
        """What routers see of them."""
        self.stale = self._snapshots is not None
        """Whether somebody who is about to decide must `look`, so that views may be refreshed."""

    def look(self, now: Micros) -> None:
        """Somebody is about to decide by what `views` show."""
        if self._snapshots is not None:
            self._snapshots.look(now)

    def load(self, model: str, now: Micros) -> FleetLoad:
        """What `views` show as of `now`, for admission; all of them serve every model. O(instances)."""
        self.look(now)
        return load_of(self.views)

    def totals(self, counts: Ints) -> tuple[InstanceTotals, ...]:
        """What each instance did until now; `counts`: of their requests (`Rows.by_instance`)."""
        return tuple(replica.totals(*of) for replica, of in zip(self.replicas, counts.tolist(), strict=True))

    def gaps(self) -> Gaps | None:
        """Who had which gaps, at the end of the run; None: that was not kept."""
        return None if self._gap_logs is None else gaps_of(self._gap_logs, self._overhead)

    def call(self, replica: Replica, now: Micros) -> None:
        """It has events for this very instant."""
        if replica.due != now:
            replica.due = now
            self._agenda.push(now, INSTANCE, replica.index)

    def begin_steps(self) -> None:
        """All that happens at this instant has been said: the instances concerned go on."""
        for replica in self.touched:
            self.go_on(replica)
        self.touched.clear()

    def go_on(self, replica: Replica) -> None:
        """All that happens there at this instant has been said."""
        due = replica.instance.next_event()
        if due != replica.due:
            replica.due = due
            if due is not None:
                heappush(self._agenda.heap, (due, INSTANCE, replica.index))


def _snapshots(replicas: Sequence[Replica], cluster: ClusterConfig, instance: InstanceConfig) -> Snapshots | None:
    """None: everything is seen as it is."""
    refresh, delay = from_ms(cluster.snapshot_refresh_interval_ms), from_ms(cluster.cache_signal_delay_ms)
    if not (refresh or delay):
        return None
    return Snapshots(replicas, refresh, delay, First.BLANK if instance.flavour == "blis" else First.LIVE)
