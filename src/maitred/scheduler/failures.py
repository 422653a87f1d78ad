"""How a backend fails a request, and what is kept of the attempts that have failed: placements and retries go by it."""

from __future__ import annotations

from typing import Final

from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend
from maitred.wire.errors import ConnectError, Disconnected, LocalError, PoolTimeout, Truncated, UpstreamError, Withheld


class BackendAbandoned(UpstreamError):  # noqa: N818
    """The backend was declared down before its response began."""

    reason = "abandoned"  # compiled, an error of this kind would have the reason of UpstreamError


class NotFoundThere(UpstreamError):  # noqa: N818
    """The backend has not what a request without a model is about; another one may have it."""

    reason = "not_found"


class UsageRefused(UpstreamError):  # noqa: N818
    """The backend rejects the `stream_options` that the gateway has added; the request is sent again without them."""

    reason = "usage_refused"


class AnsweredError(UpstreamError):
    """An engine has answered with an error that another backend may not give. Its answer is held until `close`."""

    reason = "error_status"

    def __init__(self, message: str, *, is_busy: bool, retry_after: Micros | None) -> None:
        super().__init__(message)
        self.is_busy = is_busy
        """Whether the engine has no room, which is no failure of it."""
        self.retry_after = retry_after
        """Its `Retry-After`, µs, or None."""

    def close(self) -> None:
        """Drop the answer."""


RETRYABLE_ERRORS = (
    *(ConnectError, PoolTimeout, Disconnected, Truncated),
    *(BackendAbandoned, NotFoundThere, UsageRefused, Withheld, AnsweredError),
)
"""The failures after which another backend is tried. A truncated response can be retried because its head is withheld until the
first data of its body. The timeout of a response is not one of them: the same request would keep the next backend busy for as
long."""
_FREE: Final = (BackendAbandoned, NotFoundThere, UsageRefused)
"""Those that are free although the request was sent: the backend has been given up by its polls, or has answered."""
_OTHERS_MATTER: Final = (LocalError, PoolTimeout, NotFoundThere, UsageRefused, BackendAbandoned, ConnectError, Withheld)

"""Failures that say nothing of how a backend answers, or of which its health takes care."""


def is_free(failure: UpstreamError | None) -> bool:
    """Return whether a failure that is retried costs neither an attempt nor budget."""
    return isinstance(failure, _FREE) or (isinstance(failure, RETRYABLE_ERRORS) and not failure.was_sent)


def is_blameless(failure: UpstreamError) -> bool:
    """Return whether a failure is not held against its backend."""
    return isinstance(failure, _OTHERS_MATTER) or (isinstance(failure, AnsweredError) and failure.is_busy)


class FailedAttempts:
    """The attempts of one request that have failed. Made at the first failure, so that others cost nothing."""

    def __init__(self) -> None:
        self.num_attempts = 0
        """How often backends have had the request and failed it."""
        self.num_abandoned = 0
        """How often it was taken away from a backend that was down."""
        self.tried: list[Backend] = []
        """The backends that have failed it since it last got a slot or memory."""
        self.failure: UpstreamError | None = None
        """The last one, without its traceback: that refers to the frames which refer to the request."""
        self.answer: AnsweredError | None = None
        """The last answer of an engine, which is held."""

    def add(self, failure: UpstreamError) -> None:
        """Count a failure."""
        self.failure = failure.with_traceback(None)
        self.num_attempts += not is_free(failure)
        self.num_abandoned += isinstance(failure, BackendAbandoned)
        if isinstance(failure, AnsweredError):
            self.close()
            self.answer = failure

    @property
    def may_have_died(self) -> bool:
        """Whether the last failure is how the end of a process looks."""
        return isinstance(self.failure, Disconnected | Truncated)

    @property
    def may_be_sent_again(self) -> bool:
        """Whether the backend of the last failure may have the request once more, where no other one is left."""
        return isinstance(self.failure, AnsweredError) and not self.failure.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether the last failure is an engine that has no room."""
        return isinstance(self.failure, AnsweredError) and self.failure.is_busy

    def close(self) -> None:
        """Drop the answer that is held. Idempotent."""
        if self.answer is not None:
            self.answer.close()
            self.answer = None
