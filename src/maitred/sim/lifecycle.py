"""What the drivers of admission, programs and failures may do to requests. The pipeline implements it."""

from __future__ import annotations

from typing import Protocol

from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.sim.replica import Replica
from maitred.sim.request_state import RequestState
from maitred.sim.results import Outcome


class RequestLifecycle(Protocol):
    """What each of them needs."""

    live: dict[RequestId, RequestState]
    """The requests that have arrived and not ended."""

    def finish(
        self,
        state: RequestState,
        outcome: Outcome,
        at: Micros,
        seq: SequenceState | None = None,
        replica: Replica | None = None,
    ) -> None:
        """End a request, and write its row."""
        ...


class InstanceLifecycle(RequestLifecycle, Protocol):
    """The effects of what happens to instances."""

    def withdraw(self, state: RequestState, now: Micros) -> None:
        """Stop the work on a request. It has not ended by that."""
        ...

    def route_again(self, state: RequestState, now: Micros) -> None:
        """Choose another instance for a request that has kept its slot."""
        ...

    def fail(self, state: RequestState, now: Micros, seq: SequenceState | None = None, replica: Replica | None = None) -> None:
        """End a request that no instance will answer, or not to its end."""
        ...


class AdmissionLifecycle(RequestLifecycle, Protocol):
    """The effects of admission's decisions."""

    def on_admitted(self, state: RequestState, now: Micros) -> None:
        """Send an admitted request on to routing."""
        ...

    def withdraw(self, state: RequestState, now: Micros) -> None:
        """Stop the work on a request. It has not ended by that."""
        ...


class GrantLifecycle(RequestLifecycle, Protocol):
    """The effects of decisions about programs."""

    def on_granted(self, state: RequestState, now: Micros) -> None:
        """Send a request whose program has a place on to admission."""
        ...
