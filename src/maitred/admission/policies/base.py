"""What an admission policy is, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import msgspec

from maitred.admission.config import PolicyConfig
from maitred.admission.enums import Reason
from maitred.core.contracts import FleetLoad
from maitred.core.registry import Registry
from maitred.core.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


_TAKEN: Final = frozenset(Reason) - {Reason.POLICY, Reason.SATURATED}


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a request may not enter, and what its client is told. Raises ValueError for what HTTP or metrics cannot say."""

    reason: str = Reason.POLICY
    """In lower case with underscores. It stands in decisions and metrics, and after `admission_` as the code of the answer."""
    status: int = 429
    """Of the answer: from 400 to 599."""
    message: str = "the admission policy refused this request"
    retry_after: Micros | None = None
    """After how long it should be worth while to ask again, in µs; None: nothing is known."""
    is_final: bool = False
    """Whether no other time is better: then no `Retry-After` invites the client to come back."""

    def __post_init__(self) -> None:
        if not (self.reason.isidentifier() and self.reason.islower()):
            raise ValueError(f"the reason of a refusal must be like too_many_files, not {self.reason!r}")
        if self.reason in _TAKEN:
            raise ValueError(f"{self.reason} is a reason of admission itself: choose another one")
        if not 400 <= self.status <= 599:
            raise ValueError(f"the status of a refusal must be from 400 to 599, not {self.status}")


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
    flag="--admission-policy",
    defaults={PolicyConfig: PolicyConfig()},
)
