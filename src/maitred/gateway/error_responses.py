"""Every error that the gateway answers with, and its stable code (SMG's where SMG has one)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from maitred.admission import AdmissionConfig, Reason, Refusal, ReleaseReason
from maitred.admission.terms.limits import LimitStatus
from maitred.core.units import SECOND, Micros, to_seconds
from maitred.gateway.limit_headers import limit_headers
from maitred.programs import ProgramReason
from maitred.scheduler.interface import NO_SCHEDULER, AdmissionRejected, FleetView, ProgramRejected
from maitred.wire.errors import ConnectError, LocalError, UpstreamError, UpstreamTimeout
from maitred.wire.exchange import ApiError
from maitred.wire.messages import Headers

_MAX_REPEATED_CHARS: Final = 200
_LONGEST_RETRIED: Final[Micros] = 120 * SECOND
"""The longest wait for which an SDK is to come again by itself, in the two rounds that SDKs take by default."""
_RETRY_SOON = ((b"retry-after", b"1"),)
_RETRY_LATER = ((b"retry-after", b"2"),)
_BEARER = ((b"www-authenticate", b"Bearer"),)
_NOT_AGAIN = ((b"x-should-retry", b"false"),)
"""What OpenAI's and Anthropic's SDKs obey: they send nothing again by themselves."""
MAX_RETRY_AFTER_SECS: Final = 59
"""The longest `Retry-After`, in seconds. All SDKs obey it. Beyond 60 s openai-node and Vercel's AI SDK take a pause of their
own of at most 8 s, so a longer wait would bring them back sooner; openai-python gives up beyond 120 s."""


def model_unavailable(fleet: FleetView, model: str) -> ApiError:
    """Return the error for a model that no backend serves now: 404 only if no backend that may come up could serve it."""
    if not model:
        return nothing_served(fleet)
    if not fleet.is_told:
        return _no_scheduler()
    if fleet.may_serve(model):
        message = f"no backend that serves `{abbreviate(model)}` is up"
        return ApiError(503, message, kind="server_error", code="no_healthy_backend", headers=_RETRY_LATER)
    message = f"The model `{abbreviate(model)}` does not exist"
    return ApiError(404, message, kind="invalid_request_error", code="model_not_found", param="model")


def abbreviate(text: str) -> str:
    """Return the part of a client's text that an error repeats: a model may have a name of megabytes."""
    return text if len(text) <= _MAX_REPEATED_CHARS else f"{text[:_MAX_REPEATED_CHARS]}..."


def admission_rejected(refused: AdmissionRejected, config: AdmissionConfig, timeout_status: int) -> ApiError:
    """Return the words of the admission policy; else SMG's, which depend on the mode and on whether there is a queue at all."""
    policy = refused.refusal
    if policy is not None and policy.limits is not None:
        return _over_limit(policy, policy.limits)
    if policy is None and refused.reason == ReleaseReason.SLOT_PREEMPTED:
        return preempted()
    if policy is None:
        status, code, message = _describe_rejection(refused.reason, config, timeout_status)
    else:
        status, code, message = policy.status, f"admission_{policy.reason}", policy.message
    headers: Headers = [] if policy is not None and policy.is_final else retry_after_header(refused.retry_after)
    if (
        refused.reason == Reason.QUEUE_TIMEOUT
    ):  # It has waited in full; an SDK that repeats it by itself would wait two times more.
        headers = [*headers, *_NOT_AGAIN]
    return ApiError(status, message, kind=_ERROR_TYPES.get(status, "server_error"), code=code, headers=headers)


def _over_limit(refusal: Refusal, limits: LimitStatus) -> ApiError:
    """Return the error for a request that a limit of requests or tokens refuses, in OpenAI's words."""
    wait, headers = refusal.retry_after, limit_headers(limits)
    if wait is not None:
        headers += retry_after_header(wait)
    if wait is None or wait > _LONGEST_RETRIED:
        headers += _NOT_AGAIN
    return ApiError(429, refusal.message, kind=_ERROR_TYPES[429], code="rate_limit_exceeded", headers=headers)


def retry_after_secs(span: Micros | None) -> int:
    """Return the seconds of `Retry-After` for `span`: whole ones, rounded up, at least 1, at most `MAX_RETRY_AFTER_SECS`; 2 if
    the span is unknown."""
    return 2 if span is None else min(max(1, ceil(to_seconds(span))), MAX_RETRY_AFTER_SECS)


def retry_after_header(span: Micros | None) -> Headers:
    """Return `Retry-After` for `span` (`retry_after_secs`)."""
    return [(b"retry-after", b"%d" % retry_after_secs(span))]


