"""How many KV blocks a request will need: to its completion, or for its next step.

Tokens are cut into blocks of `tokens_per_block`. The full blocks of a prompt are shared by all beams; the partial one and those
of the answer are one per beam. With an attention window of W tokens no more than W tokens are kept. These are TensorRT-LLM's
rules, under which the no-evict policies count to completion and max-utilization counts one step.

Example: a prompt of 25 tokens and an answer of at most 20, in blocks of 10 with 4 beams. To completion that is 2 shared blocks
and 3 blocks of each beam, 14 in all. The first chunk takes 2 shared blocks and a partial one for each beam, 6 in all.
"""

from __future__ import annotations

import msgspec


class BlockGeometry(msgspec.Struct, frozen=True):
    """The layout of the KV memory of one group of layers."""

    tokens_per_block: int
    window: int
    """Tokens that attention looks back: the length of a whole sequence where it is not limited."""
    is_sliding: bool = False
    """Whether blocks that have left the window are freed while a sequence grows, so that it may hold one more meanwhile."""

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.tokens_per_block)


class SequenceNeed(msgspec.Struct, frozen=True):
    """What a request asks of KV memory. All counts are tokens unless they say blocks."""

    prompt_len: int
    max_new_tokens: int
    beam_width: int = 1
    num_draft_tokens: int = 0


def blocks_to_completion(
    need: SequenceNeed, geometry: BlockGeometry, allocated: int = 0, reusable: int = 0, current_tokens: int = 0
) -> int:
    """Return the blocks that a request will take until its answer has its greatest length, beyond those that it has.

    `allocated` is the number of blocks that it has per beam, `reusable` the leading blocks of the prompt that other requests
    hold, `current_tokens` the tokens of prompt and answer so far.
    """
    size, total_tokens = geometry.tokens_per_block, need.prompt_len + need.max_new_tokens
    shared = min(need.prompt_len, geometry.window) // size
    total = geometry.blocks_for(min(total_tokens, geometry.window))
    # A window that slides off its first block needs a further one before that block is free.
    longest = geometry.blocks_for(total_tokens)
    slides = geometry.is_sliding and longest > max(total, geometry.blocks_for(current_tokens))
    per_beam = total - shared + int(slides)
    reused = min(reusable, shared)
    if allocated < shared - reused:
        return shared - reused - allocated + per_beam * need.beam_width
    return max(0, total - reused - allocated + int(slides)) * need.beam_width


def blocks_of_first_chunk(need: SequenceNeed, geometry: BlockGeometry, reusable: int = 0) -> int:
    """Return the blocks of the whole prompt with its draft tokens, which the first chunk takes, however small it is.

    `reusable` is the number of leading blocks that other requests hold.
    """
    tokens = min(need.prompt_len + need.num_draft_tokens, geometry.window + need.max_new_tokens)
    shared, partial = divmod(tokens, geometry.tokens_per_block)
    return shared + (need.beam_width if partial else 0) - min(reusable, shared)


def blocks_of_generation_step(
    need: SequenceNeed, geometry: BlockGeometry, cached_tokens: int, *, two_step_lookahead: bool = False
) -> int:
    """Return the blocks that the next step of a generating request opens, or the next two steps.

    `cached_tokens` are those in its KV cache. Once the window is full, blocks are reused in a cycle and none is opened.
    """
    steps = 2 if two_step_lookahead else 1
    left = need.max_new_tokens - (cached_tokens - need.prompt_len)
    tokens = cached_tokens + min(steps * (need.num_draft_tokens + 1), left)
    if tokens > geometry.window:
        return 0
    return (geometry.blocks_for(tokens) - geometry.blocks_for(cached_tokens)) * need.beam_width
