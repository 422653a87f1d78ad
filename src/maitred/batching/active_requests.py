"""ActiveRequests: the books of the requests that a `RequestScheduler` decides about, in the order in which it sees them.

An active request is *pending* until its first chunk takes the blocks of its prompt; then it has *begun*, and at last it
*generates*. A request that is paused leaves, and has its old place when it comes back: behind all that came meanwhile it would
be the next victim again.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.batching.instance_kv_cache import ActiveRequest
from maitred.core.errors import InvariantError
from maitred.core.sequence import SequenceState


class ActiveRequests:
    """The active requests of one instance."""

    __slots__ = ("by_id", "in_order", "not_generating", "num_pending", "num_pending_tokens")

    def __init__(self) -> None:
        self.by_id: dict[int, ActiveRequest] = {}
        self.in_order: list[ActiveRequest] = []
        """The active requests, in the order in which the scheduler sees them."""
        self.not_generating: list[ActiveRequest] = []
        """Of these, in the same order, the requests that do not generate yet."""
        self.num_pending = 0
        """Active requests that have no KV yet."""
        self.num_pending_tokens = 0
        """Tokens of their prompts."""

    def add(self, request: ActiveRequest) -> None:
        """Make `request` active; it is pending."""
        seq = request.seq
        self.by_id[seq.request.id] = request
        self.num_pending += 1
        self.num_pending_tokens += request.prompt_len
        place = len(self.in_order)
        if not seq.num_preemptions:
            self.in_order.append(request)
            self.not_generating.append(request)
            return
        while place and _comes_after(self.in_order[place - 1].seq, seq):
            place -= 1
        self.in_order.insert(place, request)
        self.not_generating = [each for each in self.in_order if not each.seq.is_decoding]

    def begin(self, request: ActiveRequest) -> None:
        """Note that `request`, which was pending, has the blocks of its prompt."""
        request.has_blocks = True
        self.num_pending -= 1
        self.num_pending_tokens -= request.prompt_len

    def start_generating(self, request: ActiveRequest) -> None:
        """Note that `request`, which had begun, generates from now on."""
        self.not_generating.remove(request)

    def pop(self, seq: SequenceState) -> ActiveRequest:
        """Remove the request of `seq`, which leaves, and return it."""
        request = self.by_id.pop(seq.request.id)
        self.in_order.remove(request)
        if not seq.is_decoding:
            self.not_generating.remove(request)
        if not request.has_blocks:
            self.num_pending -= 1
            self.num_pending_tokens -= request.prompt_len
        return request

    def check(self) -> None:
        """Raise InvariantError if the books are not those of the requests."""
        pending = [request for request in self.in_order if not request.has_blocks]
        tokens = sum([request.prompt_len for request in pending])
        if len(pending) != self.num_pending or tokens != self.num_pending_tokens:
            raise InvariantError(f"{self.num_pending} requests of {self.num_pending_tokens} tokens are not those without KV")
        if self.not_generating != [request for request in self.in_order if not request.seq.is_decoding]:
            raise InvariantError("the requests that do not generate are not those of the batch")


def _comes_after(seq: SequenceState, returned: SequenceState) -> bool:
    """Return whether `seq`, which is active, was first admitted after `returned` was, or has not been yet."""
    return seq.scheduled_at is None or seq.admission_index > returned.admission_index
