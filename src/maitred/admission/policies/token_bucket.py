"""So many prompt tokens per second, with a burst saved up.

The bucket holds `capacity` tokens and is full at first; it gains `rate` per second. A request
costs the tokens of its prompt and is refused if the bucket holds fewer; then it costs nothing. One whose prompt is larger than
the bucket never enters, and is refused with a reason of its own.

The arithmetic is BLIS's, in floats and in its order of operations: it is refilled at every request, whether or not that enters.
"""

from __future__ import annotations

from math import ceil, isfinite
from typing import TYPE_CHECKING, Final

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.core.contracts import FleetLoad
from maitred.core.units import SECOND, Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket

_TOO_LARGE: Final = Refusal("prompt_too_large", 413, "the prompt has more tokens than may ever enter at once", is_final=True)
_MAX_WAIT_SECS: Final = 1e9
"""Nobody waits for longer."""


@POLICIES.register("token-bucket")
class TokenBucketPolicy(AdmissionPolicy):
    """Refuses who finds fewer tokens than his prompt has (BLIS `token-bucket`)."""

    def __init__(self, rate: float = 1_000.0, capacity: float = 10_000.0) -> None:
        """`rate` is in tokens per second, `capacity` in tokens. Raises ValueError for less than 0."""
        for name, value in (("rate", rate), ("capacity", capacity)):
            if not (value >= 0 and isfinite(value)):
                raise ValueError(f"{name} must be at least 0, not {value}")
        self._capacity = capacity
        self._rate = rate
        self._level = self._capacity
        self._updated_at: Micros = 0

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        self._level = min(self._capacity, self._level + (now - self._updated_at) * self._rate / SECOND)
        self._updated_at = now
        if self._level >= ticket.prompt_tokens:
            self._level -= ticket.prompt_tokens
            return None
        if ticket.prompt_tokens > self._capacity:
            return _TOO_LARGE
        filled_in = self._time_until(ticket.prompt_tokens)
        message = "more prompt tokens per second than are allowed here"
        return Refusal("token_bucket", message=message, retry_after=filled_in, is_final=filled_in is None)

    def _time_until(self, tokens: int) -> Micros | None:
        """How long it takes until there are so many, if nobody else comes; None: for ever, or as good as that."""
        missing = tokens - self._level
        return None if missing > self._rate * _MAX_WAIT_SECS else ceil(missing * SECOND / self._rate)
