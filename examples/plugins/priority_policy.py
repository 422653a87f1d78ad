"""A priority policy: least slack first.

To try it, in this folder:

    maitred simulate --trace sample:mixed --scheduler priority-fcfs \\
        --priority-policy "priority_policy:LeastSlack(prefill_rate=8000)"
"""

from __future__ import annotations

from maitred.core.contracts import PriorityPolicy
from maitred.core.request import Request
from maitred.core.units import SECOND, Micros


class LeastSlack(PriorityPolicy):
    """The less time a request has left before it must start to meet its deadline, the more urgent it is.

    Time takes the same from all of them, so their order is fixed and `rank` says it: no score is computed for all that wait.
    """

    def __init__(self, prefill_rate: float = 10_000.0, patience: float = 60.0) -> None:
        """`prefill_rate` is in prompt tokens per second; a request without a deadline has `patience` seconds."""
        if prefill_rate <= 0:
            raise ValueError(f"prefill_rate must be above 0, not {prefill_rate}")
        self._micros_per_token = SECOND / prefill_rate
        self._patience = round(patience * SECOND)

    def compute(self, request: Request, now: Micros) -> float:
        return self.rank(request) + now

    def rank(self, request: Request) -> float:
        deadline = request.arrival + self._patience if request.deadline is None else request.deadline
        return round(request.prompt_tokens * self._micros_per_token) - deadline
