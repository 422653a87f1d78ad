"""ExpectedAnswers: how many tokens the running requests may generate yet, in all, without a look at each.

A pass charges every running request with what it may generate yet, `clip_max_new_tokens` at most. A request that decodes has
one token less to generate after each step, so all follows from the step at which its answer would have its greatest length:

    left(step) = end - step         sum over requests of min(left, clip) = sum of ends - n * step  +  clip * m

for the n requests with at most `clip` tokens left and the m others, which stand in a heap by their ends and become the former
in their order. A pass costs the same however many requests run, and so however long answers are.

Example: clip 100, at step 50. Requests may generate until steps 60, 90 and 900: 10 + 40 + 100 tokens are expected at most. At
step 60 it is 0 + 30 + 100, and at step 801 the third one has 99 left.

SGLang multiplies each share by its new-token ratio, and adds the products up; here the sum is multiplied, which may differ in
the last bit.
"""

from __future__ import annotations

from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId


class ExpectedAnswers:
    """The running requests of one instance. Steps are those of the counter of its decode steps."""

    def __init__(self, clip: int) -> None:
        """`clip`: tokens of one request that count at most."""
        self._clip = clip
        self._num_near = 0
        self._sum_of_ends = 0
        """Sum of the last steps of the requests that have at most `clip` tokens left."""
        self._far: IndexedHeap[RequestId, int, int] = IndexedHeap()
        """The last steps of the other requests."""

    def add(self, request_id: RequestId, end: int) -> None:
        """Count a request that decodes from now on, and whose answer has its greatest length at step `end`."""
        self._far.push(request_id, end, end)

    def remove(self, request_id: RequestId, end: int) -> None:
        """Count a request no longer that was added with `end`."""
        if self._far.remove(request_id) is None:
            self._num_near -= 1
            self._sum_of_ends -= end

    def tokens_left(self, step: int) -> int:
        """Return the tokens that all may generate from `step` on, which never falls from call to call."""
        far = self._far
        while (end := far.peek_key()) is not None and end - step <= self._clip:
            far.pop()
            self._num_near += 1
            self._sum_of_ends += end
        return self._sum_of_ends - self._num_near * step + self._clip * len(far)
