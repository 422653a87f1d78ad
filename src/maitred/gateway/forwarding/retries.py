"""Retries: whether a request that a backend has failed is sent again, and after how long.

A failure is tried again while no byte of a response has gone to the client. Three things bound that:

- *attempts*: a request is sent at most `max_attempts` times, since it may be what brings its backends down. A backend that was
  not reached, or that was given up before it had answered, costs no attempt.
- *the retry budget*: a request that is sent twice doubles the load just when backends fail. Retries are at most `budget_share`
  of the requests, and `budget_floor_per_sec` more, so that a quiet gateway may retry as well.
- *`Retry-After`* of an engine: until then it is not asked again by any request (`scheduler.ejection`).

Between two attempts passes `initial_backoff_secs * backoff_multiplier ** (attempts - 1)`, at most `max_backoff_secs`, more or
less by `backoff_jitter`. Nothing is waited for where a backend was not reached.

An engine that answers with an error gives an answer, which may be better than that of the next backend. So the answer is held
(`held_answer`), and the client gets it if no other backend takes the request.

Example: `max_attempts: 2`. Backend A answers 503 with `Retry-After: 7`. B refuses the connection, which costs no attempt, and
no other backend serves the model: the client gets the 503 of A with its `Retry-After: 7`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from maitred.core.units import Micros, from_ms, from_seconds
from maitred.gateway.config import RetryConfig
from maitred.gateway.error_responses import MAX_RETRY_AFTER_SECS, retry_after_header
from maitred.gateway.forwarding.retry_budget import RetryBudget
from maitred.scheduler.interface import RETRYABLE_ERRORS, FailedAttempts, is_free
from maitred.wire.messages import Headers

RETRYABLE_STATUSES: Final = frozenset((408, 429, *range(500, 600))) - {501, 505}
"""The statuses of an engine, or of a proxy before it, after which another backend is tried. 501 and 505 say of the request that
it cannot be served: all backends would."""
_BUSY_STATUSES: Final = (408, 429, 529)
"""Those of them that are no failure of the engine (529: Anthropic's word for one that is overloaded)."""
_UNAVAILABLE: Final = 503
_BUSY_WORDS: Final = re.compile(rb"queue[\w ]{0,20} full|full[\w ]{0,20} queue|overload|too many|at capacity|queue_full", re.I)
"""How engines say in a 503 that they have no room, as SGLang's "The request queue is full."."""
_MAX_READ_BYTES: Final = 2_048
_NUMBER: Final = re.compile(rb"\s*\d+(?:\.\d*)?\s*")
_LONGEST_PAUSE: Final = 1e9
"""What a longer pause of an engine counts for, in seconds or milliseconds."""


def is_busy(status: int, retry_after: Micros | None, body: bytes) -> bool:
    """Return whether an answer says that the engine has no room at present. A 503 says so with a `Retry-After`, or in words."""
    if status != _UNAVAILABLE:
        return status in _BUSY_STATUSES
    return retry_after is not None or _BUSY_WORDS.search(body[:_MAX_READ_BYTES]) is not None


def read_retry_after(headers: Headers, wall: Micros) -> Micros | None:
    """Return the pause that an answer asks for, or None if it asks for none: the longer one of `Retry-After` and the
    `retry-after-ms` that SDKs prefer to it. A date counts from the `Date` of the answer, so the clocks of the two machines need
    not agree; without that, from `wall`, the time of day."""
    values = dict(headers)
    span, in_ms = _read_pause(values, wall), _as_number(values.get(b"retry-after-ms", b""))
    return span if in_ms is None else max(span or 0, from_ms(in_ms))


def _read_pause(values: Mapping[bytes, bytes], wall: Micros) -> Micros | None:
    """Return the pause that `Retry-After` asks for (µs), or None."""
    text = values.get(b"retry-after", b"")
    number = _as_number(text)
    if number is not None:
        return from_seconds(number)
    until = _as_date(text)
    if until is None:
        return None
    answered = _as_date(values.get(b"date", b""))
    return max(0, until - (wall if answered is None else answered))


def _as_date(text: bytes) -> Micros | None:
    """Return a date as microseconds since the epoch, or None for what is none. One without a time zone is in UTC."""
    try:
        date = parsedate_to_datetime(text.decode("latin-1"))
        return from_seconds((date.replace(tzinfo=UTC) if date.tzinfo is None else date).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def _as_number(text: bytes) -> float | None:
    """Return a number without a sign, which may have a fraction, at most `_LONGEST_PAUSE`; None for anything else."""
    return min(float(text), _LONGEST_PAUSE) if _NUMBER.fullmatch(text) else None


def cap_retry_after(headers: Headers, wall: Micros) -> Headers:
    """Return the headers of an engine's error, with a pause of at most `MAX_RETRY_AFTER_SECS`: some SDKs give up at a longer
    one, and others come back at once. `wall` is the time of day."""
    span = read_retry_after(headers, wall)
    if span is None or span <= from_seconds(MAX_RETRY_AFTER_SECS):
        return headers
    kept = [header for header in headers if header[0] not in (b"retry-after", b"retry-after-ms")]
    return [*kept, *retry_after_header(span)]


class RetryPolicy:
    """What decides for all requests of a gateway."""

    def __init__(self, config: RetryConfig, max_attempts: int, now: Micros, rng: random.Random) -> None:
        """`rng` draws by how much a wait is longer or shorter."""
        self.max_attempts = max_attempts
        self._longest_rest = from_seconds(config.max_retry_after_secs)
        self._config = config
        self._budget = RetryBudget(config, now)
        self._random = rng

    def rest(self, retry_after: Micros | None) -> Micros | None:
        """Return how long an engine is left alone that has answered with this `Retry-After`, µs, or None if not at all."""
        return min(retry_after, self._longest_rest) if retry_after and self._longest_rest else None

    def backoff_secs(self, failed: FailedAttempts) -> float:
        """Return how long a request waits before it is sent again."""
        config = self._config
        if is_free(failed.failure):
            return 0.0
        growth: float = config.backoff_multiplier ** min(failed.num_attempts - 1, 100)
        secs = min(config.initial_backoff_secs * growth, config.max_backoff_secs)
        return secs * (1 + config.backoff_jitter * self._random.uniform(-1, 1))

    def allows_retry(self, failed: FailedAttempts) -> bool:
        """Return whether a request may be sent once more after its last failure, as far as its attempts go."""
        failure = failed.failure
        return is_free(failure) or (isinstance(failure, RETRYABLE_ERRORS) and failed.num_attempts < self.max_attempts)

    def is_within_budget(self, failed: FailedAttempts, num_requests: int, now: Micros) -> bool:
        """Return whether the budget allows that, and count it. `num_requests` have been answered so far."""
        return is_free(failed.failure) or self._budget.withdraw(num_requests, now)
