"""LengthLimits: which prompts and answers the model length lets in, and where an answer ends.

Example: a model length of 4,096 tokens. A prompt of 4,000 tokens with an answer of at most 200 can never run. One of 3,900 can:
an answer that would end by itself after 300 tokens ends after 196.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.core.request import Request


class LengthLimits:
    """The limits of one instance."""

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
