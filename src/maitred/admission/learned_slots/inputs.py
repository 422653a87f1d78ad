"""The inputs of slot controllers as data. See `core.decisions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from maitred.admission.learned_slots.signals import EngineReading, LearnedLimit, OwnLoad, PoolDemand, SlotDecision
from maitred.core.decisions import Input

if TYPE_CHECKING:
    from maitred.admission.learned_slots.controller import SlotController

ROOM_NAME: Final = "slots"


class SlotChange(msgspec.Struct, frozen=True):
    """The decision of the controller of one backend."""

    backend: int
    change: SlotDecision


class SlotsInput(Input, frozen=True):
    """An input of the controller of one backend, by its index."""

    backend: int

    @property
    def core_key(self) -> int:
        return self.backend


class Open(SlotsInput, frozen=True):
    """A controller is made."""

    start: int
    most: int
    least: int


class Reading(SlotsInput, frozen=True):
    """A look at the metrics of the engine."""

    reading: EngineReading
    own: OwnLoad
    demand: PoolDemand

    def apply_to(self, core: SlotController) -> Sequence[SlotChange]:
        return _told(self.backend, core.on_reading(self.reading, self.own, self.demand, self.at))


class Tick(SlotsInput, frozen=True):
    """A look at the streams of this driver."""

    own: OwnLoad
    demand: PoolDemand

    def apply_to(self, core: SlotController) -> Sequence[SlotChange]:
        return _told(self.backend, core.on_tick(self.own, self.demand, self.at))


class Forget(SlotsInput, frozen=True):
    """The backend was down."""

    def apply_to(self, core: SlotController) -> Sequence[SlotChange]:
        core.forget(self.at)
        return ()


class Recall(SlotsInput, frozen=True):
    """Another process had learned this."""

    learned: LearnedLimit

    def apply_to(self, core: SlotController) -> Sequence[SlotChange]:
        return _told(self.backend, core.recall(self.learned, self.at))


SlotsInputs: TypeAlias = Open | Reading | Tick | Forget | Recall


def _told(backend: int, decision: SlotDecision | None) -> Sequence[SlotChange]:
    return () if decision is None else [SlotChange(backend, decision)]
