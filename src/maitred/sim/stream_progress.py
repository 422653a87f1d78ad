"""The progress of streams as a gateway sees it: in steps of 20 tokens (`PROGRESS_TOKENS`).

A gateway counts the events of a stream, and tells the programs core of every 20; of a response that is not streamed it sees
nothing before its end. Here the core is told the same, but only before its next input, since it decides nothing by progress
alone: so instances need not stop at every 20th token. A stream that has 50 tokens when another request comes has made its
program 40 tokens larger.

A sequence gets at most one token in a step, so a stream that has 50 tokens need not be looked at in the next 9 steps of its
instance. The streams of an instance are kept by the step at which each may have its next 20 tokens, and only those are looked
at that are due.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from maitred.core.request import RequestId
from maitred.programs import PROGRESS_TOKENS
from maitred.sim.replica import Replica


class StreamProgress:
    """The streams under way."""

    def __init__(self) -> None:
        self._told: dict[RequestId, int] = {}
        """The tokens that the core has been told of."""
        self._due: dict[Replica, list[tuple[int, RequestId]]] = {}
        """Streams by the step of their instance at which they are to be looked at."""

    def begin(self, request_id: RequestId, replica: Replica) -> None:
        """Note that a stream has begun. One that is made again after a lost slot goes on from what was told of it."""
        self._told.setdefault(request_id, 0)
        heappush(self._due.setdefault(replica, []), (replica.instance.num_steps, request_id))

    def end(self, request_id: RequestId) -> None:
        """Forget a request, if it is a stream under way."""
        self._told.pop(request_id, None)

    def take(self) -> Iterator[tuple[RequestId, int]]:
        """Yield the streams that have grown since the last call, and by how many tokens."""
        for replica, due in self._due.items():
            if not due:
                continue
            replica.settle()
            step = replica.instance.num_steps
            while due and due[0][0] <= step:
                request_id = heappop(due)[1]
                told = self._told.get(request_id)
                if told is None:
                    continue
                try:
                    emitted = replica.instance.num_output_tokens(request_id)
                except KeyError:  # its end there is an event that is still to come, or it has lost its slot
                    continue
                heappush(due, (step + PROGRESS_TOKENS - emitted % PROGRESS_TOKENS, request_id))
                grown = emitted // PROGRESS_TOKENS * PROGRESS_TOKENS - told
                if grown > 0:
                    self._told[request_id] += grown
                    yield request_id, grown