class RejectionAnswers:
    """The errors for what admission rejects, each made once: under a flood of requests that is a part of what each costs."""

    def __init__(self, timeout_status: int) -> None:
        self._timeout_status = timeout_status
        self._config: AdmissionConfig | None = None
        self._made: dict[tuple[str, int], ApiError] = {}
        """By the reason, and by the seconds of `Retry-After`. Only of this configuration."""

    def of(self, refused: AdmissionRejected, config: AdmissionConfig) -> ApiError:
        """Return the error for a rejection (`admission_rejected`). It must not be raised: a traceback would stay with it."""
        if refused.refusal is not None:  # An admission policy may have other words each time.
            return admission_rejected(refused, config, self._timeout_status)
        if config is not self._config:
            self._config, self._made = config, {}
        key = refused.reason, retry_after_secs(refused.retry_after)
        error = self._made.get(key)
        if error is None:
            error = self._made[key] = admission_rejected(refused, config, self._timeout_status)
        return error


_ERROR_TYPES: Final = {413: "invalid_request_error", 429: "rate_limit_error"}
_POLICY_REJECTIONS: Final = {
    Reason.BAND_FULL: (429, "admission_band_full", "as many requests of this priority wait as may"),
    Reason.DISPLACED: (429, "admission_displaced", "a more urgent request took the place of this one in a full queue"),
}
"""The rejections of flow control: status, code, message."""


def _describe_rejection(reason: str, config: AdmissionConfig, timeout_status: int) -> tuple[int, str, str]:
    if reason in _POLICY_REJECTIONS:
        return _POLICY_REJECTIONS[Reason(reason)]
    path = "scheduler" if config.mode == "priority" else "admission"
    if reason == Reason.QUEUE_TIMEOUT:
        return timeout_status, f"{path}_queue_timeout", "timed out waiting for an admission slot"
    if reason == Reason.TENANT_QUEUE_FULL:
        return 429, f"{path}_tenant_queue_full", "request queue is full for this tenant"
    if reason == Reason.RATE_LIMITED and config.preset.has_rate_limit_code:
        return 429, "scheduler_rate_limited", "more requests per second than are allowed here"
    if reason in (Reason.QUEUE_FULL, Reason.RATE_LIMITED):  # SMG has one code for both.
        return 429, f"{path}_queue_full", _describe_full_queue(config)
    # A reason without words here names itself, because the words of another one would be wrong in logs and metrics.
    return 429, f"{path}_{reason}", f"admission refused this request: {reason}"


def _describe_full_queue(config: AdmissionConfig) -> str:
    if config.mode == "priority":
        return "request queue is full for this priority class"
    has_no_queue = config.mode == "legacy" and not config.legacy.queue_size
    return "concurrency limit reached and queuing is disabled" if has_no_queue else "admission queue is at capacity"


def program_rejected(refused: ProgramRejected, retry_after: Micros) -> ApiError:
    """Return the error for a request of a program that gets no KV memory. `retry_after` is when memory may be free, at best."""
    if refused.reason is ProgramReason.NO_BACKEND:
        return upstream_failed(None)
    unnamed = 429, f"program_{refused.reason}", f"this program gets no KV memory: {refused.reason}"
    status, code, message = PROGRAM_REJECTIONS.get(refused.reason, unnamed)
    headers = retry_after_header(retry_after) if status == 429 else ()
    kind = _ERROR_TYPES.get(status, "invalid_request_error")
    return ApiError(status, message, kind=kind, code=code, headers=headers)


PROGRAM_REJECTIONS: Final = {
    ProgramReason.OVERSIZED: (
        400,
        "context_length_exceeded",
        "this prompt is longer than the KV memory of any backend that serves the model",
    ),
    ProgramReason.TOO_MANY_WAITING: (429, "program_queue_full", "as many requests of programs wait for KV memory as may"),
    ProgramReason.TOO_MANY_PROGRAMS: (429, "program_limit", "every program that there may be is at work"),
    ProgramReason.RELEASED: (499, "program_released", "the program was released while this request waited"),
}
"""The refusals of a request of a program: status, code, message. For a released program 499, which no SDK sends again as
it does a 409: half a second later the program would be back."""


def preempted() -> ApiError:
    """Return the error for a request that lost its slot before its first byte."""
    headers = ((b"x-smg-preempted", b"true"), *_RETRY_SOON)
    message = "request preempted by higher-priority traffic"
    return ApiError(503, message, kind="server_error", code="scheduler_preempted", headers=headers)


def shutting_down() -> ApiError:
    return ApiError(503, "the gateway is shutting down", kind="server_error", code="shutting_down", headers=_RETRY_SOON)


def nothing_served(fleet: FleetView) -> ApiError:
    """Return the error for a request, of whichever model, while no backend can be reached."""
    return upstream_failed(None) if fleet.is_told else _no_scheduler()


