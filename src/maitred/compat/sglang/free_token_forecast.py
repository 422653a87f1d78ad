"""FreeTokenForecast: whether memory lasts until requests that do not end by themselves have ended.

Without a prefix cache, and with clients that ignore the end-of-sequence token (benchmarks do), it is known when each answer
ends and what it frees. The requests stand in the order of the tokens that are left to them; while n of them are there, each
step takes n tokens, and each that ends gives back its own:

    for each (left, occupied), n of them from here on:  fail if  free + freed - left * n <= n;  freed += occupied

Example: 100 tokens are free; one request has 10 tokens left and occupies 30, another has 40 left and occupies 20. Until the
first ends, 2 * 10 tokens are taken and 80 stay. Then 30 come back, and the other could take 40 of 130. It lasts.

SGLang's list is not always in order: a request that has more left than all others is inserted *before* the last one. And a
request that was refused stays in the list for the rest of the pass. Source: sglang 0.5.23, `schedule_policy.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.compat.sglang.prefill_request import PrefillRequest


class FreeTokenForecast:
    """The requests of one pass, by the tokens that are left to them."""

    def __init__(self, requests: Sequence[PrefillRequest], new_token_ratio: float) -> None:
        """Requests that do end by themselves count with `new_token_ratio` of their limit."""
        self._ratio = new_token_ratio
        states = [(self._tokens_left(request), request.num_tokens) for request in requests]
        self._states = sorted([state for state in states if state[0] > 0], key=_left)

    def insert(self, request: PrefillRequest) -> None:
        """Add a request, where SGLang does."""
        left = self._tokens_left(request)
        if left <= 0:
            return
        states = self._states
        later = [index for index, state in enumerate(states) if state[0] >= left]
        states.insert(later[0] if later else max(len(states) - 1, 0), (left, request.num_tokens))

    def lasts(self, free: int) -> bool:
        """Return whether `free` tokens are enough."""
        freed = 0
        for index, (left, occupied) in enumerate(self._states):
            count = len(self._states) - index
            if free + freed - left * count <= count:
                return False
            freed += occupied
        return True

    def _tokens_left(self, request: PrefillRequest) -> float:
        return request.max_new_tokens * (1.0 if request.ignores_eos else self._ratio) - request.output_tokens


def _left(state: tuple[float, int]) -> float:
    return state[0]
