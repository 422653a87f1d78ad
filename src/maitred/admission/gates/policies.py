"""The admission policies, with BLIS's names and numbers.

    always-admit, reject-all    treat all requests alike
    tier-shed, gaie-legacy      shed load: less urgent requests are refused while instances are loaded
    token-bucket                prompt tokens per second, with a burst saved up

**token-bucket.** The bucket holds `capacity` tokens and is full at first; it gains `rate` tokens per second. A request
costs the tokens of its prompt. If the bucket holds fewer, the request is refused, and costs nothing. A prompt that is
larger than the bucket can never enter, and is refused with a reason of its own.

Example: capacity 1000 and rate 100. A prompt of 800 tokens at 0 s leaves 200. A prompt of 500 at 1 s finds 300 and is
refused; it should come again after (500 - 300) / 100 = 2 s.

The arithmetic is BLIS's, in floats and in its order of operations, so that its recorded runs come out exactly: the
bucket is refilled at every request, whether or not that enters. The `TokenBucket` of the request rate is brought up to date
only when a token is taken.
"""

from __future__ import annotations

from math import ceil, isfinite
from typing import Final

from maitred.admission.flow.saturation import utilization
from maitred.admission.gates.policy_gate import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.terms.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.units import SECOND, Micros

_CLOSED: Final = Refusal("reject_all", 503, "no requests are admitted at present")


@POLICIES.register("always-admit")
class AlwaysAdmit(AdmissionPolicy):
    """Refuses no request (BLIS `always-admit`)."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return None


@POLICIES.register("reject-all")
class RejectAll(AdmissionPolicy):
    """Refuses every request (BLIS `reject-all`): for a fleet that is closed, or to test what clients do then."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return _CLOSED


_SHED: Final = Refusal("tier_shed", message="the backends are loaded, and more urgent requests go first")
_SHED_WHEN_SATURATED: Final = Refusal("saturated", message="the backends are saturated, and this request can be shed")


@POLICIES.register("tier-shed")
class TierShed(AdmissionPolicy):
    """Refuses requests below an SLO priority while the most loaded instance is above a threshold (BLIS `tier-shed`).

    The load of an instance is what waits, runs and is in flight there (`InstanceLoad.effective_load`).
    """

    reads_load = True

    def __init__(self, threshold: int = 0, min_priority: int = 3) -> None:
        """Raises ValueError for a negative `threshold`."""
        if threshold < 0:
            raise ValueError(f"threshold must be at least 0, not {threshold}")
        self._threshold = threshold
        self._min_priority = min_priority

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        if ticket.slo_priority >= self._min_priority:
            return None
        if all(instance.effective_load <= self._threshold for instance in load.instances):
            return None
        return _SHED


@POLICIES.register("gaie-legacy")
class GaieLegacy(AdmissionPolicy):
    """Refuses sheddable requests while the fleet is saturated (BLIS `gaie-legacy`).

    Sheddable requests have an SLO priority below 0. The fleet is saturated at a mean utilization of 1 (`saturation`),
    as the Gateway API Inference Extension (llm-d) has it.
    """

    reads_load = True

    def __init__(self, qd_threshold: float = 5.0, kv_threshold: float = 0.8) -> None:
        """`qd_threshold` is in waiting requests, `kv_threshold` a share of an instance's KV blocks. Raises ValueError."""
        if not (qd_threshold > 0 and isfinite(qd_threshold)):
            raise ValueError(f"qd_threshold must be more than 0, not {qd_threshold}")
        if not 0 < kv_threshold <= 1:
            raise ValueError(f"kv_threshold must be above 0 and at most 1, not {kv_threshold}")
        self._queue_depth = qd_threshold
        self._kv_usage = kv_threshold

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        if not ticket.sheddable or utilization(load, self._queue_depth, self._kv_usage) < 1.0:
            return None
        return _SHED_WHEN_SATURATED


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
