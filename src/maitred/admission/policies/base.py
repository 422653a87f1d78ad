"""What an admission policy is, what it answers, and the registry of all policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import msgspec

from maitred.admission.config import PolicyConfig
from maitred.admission.enums import Reason
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.registry import Registry
from maitred.core.units import Micros

_RESERVED_REASONS: Final = frozenset(Reason) - {Reason.POLICY, Reason.SATURATED}
"""Reasons that a policy may not give, because admission itself gives them."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a request may not enter, and the answer to its client. Raises ValueError for what HTTP or metrics cannot express."""

    reason: str = Reason.POLICY
    """In lower case with underscores. It appears in decisions and metrics, and after `admission_` as the error code."""
    status: int = 429
    """The HTTP status, from 400 to 599."""
    message: str = "the admission policy refused this request"
    retry_after: Micros | None = None
    """The time after which the request should be sent again, µs, or None if it is not known."""
    is_final: bool = False
    """Whether the request would be refused at any time: then the answer has no `Retry-After`."""

    def __post_init__(self) -> None:
        if not (self.reason.isidentifier() and self.reason.islower()):
            raise ValueError(f"the reason of a refusal must be like too_many_files, not {self.reason!r}")
        if self.reason in _RESERVED_REASONS:
            raise ValueError(f"{self.reason} is a reason of admission itself: choose another one")
        if not 400 <= self.status <= 599:
            raise ValueError(f"the status of a refusal must be from 400 to 599, not {self.status}")


class AdmissionPolicy(ABC):
    """Refuses requests, or lets them pass. One object serves all pools. The parameters of the constructor are those
    that users write; one annotated `PolicyConfig` gets the configuration."""

    reads_load: bool = False
    """Whether `refusal` reads `load`, which costs the driver time in proportion to the instances; else `load` is empty."""

    @abstractmethod
    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        """Return why `ticket` is refused, or None if it passes. Called once for each request, with `now` never running
        backwards. `load` is that of the instances that could serve the request."""


POLICIES: Registry[AdmissionPolicy] = Registry(
    "admission policy",
    AdmissionPolicy,
    group="maitred.admission_policies",
    packages=["maitred.admission.policies"],
    methods=["refusal"],
    flag="--admission-policy",
    defaults={PolicyConfig: PolicyConfig()},
)
