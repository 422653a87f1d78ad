"""SlotSettling: how many slots the core of a term has, as gateways come, go and are learned of (`model_slots`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from maitred.admission import ReleaseReason
from maitred.core.units import Micros
from maitred.scheduler.link.gateway_books import BookedRequest, GatewayId
from maitred.scheduler.link.learning import Learning
from maitred.scheduler.link.linked_admission import LinkedAdmission
from maitred.scheduler.link.model_slots import ModelSlots
from maitred.scheduler.link.unaccounted import Unaccounted


class SlotSettling:
    """The slots of one term."""

    def __init__(self, slots: ModelSlots, unaccounted: Unaccounted, requests: LinkedAdmission) -> None:
        self._slots, self._unaccounted, self._requests = slots, unaccounted, requests
        self.learning: Learning | None = None
        """What is still to be learned, or None."""
        self._never_heard: Collection[GatewayId] = ()
        """The gateways that had not said hello when the learning was over."""
        self.num_reclaimed = 0
        """Sequences of gateways that were gone, whose slots are free again."""

    @property
    def slots(self) -> Mapping[str, int]:
        """The slots of each model, as the driver says."""
        return self._slots.by_model

    @property
    def is_settled(self) -> bool:
        """Whether every slot is free, or held by a request of a gateway that is connected."""
        return self.learning is None and not self._unaccounted.backends()

    @property
    def unheard(self) -> Collection[GatewayId]:
        """The gateways that may hold slots of a term before, and have not said hello: the next leader learns of them, too."""
        if self.learning is not None:
            return self.learning.unheard
        return self._never_heard if any(self._unaccounted.strangers.values()) else ()

    def count_ended(self, ended: Collection[BookedRequest], now: Micros) -> None:
        """Note that orphans are about to end."""
        for request in ended:
            self._unaccounted.on_orphan_ended(request)
        self.use_extra_slots(now)

    def free(self, ended: Collection[BookedRequest], now: Micros) -> None:
        """Free the slots of orphans that have ended, and use those of absent ones."""
        self.use_extra_slots(now)
        for request in ended:
            self.num_reclaimed += request.ticket.sequences
            self._requests.end(request, ReleaseReason.GATEWAY_GONE, now)

    def note_holders(self, holders: Iterable[BookedRequest]) -> None:
        """Note that a gateway holds slots of which was not known."""
        strangers = self._unaccounted.strangers
        for request in holders:
            if self.learning is not None:
                self.learning.on_held(request.terms.model, request.ticket.sequences)
            strangers[request.backend] = max(0, strangers[request.backend] - request.ticket.sequences)

    def free_overdue(self, now: Micros) -> None:
        """Free the slots that have been held for too long."""
        overdue = self._unaccounted.overdue(now)
        self.count_ended(overdue, now)
        self.free(overdue, now)

    def unsettled_backends(self, now: Micros) -> set[int]:
        """Return the backends that are to be asked now what they have."""
        return {*self._unaccounted.backends(), *(() if self.learning is None else self.learning.unread(now))}

    def use_extra_slots(self, now: Micros) -> None:
        """Have as many slots more, or fewer, as are absent, or strangers'."""
        # Always before an orphan ends, because a slot that becomes free is granted at once.
        if self._slots.extra != self._unaccounted.extra_slots:
            self.resize(now)

    def review(self, now: Micros) -> None:
        """Have all slots, if there is nothing more to learn."""
        learning = self.learning
        if learning is None:
            return
        if learning.is_over(now):
            self.learning, self._never_heard = None, learning.unheard
            self.resize(now)
        elif learning.is_alone_now(now):
            self.resize(now)

    def resize(self, now: Micros) -> None:
        """Have as many slots of each model as may be held now."""
        self._slots.extra = self._unaccounted.extra_slots
        for model in self._slots.by_model:
            self.resize_model(model, now)

    def resize_model(self, model: str, now: Micros) -> None:
        """Have as many slots of a model as may be held now."""
        slots, lead = self._slots.capacity(model, self.learning), self._slots.lead(model)
        self._requests.apply(self._requests.core.resize(model, slots, now, lead), now)
