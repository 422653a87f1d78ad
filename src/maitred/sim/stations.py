"""Stations: who is on the way for some time, and when it goes on."""

from __future__ import annotations

from maitred.sim.agenda import Agenda, Kind
from maitred.sim.journey import Journey
from maitred.units import Micros


class Stations:
    """Each stay has a number, by which the agenda names it."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._journeys: dict[int, Journey] = {}
        self._count = 0

    def later(self, journey: Journey, at: Micros, kind: Kind) -> None:
        """It goes on at `at`."""
        self._count += 1
        journey.station = self._count
        self._journeys[self._count] = journey
        self._agenda.push(at, kind, self._count)

    def leave(self, station: int) -> Journey | None:
        """Who goes on; None: it has ended, or lost its slot, meanwhile."""
        journey = self._journeys.pop(station)
        return journey if journey.station == station else None
