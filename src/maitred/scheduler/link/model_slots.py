"""How many slots each model has at the scheduler's end of a link.

slots of a model = what the driver says (while learning, no more than was seen to be held)
                   + absent orphans at its backends, which hold none - strangers there, which hold some
"""

from __future__ import annotations

from collections.abc import Mapping

from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.scheduler.link.learning import Learning


class ModelSlots:
    """The slots of all models."""

    def __init__(self, slots: Mapping[str, int], backends: Mapping[int, str]) -> None:
        """`slots` are those of each model, and `backends` the models that are served."""
        self.by_model = dict(slots)
        """What the driver says."""
        self.model_at = dict(backends)
        """The model of each backend that serves no other."""
        self.extra: Mapping[int, int] = {}
        """By how much more, or fewer, may be held at each backend (`Unaccounted.extra_slots`)."""
        self._leads: dict[str, Lead] = {}

    def set(self, model: str, slots: int, lead: Lead) -> None:
        """Take over the slots of a model, known or new, of which `lead` are beyond what its backends run at once."""
        self.by_model[model], self._leads[model] = slots, lead

    def forget(self, model: str) -> None:
        """Drop a model."""
        self.by_model.pop(model, None)
        self._leads.pop(model, None)

    def lead(self, model: str) -> Lead:
        """Return the lead of a model."""
        return self._leads.get(model, NO_LEAD)

    def capacity(self, model: str, learning: Learning | None) -> int:
        """Return how many slots of a model may be held."""
        slots = self.by_model[model]
        most = slots if learning is None else min(slots, learning.certain(model))
        extra = sum(slots for backend, slots in self.extra.items() if self.model_at.get(backend) == model)
        return max(0, most + extra)
