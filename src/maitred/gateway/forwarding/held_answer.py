"""The answer of an engine with an error, held while another backend is asked.

It stays as it came, the rest of it unread, so that it can be passed on whole if no other backend gives a better one.
"""

from __future__ import annotations

from typing import Final

from maitred.core.units import Micros
from maitred.gateway.forwarding.response_forwarder import ResponseForwarder
from maitred.gateway.forwarding.retries import is_busy, read_retry_after
from maitred.scheduler.interface import AnsweredError, UpstreamRequest
from maitred.wire.response import UpstreamResponse

_ERROR: Final = 500
"""The status that an error within an answer stands for if it names none."""


class HeldAnswer(AnsweredError):  # noqa: N818  (an answer)
    """Such an answer, of which the first data has come."""

    def __init__(self, sent: UpstreamRequest, forwarder: ResponseForwarder, response: UpstreamResponse, wall: Micros) -> None:
        """`wall` is the time of day."""
        told = forwarder.first_error
        status = response.status if told is None else told.status or _ERROR
        retry_after = read_retry_after(response.headers, wall)
        super().__init__(
            f"it answers {response.status}" if told is None else f"it answers 200 with an error: {told.message}",
            is_busy=is_busy(status, retry_after, forwarder.withheld),
            retry_after=retry_after,
        )
        self.sent, self.forwarder, self._response = sent, forwarder, response

    def close(self) -> None:
        """Drop the answer. If it has not come whole, its connection is closed."""
        self._response.close()
