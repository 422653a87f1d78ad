"""Which request loses its KV under `maitred`, when the blocks of the next tokens are not free.

What a pause costs is the KV that is computed again. What it brings is the blocks of the request. The cheapest is taken of those
that free as much as will be missing (the deficit), and if none does, the one that frees most. Before that come, in this order:
requests that may still be paused, less urgent ones, and those that generate before those in the middle of their prompt.

    deficit 30 blocks     A holds 90 blocks, B 40, C 12: B is paused. C alone would not do, and A has more to compute again.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.batching.trtllm.llm_request import LlmRequest


def choose_victim(started: Sequence[LlmRequest], deficit: int, max_pauses: int, block_size: int) -> LlmRequest | None:
    """Return the request of `started` to be paused, or None if there is none. `deficit` is in blocks. Equals: the later one."""
    best: LlmRequest | None = None
    least: tuple[bool, float, bool, bool, int] | None = None
    for request in started:
        held = request.num_tokens - request.num_shared_blocks * block_size
        suffices = held >= deficit * block_size  # too small a victim is followed by another one, and both compute again
        is_prompt = request.is_context_init_state
        cost = request.context_current_position - request.prepopulated_prompt_len if is_prompt else held
        # A request that came back `max_pauses` times has its blocks for good. One in its prompt holds all its blocks and has
        # nothing to show for them yet, so a pause would waste all of its work.
        rank = (request.num_pauses >= max_pauses, request.priority, is_prompt, not suffices, cost if suffices else -held)
        if least is None or rank <= least:
            best, least = request, rank
    return best
