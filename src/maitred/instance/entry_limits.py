"""Entry limits: which requests an instance takes: by the model length, and while not too much waits; and where an answer ends.

**Length.** A model length of 4,096 tokens: a prompt of 4,000 tokens with an answer of at most 200 can never run. One of 3,900
can: an answer that would end by itself after 300 tokens ends after 196.

**Queue.** vLLM's API server counts what it has let in, and answers with 503 beyond that:

    max_num_queued_reqs      requests that wait or run, the new one included
    max_num_queued_tokens    prompt tokens of the requests that have no first token yet, without the new one. A prompt counts as
                             a whole until then, however much of it is computed or was found in the prefix cache

Example: at most 2,000 queued tokens, and two prompts of 900 tokens wait. A third one of 5,000 tokens is let in, because 1,800
is below the limit. After it all others are rejected until its first token is there.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState


class LengthLimits:
    """What the model length of one instance allows."""

    def __init__(self, max_model_len: int) -> None:
        """`max_model_len`, in tokens, limits prompt and answer together."""
        self._max_model_len = max_model_len

    def rejection_reason(self, request: Request) -> str | None:
        """Return why `request` could never run here, or None if it could."""
        prompt, answer = request.prompt_tokens, request.max_output_tokens or 1
        if prompt < 1:
            return "the prompt has no tokens"
        if prompt + answer > self._max_model_len:
            return f"{prompt} prompt and {answer} output tokens are more than the model length of {self._max_model_len} tokens"
        return None

    def output_length(self, request: Request, output_tokens: int) -> int:
        """Return the length of an answer that would end by itself after `output_tokens`, within the request's limits; 0 if the
        request could never run here."""
        prompt, limit = request.prompt_tokens, request.max_output_tokens
        longest = self._max_model_len - prompt
        if prompt < 1 or longest < (limit or 1):  # `rejection_reason`, without its words
            return 0
        if limit is not None and limit < longest:
            longest = limit
        length = output_tokens if output_tokens < longest else longest
        return length if length > 1 else 1


class QueueCaps:
    """When one instance takes no further request. None: no limit."""

    def __init__(self, max_num_queued_reqs: int | None, max_num_queued_tokens: int | None) -> None:
        self._max_requests = max_num_queued_reqs
        self._max_tokens = max_num_queued_tokens
        self.is_capped = max_num_queued_reqs is not None or max_num_queued_tokens is not None

    def overload_reason(self, prompts: Sequence[int], sequences: Mapping[RequestId, SequenceState]) -> str | None:
        """Return why requests with `prompts` (tokens of each) are rejected, while `sequences` wait and run; None if all are let
        in, one after the other."""
        if self._max_requests is not None and len(sequences) + len(prompts) > self._max_requests:
            return f"{len(sequences)} requests wait and run, and max_num_queued_reqs is {self._max_requests}"
        if self._max_tokens is not None:
            waiting = [seq.prompt_tokens for seq in sequences.values() if seq.first_token_at is None]
            tokens = sum(waiting) + sum(prompts[:-1])
            if tokens >= self._max_tokens:
                return f"{tokens} prompt tokens wait for a first token, and max_num_queued_tokens is {self._max_tokens}"
        return None
