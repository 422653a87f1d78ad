"""What an admission policy is, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import msgspec

from maitred.admission.policies.config import PolicyConfig
from maitred.admission.vocabulary import Reason
from maitred.contracts import FleetLoad
from maitred.registry import Registry
from maitred.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a request may not enter."""

    reason: Reason
    retry_after: Micros | None = None
    """After how long it should be worth while to ask again; None: nothing is known."""


class AdmissionPolicy(ABC):
    """May it ask for a slot at all? Made once for all pools. The constructor's parameters are those that users write; one
    annotated `PolicyConfig` is the configuration."""

    reads_load: bool = False
    """Whether it looks at `load`, which costs its driver time in proportion to the instances. Else that is empty."""

    @abstractmethod
    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        """Why `ticket` is turned away; None: it is not. Asked once for each request, `now` never running backwards. `load` is
        that of the instances that could serve it."""


POLICIES: Registry[AdmissionPolicy] = Registry(
    "admission policy",
    AdmissionPolicy,
    group="maitred.admission_policies",
    packages=["maitred.admission.policies"],
    methods=["refusal"],
    defaults={PolicyConfig: PolicyConfig()},
)