def _no_scheduler() -> ApiError:
    """Return the error while it is not known how backends are: that of a gateway without a scheduler in mode `closed`."""
    headers = retry_after_header(NO_SCHEDULER.retry_after)
    return ApiError(503, NO_SCHEDULER.message, kind="server_error", code=f"admission_{NO_SCHEDULER.reason}", headers=headers)


def upstream_failed(error: UpstreamError | None) -> ApiError:
    """Return the error for a request that no backend answered. `error` is that of the last attempt, or None."""
    if error is None or isinstance(error, ConnectError):
        message = "no backend could be reached" if error is None else str(error)
        return ApiError(503, message, kind="server_error", code="no_healthy_backend", headers=_RETRY_LATER)
    if isinstance(error, LocalError):
        return ApiError(503, str(error), kind="server_error", code="upstream_local", headers=_RETRY_LATER)
    status, headers = (504, ()) if isinstance(error, UpstreamTimeout) else (502, _RETRY_LATER)
    return ApiError(status, str(error), kind="server_error", code=f"upstream_{error.reason}", headers=headers)


def upstream_busy(rest: Micros) -> ApiError:
    """Return the error for a request while all backends of its model have asked to be left alone, at least for `rest`."""
    message = "every backend that serves this model has asked to be left alone for a while (Retry-After)"
    return ApiError(503, message, kind="server_error", code="upstream_busy", headers=retry_after_header(rest))


def no_route(path: str) -> ApiError:
    return ApiError(404, f"there is nothing at {abbreviate(path)}", kind="invalid_request_error", code="unknown_url")


def method_not_allowed(method: str, allowed: str) -> ApiError:
    headers = ((b"allow", allowed.encode()),)
    return ApiError(
        405,
        f"{abbreviate(method)} is not allowed here",
        kind="invalid_request_error",
        code="method_not_allowed",
        headers=headers,
    )


def missing_api_key() -> ApiError:
    message = "an API key is needed here: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
    return ApiError(401, message, kind="invalid_request_error", code="missing_api_key", headers=_BEARER)


def invalid_api_key() -> ApiError:
    return ApiError(401, "this API key is not valid", kind="invalid_request_error", code="invalid_api_key", headers=_BEARER)


def expired_api_key() -> ApiError:
    return ApiError(401, "this API key has expired", kind="invalid_request_error", code="expired_api_key", headers=_BEARER)


def invalid_token(problem: str) -> ApiError:
    """Return the error for a JSON Web Token that is not valid."""
    message = f"this token is not valid: {problem}"
    return ApiError(401, message, kind="invalid_request_error", code="invalid_token", headers=_BEARER)


def keys_to_come() -> ApiError:
    """Return the error for a token whose key is not known yet."""
    message = "the keys of the issuer of this token are being read"
    return ApiError(503, message, kind="server_error", code="token_keys_unknown", headers=_RETRY_SOON)


def admin_forbidden(message: str) -> ApiError:
    return ApiError(403, message, kind="invalid_request_error", code="admin_forbidden")


def body_budget_exhausted() -> ApiError:
    message = "the request bodies that are being read or waiting take all the memory they may, in all or of this tenant"
    return ApiError(503, message, kind="server_error", code="body_budget_exhausted", headers=_RETRY_LATER)


def no_backend_named(problem: str) -> ApiError:
    """Return the error for a body that should name a backend and does not."""
    message = f'name a backend, as in {{"backend": "http://10.0.0.1:8000"}}: {problem}'
    return ApiError(400, message, kind="invalid_request_error", code="no_backend_named")


def unknown_backend(named: str, known: Sequence[str]) -> ApiError:
    """Return the error for a backend that this gateway does not have."""
    message = f"there is no backend {abbreviate(named)}; the backends are {', '.join(known)}"
    return ApiError(404, message, kind="invalid_request_error", code="unknown_backend")


def listed_elsewhere(url: str, sources: Sequence[str]) -> ApiError:
    """Return the error for a backend that cannot be taken away by a call, because other sources list it."""
    message = f"{url} was not added here: it is listed by {', '.join(sources)}; take it away there, or use /admin/drain"
    return ApiError(409, message, kind="invalid_request_error", code="backend_listed_elsewhere")


def no_stories() -> ApiError:
    """Return the error for a request that is asked for where no stories are kept."""
    message = "no stories are kept here: set gateway.recent_requests, or gateway.decision_log, where decisions are taken"
    return ApiError(404, message, kind="invalid_request_error", code="no_stories")


def unknown_request(name: str) -> ApiError:
    """Return the error for a request of which no story is known."""
    message = f"no recent request has the id or number {abbreviate(name)}; a decision log knows older ones: maitred why"
    return ApiError(404, message, kind="invalid_request_error", code="unknown_request")


def invalid_config(message: str) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", code="invalid_config")
