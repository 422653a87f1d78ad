"""The fleet: the instances, and when each of them is to be asked again.

Instances are advanced only when their own next event is due. Those to which something happened at this instant are noted, and
asked for their next event when all that happens at this instant has been said; entries of the agenda that this made obsolete
are dropped when they come up. So nothing here takes time in proportion to the number of instances, but a look at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from maitred.contracts import InstanceView
from maitred.instance import Instance, InstanceConfig, InstanceEvent
from maitred.sim.agenda import Agenda, Kind
from maitred.sim.replica import Replica
from maitred.units import Micros


class Fleet:
    """Equal instances, by their index."""

    def __init__(self, count: int, instance: InstanceConfig, seed: int, agenda: Agenda) -> None:
        self._agenda = agenda
        self.touched: list[Replica] = []
        """Those whose next event is to be found anew."""
        self.replicas = [
            Replica(index, Instance(instance, Random(f"{seed}/instance/{index}")), agenda) for index in range(count)
        ]
        self.views: Sequence[InstanceView] = self.replicas
        """What routers see of them."""

    def look(self, now: Micros) -> None:
        """Somebody is about to decide by what `views` show."""

    def touch(self, replica: Replica) -> None:
        """Something happened to it: its next event is to be found anew."""
        if not replica.touched:
            replica.touched = True
            self.touched.append(replica)

    def events(self, index: int, now: Micros) -> tuple[Replica, Sequence[InstanceEvent]]:
        """What happened in an instance whose entry has come up; nothing, if the entry is obsolete."""
        replica = self.replicas[index]
        if replica.due != now:
            return replica, ()
        replica.due = None
        self.touch(replica)
        return replica, replica.events(now)

    def call(self, replica: Replica, now: Micros) -> None:
        """It has events for this very instant."""
        if replica.due != now:
            replica.due = now
            self._agenda.push(now, Kind.INSTANCE, replica.index)

    def begin_steps(self) -> None:
        """All that happens at this instant has been said: the instances concerned go on."""
        agenda = self._agenda
        for replica in self.touched:
            replica.touched = False
            due = replica.instance.next_event()
            if due != replica.due:
                replica.due = due
                if due is not None:
                    agenda.push(due, Kind.INSTANCE, replica.index)
        self.touched.clear()
