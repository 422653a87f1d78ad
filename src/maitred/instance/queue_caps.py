"""QueueCaps: when an instance takes no further request (vLLM's `max_num_queued_reqs` and `max_num_queued_tokens`).

vLLM's API server counts what it has let in, and answers with 503 beyond that:

    max_num_queued_reqs      requests that wait or run, the new one included
    max_num_queued_tokens    prompt tokens of the requests that have no first token yet, without the new one. A prompt counts as
                             a whole until then, however much of it is computed or was found in the prefix cache

Example: at most 2,000 queued tokens, and two prompts of 900 tokens wait. A third one of 5,000 tokens is let in, because 1,800
is below the limit. After it all others are rejected until its first token is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState


class QueueCaps:
    """The caps of one instance. None: no limit."""

    def __init__(self, max_num_queued_reqs: int | None, max_num_queued_tokens: int | None) -> None:
        self._max_requests = max_num_queued_reqs
        self._max_tokens = max_num_queued_tokens
        self.is_capped = max_num_queued_reqs is not None or max_num_queued_tokens is not None

    def overload_reason(self, prompts: Sequence[int], sequences: Mapping[RequestId, SequenceState]) -> str | None:
        """Return why requests with prompts of so many tokens are rejected, while `sequences` wait and run; None if all are let
        in, one after the other."""
        if self._max_requests is not None and len(sequences) + len(prompts) > self._max_requests:
            return f"{len(sequences)} requests wait and run, and max_num_queued_reqs is {self._max_requests}"
        if self._max_tokens is not None:
            waiting = [seq.prompt_tokens for seq in sequences.values() if seq.first_token_at is None]
            tokens = sum(waiting) + sum(prompts[:-1])
            if tokens >= self._max_tokens:
                return f"{tokens} prompt tokens wait for a first token, and max_num_queued_tokens is {self._max_tokens}"
        return None
