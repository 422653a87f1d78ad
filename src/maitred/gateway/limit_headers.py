"""`x-ratelimit-*`: what a client is told of its limits of requests and tokens, as OpenAI does."""

from __future__ import annotations

from typing import Final

from maitred.admission.terms.limits import LimitStatus
from maitred.core.units import SECOND, Micros
from maitred.wire.messages import Headers

_MILLISECOND: Final = SECOND // 1_000


def format_span(span: Micros) -> str:
    """Return a span as OpenAI writes it, rounded up: `120ms`, `1s`, `6m0s`, `23h59m0s`."""
    if span < SECOND:
        return f"{-(-span // _MILLISECOND)}ms"
    minutes, secs = divmod(-(-span // SECOND), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{secs}s"
    return f"{minutes}m{secs}s" if minutes else f"{secs}s"


def limit_headers(status: LimitStatus) -> Headers:
    """Return the headers for the limits that hold for a request."""
    headers: Headers = []
    for unit, state in ((b"requests", status.requests), (b"tokens", status.tokens)):
        if state is not None:
            headers.append((b"x-ratelimit-limit-" + unit, b"%d" % state.limit))
            headers.append((b"x-ratelimit-remaining-" + unit, b"%d" % state.remaining))
            headers.append((b"x-ratelimit-reset-" + unit, format_span(state.reset).encode()))
    return headers
