"""Prompt tokens per second, with a burst saved up.

The bucket holds `capacity` tokens and is full at first; it gains `rate` tokens per second. A request costs the tokens
of its prompt. If the bucket holds fewer, the request is refused, and costs nothing. A prompt that is larger than the
bucket can never enter, and is refused with a reason of its own.

Example: capacity 1000 and rate 100. A prompt of 800 tokens at 0 s leaves 200. A prompt of 500 at 1 s finds 300 and is
refused; it should come again after (500 - 300) / 100 = 2 s.

The arithmetic is BLIS's, in floats and in its order of operations, so that its recorded runs come out exactly: the
bucket is refilled at every request, whether or not that enters. The `TokenBucket` of `rate_limit` is brought up to date
only when a token is taken.
"""

from __future__ import annotations

from math import ceil, isfinite
from typing import Final

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.units import SECOND, Micros

_TOO_LARGE: Final = Refusal("prompt_too_large", 413, "the prompt has more tokens than may ever enter at once", is_final=True)
_MAX_WAIT_SECS: Final = 1e9
"""Seconds beyond which the wait for enough tokens counts as endless."""


@POLICIES.register("token-bucket")
class TokenBucketPolicy(AdmissionPolicy):
    """Refuses a request that finds fewer tokens in the bucket than its prompt has (BLIS `token-bucket`)."""

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
        wait = self._time_until(ticket.prompt_tokens)
        message = "more prompt tokens per second than are allowed here"
        return Refusal("token_bucket", message=message, retry_after=wait, is_final=wait is None)

    def _time_until(self, tokens: int) -> Micros | None:
        """Return the time until the bucket holds `tokens` if no other request comes, in µs, or None if that is never."""
        missing = tokens - self._level
        return None if missing > self._rate * _MAX_WAIT_SECS else ceil(missing * SECOND / self._rate)
