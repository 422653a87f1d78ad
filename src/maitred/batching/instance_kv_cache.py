"""InstanceKvCache: the KV blocks of an instance, as its scheduler sees them.

An instance counts its blocks and does not keep them one by one. So what all sequences that decode will still take is a sum over
the phases at which they open blocks, however many there are:

    blocks held = (tokens held + free places in the last blocks) / block size
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from maitred.batching.trtllm.kv_cache_view import NO_MATCH, KvCacheView, ReleaseSimulation, ReusedPrefix
from maitred.batching.trtllm.llm_request import LlmRequest
from maitred.core.sequence import SequenceState
from maitred.kv import BlockManager, PrefixBlockManager


class ActiveRequest(LlmRequest):
    """A sequence of an instance as its scheduler sees it."""

    __slots__ = ("has_blocks", "seq")

    def __init__(self, seq: SequenceState, max_model_len: int) -> None:
        """The tokens that `seq` emitted before it was preempted belong to its prompt. `max_model_len`, in tokens, limits an
        answer about which the client says nothing."""
        request, prompt = seq.request, seq.num_tokens_to_prefill
        longest = max_model_len - request.prompt_tokens
        if request.max_output_tokens is not None:
            longest = min(longest, request.max_output_tokens)
        super().__init__(request.id, prompt, max(1, longest - (prompt - request.prompt_tokens)), priority=seq.priority)
        self.seq = seq
        self.num_tokens_before = prompt - request.prompt_tokens
        self.num_pauses = seq.num_preemptions
        self.has_token_limit = request.max_output_tokens is not None
        # With KV from another instance only what was emitted there is computed; if it is paused, it has none.
        self.context_current_position = self.prepopulated_prompt_len = seq.transferred_kv_tokens
        self.has_blocks = False
        """Whether it has KV blocks: those of its whole prompt, from its first chunk on."""

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of its KV, while it generates."""
        return self.prompt_len + self.num_generated_tokens - 1


class InstanceKvCache(KvCacheView):
    """The blocks of one instance, in one attention window."""

    def __init__(self, blocks: BlockManager, requests: Mapping[int, ActiveRequest], decode_tokens: Callable[[], int]) -> None:
        """`requests` are the active ones by id, which the owner changes. `decode_tokens` returns the tokens of KV of those that
        generate, summed."""
        self._decode_tokens = decode_tokens
        self.tokens_per_block = blocks.block_size
        self._blocks = blocks
        self._prefix_blocks = blocks if isinstance(blocks, PrefixBlockManager) else None
        self.enable_block_reuse = self._prefix_blocks is not None
        self._requests = requests
        self._num_decodes = 0
        self._blocks_at_completion = 0
        """Blocks of all sequences that decode when their answers have their greatest length."""

    @property
    def free_blocks(self) -> Sequence[int]:
        return (self._blocks.free_committed,)

    def get_max_resource_count(self) -> int:
        return self._blocks.total

    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        return -(-(request.prompt_len + request.max_new_tokens) // self.tokens_per_block)

    def blocks_to_completion(self, request: LlmRequest, match: ReusedPrefix) -> Sequence[int]:
        return (self.get_needed_resource_to_completion(request) - self._blocks_held(request, match),)

    def blocks_to_complete_all(self, requests: Sequence[LlmRequest]) -> Sequence[int]:
        if len(requests) == self._num_decodes:  # then they are all that decode, of which only sums are kept
            return (self._blocks_at_completion - self._blocks.blocks_of_decodes(self._decode_tokens()),)
        return super().blocks_to_complete_all(requests)

    def blocks_for_next_step(
        self, request: LlmRequest, match: ReusedPrefix, *, two_step_lookahead: bool = False
    ) -> Sequence[int]:
        active, blocks_for = self._requests[request.request_id], self._blocks.blocks_for
        if request.is_generation_in_progress_state:
            tokens = active.num_cached_tokens
            left = request.prompt_len + request.max_new_tokens - tokens
            return (blocks_for(tokens + min(2 if two_step_lookahead else 1, left)) - blocks_for(tokens),)
        return (blocks_for(request.prompt_len) - self._blocks_held(request, match),)

    def blocks_for_next_step_of_all(self, requests: Sequence[LlmRequest], *, two_step_lookahead: bool) -> Sequence[int]:
        if len(requests) == self._num_decodes and not two_step_lookahead:
            return (self._blocks.decode_blocks(1),)
        return super().blocks_for_next_step_of_all(requests, two_step_lookahead=two_step_lookahead)

    def match_prefix(self, request: LlmRequest) -> ReusedPrefix:
        if self._prefix_blocks is None:
            return NO_MATCH
        seq = self._requests[request.request_id].seq
        hit = self._prefix_blocks.find_cached(seq)
        hashes = seq.block_hashes or ()
        first_new = hashes[hit.num_blocks] if hit.num_blocks < len(hashes) else None
        return ReusedPrefix(first_new, hit.num_blocks, hit.num_blocks - hit.num_unreferenced)

    def start_scheduling(self) -> ReleaseSimulation:
        return _Releases(self)

    def on_decode_start(self, request: ActiveRequest) -> None:
        """Note that `request` generates from now on."""
        self._num_decodes += 1
        self._blocks_at_completion += self.get_needed_resource_to_completion(request)

    def on_decode_end(self, request: ActiveRequest) -> None:
        """Note that `request` generates no more."""
        self._num_decodes -= 1
        self._blocks_at_completion -= self.get_needed_resource_to_completion(request)

    def shortage(self, requests: Sequence[LlmRequest]) -> str:
        """Return a hint that names the first of `requests` without KV, and the blocks that it lacks."""
        for request in requests:
            if not self._requests[request.request_id].has_blocks:
                needed = self.get_needed_resource_to_completion(request)
                return (
                    f"request {request.request_id} needs {needed} blocks to its completion, and {self._blocks.free_committed} "
                    f"of {self._blocks.total} are free: increase total_kv_blocks, or max_num_batched_tokens if blocks suffice"
                )
        return "requests that have begun are left out"

    def _blocks_held(self, request: LlmRequest, match: ReusedPrefix) -> int:
        """Return the blocks of `request`, or those that it would share with others if it began."""
        active = self._requests[request.request_id]
        if request.is_generation_in_progress_state:
            return self._blocks.blocks_for(active.num_cached_tokens)
        if active.has_blocks:
            return self._blocks.blocks_for(request.prompt_len)
        return match.num_referenced_blocks


class _Releases(ReleaseSimulation):
    def __init__(self, kv_cache: InstanceKvCache) -> None:
        self._kv_cache = kv_cache
        self._free = kv_cache.free_blocks[0]
        self._released: list[tuple[SequenceState, int]] = []
        """The sequences that are released, with the blocks that they hold, if there is a prefix cache."""

    @property
    def free_blocks(self) -> Sequence[int]:
        return (self._free,)

    def release(self, request: LlmRequest) -> None:
        held, prefixed = self._kv_cache._blocks_held(request, NO_MATCH), self._kv_cache._prefix_blocks
        if prefixed is None:
            self._free += held
            return
        self._released.append((self._kv_cache._requests[request.request_id].seq, held))
        # All together, because a block that several of them share is free only when the last one has released it.
        self._free = self._kv_cache.free_blocks[0] + prefixed.blocks_freed_by(self._released)
