"""Membership: which instances of the fleet serve, and how long each has been in which state.

    SERVING    routers see it
    DRAINING   it works on what it has, and gets nothing more
    STARTING   it will serve
    DOWN       it has failed, and nothing is in it
    OFF        it does not exist. In all other states its GPUs are held

Routers and admission are shown the instances that serve and no others, as a gateway shows its router the healthy backends. The
object that they are shown is another one after each change, because routers know a fleet by the identity of this object.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from maitred.core.contracts import InstanceView
from maitred.core.units import Micros


class InstanceState(IntEnum):
    """What an instance is doing in its fleet."""

    SERVING = 0
    """Requests are routed to it."""
    DRAINING = 1
    """It gets no more requests, and works on those that it has."""
    STARTING = 2
    """It loads its model."""
    DOWN = 3
    """It has failed."""
    OFF = 4
    """Its GPUs are not held."""


class Membership:
    """The states of all instances, and the books of the time in them."""

    def __init__(self, views: Sequence[InstanceView]) -> None:
        """`views` are those of all instances, by their index. All serve."""
        self._all_views = views
        self._states = [InstanceState.SERVING] * len(views)
        self._since: list[Micros] = [0] * len(views)
        self._spent = [dict.fromkeys(InstanceState, 0) for _ in views]
        self.serving: Sequence[InstanceView] = views
        """The views of the instances that serve."""

    def state(self, index: int) -> InstanceState:
        """Return the state of an instance."""
        return self._states[index]

    def enter(self, index: int, state: InstanceState, now: Micros) -> None:
        """Put an instance into another state."""
        self._spent[index][self._states[index]] += now - self._since[index]
        self._states[index], self._since[index] = state, now
        serving = InstanceState.SERVING
        self.serving = [view for view, each in zip(self._all_views, self._states, strict=True) if each is serving]

    def time_held(self, index: int, end: Micros) -> Micros:
        """Return the time (µs) for which the GPUs of an instance were held, up to the end of the run."""
        return sum(self.time_in(index, state, end) for state in InstanceState if state is not InstanceState.OFF)

    def time_in(self, index: int, state: InstanceState, end: Micros) -> Micros:
        """Return the time (µs) for which an instance has been in `state`, up to the end of the run."""
        spent = self._spent[index][state]
        return spent + max(end - self._since[index], 0) if self._states[index] is state else spent
