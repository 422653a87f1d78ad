"""Request ids: one name of a request in the answer, the access log, the recording and the decision log.

A client may send one as `x-request-id`; otherwise the gateway gives one: `maitred-`, the run of the gateway, and the number of
the request in that run, as in `maitred-5f0c2a91d3e4-17`. The answer says it under the same name, and one of Anthropic's API as
`request-id` too. Ids of clients may repeat. So decisions are about numbers, and the line of a decision log in which a request
comes in has both.
"""

from __future__ import annotations

import itertools
from typing import Final

from maitred.core.request import RequestId
from maitred.gateway.bodies.request_fields import DECISION_HEADER, REQUEST_ID_HEADER
from maitred.wire.exchange import Exchange, is_messages_path
from maitred.wire.messages import Headers

MESSAGES_ID_HEADER: Final = b"request-id"
"""What Anthropic's API calls it, whose SDKs look for it under this name alone."""

QUEUE_HEADER: Final = b"x-maitred-queue-ms"
"""For how long a request has waited for memory of its program and for a slot, in whole ms, rounded down."""
NOT_QUEUED: Final = (QUEUE_HEADER, b"0")
OWN_ANSWER_HEADERS: Final = frozenset((REQUEST_ID_HEADER, QUEUE_HEADER, DECISION_HEADER))
"""What an answer says of this gateway, and never of a maitred behind it."""


def id_headers(path: str, request_id: bytes) -> Headers:
    """Return the headers of an answer that tell its client the id of its request to `path`, which may have a query."""
    told: Headers = [(REQUEST_ID_HEADER, request_id)]
    if is_messages_path(path):
        told.append((MESSAGES_ID_HEADER, request_id))
    return told


class RequestIds:
    """Gives ids and numbers to the requests of one run."""

    def __init__(self, run: str) -> None:
        """`run` is a name of this run, ASCII, that no other run has."""
        self._numbers = itertools.count()
        self._prefix = f"maitred-{run}-".encode()

    def next(self, given: bytes | None) -> tuple[RequestId, bytes]:
        """Return a number that no other request of this run has, and the id of the request with this number. `given` is the one
        that its client has sent, or None."""
        number = next(self._numbers)
        return number, given or b"%b%d" % (self._prefix, number)

    def mark_answer(self, exchange: Exchange) -> bytes:
        """Have the answer to a request that gets no number, such as one that is refused, say its id, and return the id."""
        added = exchange.added_headers
        if added is None:
            _, request_id = self.next(exchange.get_header(REQUEST_ID_HEADER))
            exchange.added_headers = added = [*id_headers(exchange.path, request_id), NOT_QUEUED]
        return added[0][1]
