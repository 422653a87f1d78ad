"""Every answer by which the gateway refuses, with its stable code (SMG's where it has one)."""

from __future__ import annotations

from maitred.admission import Reason
from maitred.gateway.fleet import Fleet
from maitred.wire.asgi import ApiError
from maitred.wire.failures import ConnectError, LocalError, UpstreamError, UpstreamTimeout

RETRY_SOON = ((b"retry-after", b"1"),)
RETRY_LATER = ((b"retry-after", b"2"),)


def not_served(fleet: Fleet, model: str) -> ApiError:
    """No backend serves `model` now. That there is no such model is said only if no backend could turn up with it."""
    if fleet.may_serve(model):
        message = f"no backend that serves `{model}` is up"
        return ApiError(503, message, kind="server_error", code="no_healthy_backend", headers=RETRY_LATER)
    message = f"The model `{model}` does not exist"
    return ApiError(404, message, kind="invalid_request_error", code="model_not_found", param="model")


def by_admission(reason: str, timeout_status: int) -> ApiError:
    if reason == Reason.QUEUE_FULL:
        message = "the queue of this priority class is full"
        return ApiError(429, message, kind="rate_limit_error", code="scheduler_queue_full", headers=RETRY_LATER)
    message = "timed out waiting for a slot"
    return ApiError(timeout_status, message, kind="server_error", code="scheduler_queue_timeout", headers=RETRY_LATER)


def preempted() -> ApiError:
    headers = ((b"x-smg-preempted", b"true"), *RETRY_SOON)
    message = "preempted by a request of a higher class"
    return ApiError(503, message, kind="server_error", code="scheduler_preempted", headers=headers)


def shutting_down() -> ApiError:
    return ApiError(503, "the gateway is shutting down", kind="server_error", code="shutting_down", headers=RETRY_SOON)


def unanswered(error: UpstreamError | None) -> ApiError:
    """No backend gave an answer; `error` is what the last one did. None: there was none left to ask."""
    if error is None or isinstance(error, ConnectError):
        message = "no backend could be reached" if error is None else str(error)
        return ApiError(503, message, kind="server_error", code="no_healthy_backend", headers=RETRY_LATER)
    if isinstance(error, LocalError):
        return ApiError(503, str(error), kind="server_error", code="upstream_local", headers=RETRY_LATER)
    status = 504 if isinstance(error, UpstreamTimeout) else 502
    return ApiError(status, str(error), kind="server_error", code=f"upstream_{error.reason}")


def no_route(path: str) -> ApiError:
    return ApiError(404, f"there is nothing at {path}", kind="invalid_request_error", code="unknown_url")


def wrong_method(method: str, allowed: str) -> ApiError:
    headers = ((b"allow", allowed.encode()),)
    return ApiError(
        405, f"{method} is not allowed here", kind="invalid_request_error", code="method_not_allowed", headers=headers
    )


def internal() -> ApiError:
    return ApiError(500, "the gateway failed; its log says why", kind="server_error", code="internal_error")
