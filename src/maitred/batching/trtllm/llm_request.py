"""LlmRequest: a request as a scheduler of TensorRT-LLM's kind sees it, under the names that its users know.

The states are numbered in the order in which a request passes through them, so "has reached state X" is `state >= X`, and a
scheduler serves the window `no_schedule_until_state <= state < no_schedule_after_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias


class LlmRequestState(IntEnum):
    """Where a request is in its life; the numbers are TensorRT-LLM's."""

    DISAGG_TRANS_ERROR = -1
    UNKNOWN = 0
    ENCODER_INIT = 1
    DISAGG_CONTEXT_WAIT_SCHEDULER = 7
    DISAGG_GENERATION_INIT = 8
    """New on the instance that generates: it needs KV blocks before its KV can come."""
    DISAGG_GENERATION_TRANS_IN_PROGRESS = 9
    CONTEXT_INIT = 10
    DISAGG_CONTEXT_INIT_AND_TRANS = 11
    DISAGG_GENERATION_TRANS_COMPLETE = 12
    GENERATION_IN_PROGRESS = 13
    GENERATION_TO_COMPLETE = 14
    """Its last token is being computed: it holds its memory, and is not run again."""
    GENERATION_COMPLETE = 20
    DISAGG_CONTEXT_TRANS_IN_PROGRESS = 21
    DISAGG_CONTEXT_COMPLETE = 22
    DISAGG_GENERATION_WAIT_TOKENS = 23


class LlmRequest:
    """A request that a scheduler may serve. Its owner moves it on; a scheduler writes no more than the chunk, the draft tokens
    that are kept, and the estimate of reusable tokens. All counts are tokens."""

    __slots__ = (
        "beam_width",
        "context_chunk_size",
        "context_current_position",
        "encoder_output_len",
        "estimated_reusable_tokens",
        "has_token_limit",
        "is_multimodal",
        "lora_task_id",
        "max_new_tokens",
        "num_draft_tokens",
        "num_generated_tokens",
        "num_pauses",
        "num_shared_blocks",
        "num_tokens_before",
        "prepopulated_prompt_len",
        "priority",
        "prompt_len",
        "request_id",
        "snapshot_points",
        "state",
    )

    def __init__(
        self,
        request_id: int,
        prompt_len: int,
        max_new_tokens: int,
        *,
        state: LlmRequestState = LlmRequestState.CONTEXT_INIT,
        priority: float = 0.5,
        lora_task_id: int | None = None,
        num_draft_tokens: int = 0,
        beam_width: int = 1,
        encoder_output_len: int = 0,
        is_multimodal: bool = False,
    ) -> None:
        self.request_id = request_id
        self.state = state
        self.prompt_len = prompt_len
        self.max_new_tokens = max_new_tokens
        """Most tokens that it may still generate beyond `prompt_len`."""
        self.has_token_limit = True
        """Whether that is what the client allows, and not only what the model or the memory does."""
        self.num_generated_tokens = 0
        self.num_tokens_before = 0
        """Tokens of the answer that were generated before the last pause, and belong to the prompt now."""
        self.num_pauses = 0
        """How often it has lost its KV."""
        self.num_shared_blocks = 0
        """Leading blocks of its prompt that other requests held when it began."""
        self.priority = priority
        """Urgency from 0 to 1, larger is more urgent."""
        self.lora_task_id = lora_task_id
        self.num_draft_tokens = num_draft_tokens
        self.beam_width = beam_width
        self.encoder_output_len = encoder_output_len
        self.is_multimodal = is_multimodal
        """Whether its prompt has content that an encoder has computed, such as images."""
        self.context_current_position = 0
        """Tokens of the prompt that have their KV."""
        self.prepopulated_prompt_len = 0
        """Of these, the tokens that were not computed for it but found in the cache."""
        self.context_chunk_size = prompt_len
        """Tokens of the prompt that the next step computes."""
        self.estimated_reusable_tokens = 0
        """Tokens of the prompt that a first chunk is expected to find in the cache."""
        self.snapshot_points: Sequence[int] = ()
        """Positions in the prompt at which a recurrent state is saved, in ascending order."""

    @property
    def context_remaining_length(self) -> int:
        """Tokens of the prompt that are still to be computed."""
        return self.prompt_len - self.context_current_position

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt_len + self.num_generated_tokens

    @property
    def is_encoder_init_state(self) -> bool:
        return self.state == LlmRequestState.ENCODER_INIT

    @property
    def is_context_init_state(self) -> bool:
        return self.state in _CONTEXT_STATES

    @property
    def is_disagg_generation_init_state(self) -> bool:
        return self.state == LlmRequestState.DISAGG_GENERATION_INIT

    @property
    def is_generation_in_progress_state(self) -> bool:
        return self.state in _GENERATION_STATES

    @property
    def is_first_context_chunk(self) -> bool:
        """Whether nothing of the prompt has been computed yet."""
        return self.context_current_position == self.prepopulated_prompt_len

    @property
    def is_last_context_chunk(self) -> bool:
        """Whether the chunk ends the prompt."""
        return self.context_current_position + self.context_chunk_size == self.prompt_len

    @property
    def is_started(self) -> bool:
        """Whether it holds computed KV: in the middle of its prompt, or generating."""
        if self.is_context_init_state:
            return not self.is_first_context_chunk
        return self.is_generation_in_progress_state


RequestList: TypeAlias = list[LlmRequest]

_CONTEXT_STATES = frozenset({LlmRequestState.CONTEXT_INIT, LlmRequestState.DISAGG_CONTEXT_INIT_AND_TRANS})
_GENERATION_STATES = frozenset(
    {
        LlmRequestState.DISAGG_GENERATION_TRANS_COMPLETE,
        LlmRequestState.GENERATION_IN_PROGRESS,
        LlmRequestState.GENERATION_TO_COMPLETE,
    }
)
