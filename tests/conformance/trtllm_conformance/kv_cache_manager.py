"""KvCacheManager: the KV blocks of the requests of one instance, for a scheduler and its engine.

There is a pool of blocks for each attention window. The engine adds a request when its first chunk runs, which takes the
blocks of its whole prompt; it appends a token for each step that generates; and it removes the request. With reuse, leading
full blocks of the prompt that are cached are shared, and the others are cached once the prompt is computed (`store_context`).

    need, example with 10 tokens per block: a prompt of 21 tokens takes 3 blocks, 2 of them full. A second request with the same
    prompt shares these 2, and takes 1 of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from maitred.batching.trtllm.kv_cache_view import KvCacheView, ReleaseSimulation, ReusedPrefix
from maitred.core.errors import InvariantError
from maitred.kv import BlockPool
from maitred.kv.block_runs import RunLock

from .block_needs import (
    BlockGeometry,
    SequenceNeed,
    blocks_of_first_chunk,
    blocks_of_generation_step,
    blocks_to_completion,
)
from .requests import EngineRequest


class KvCacheManager(KvCacheView):
    """KV blocks, and what they hold of prompts. All counts are blocks, unless they say tokens."""

    def __init__(
        self, blocks_per_window: Mapping[int, int], tokens_per_block: int, *, enable_block_reuse: bool = False
    ) -> None:
        """`blocks_per_window`: the blocks for each attention window, which is in tokens. All but the longest one slide."""
        if not blocks_per_window:
            raise ValueError("KV memory needs at least one attention window")
        self.tokens_per_block = tokens_per_block
        self.enable_block_reuse = enable_block_reuse
        longest = max(blocks_per_window)
        self._geometries = [BlockGeometry(tokens_per_block, window, window < longest) for window in blocks_per_window]
        self._pools = [BlockPool(blocks, tokens_per_block) for blocks in blocks_per_window.values()]
        self._sequences: dict[int, _CachedSequence] = {}
        self._references = [Counter[int]() for _ in self._pools]
        """How many requests hold each block with known content, by window."""

    @property
    def free_blocks(self) -> Sequence[int]:
        return [pool.free for pool in self._pools]

    def get_max_resource_count(self) -> int:
        return min(pool.total for pool in self._pools)

    def get_needed_resource_to_completion(self, request: EngineRequest) -> int:
        return max(blocks_to_completion(_need(request), geometry) for geometry in self._geometries)

    def blocks_to_completion(self, request: EngineRequest, match: ReusedPrefix) -> Sequence[int]:
        need, sequence = self._need(request), self._sequences.get(request.request_id)
        reusable = match.num_referenced_blocks if sequence is None and self._is_single_window else 0
        return [
            blocks_to_completion(
                need, geometry, 0 if sequence is None else sequence.blocks_per_beam[window], reusable, request.num_tokens
            )
            for window, geometry in enumerate(self._geometries)
        ]

    def blocks_for_next_step(
        self, request: EngineRequest, match: ReusedPrefix, *, two_step_lookahead: bool = False
    ) -> Sequence[int]:
        need = self._need(request)
        if request.is_generation_in_progress_state:
            cached = self.cached_tokens(request)
            return [
                blocks_of_generation_step(need, geometry, cached, two_step_lookahead=two_step_lookahead)
                for geometry in self._geometries
            ]
        if request.is_disagg_generation_init_state:
            return [blocks_of_first_chunk(need, geometry) for geometry in self._geometries]
        if request.is_context_init_state and request.is_first_context_chunk:
            reusable = match.num_referenced_blocks if self._is_single_window else 0
            return [blocks_of_first_chunk(need, geometry, reusable) for geometry in self._geometries]
        return [0] * len(self._geometries)

    def match_prefix(self, request: EngineRequest) -> ReusedPrefix:
        full = request.block_hashes[: request.prompt_len // self.tokens_per_block]
        pool, references = self._pools[0], self._references[0]
        cached = pool.num_cached_blocks(full)
        referenced = next((index for index in range(cached) if not references[full[index]]), cached)
        # With its adapter: the KV of equal tokens differs by adapter, so such requests do not wait for each other.
        first_new = (request.lora_task_id, full[cached]) if cached < len(full) else None
        return ReusedPrefix(first_new, cached, referenced)

    def start_scheduling(self) -> ReleaseSimulation:
        return _Releases(self)

    def cached_tokens(self, request: EngineRequest) -> int:
        """Return the tokens of `request` that have KV blocks; 0 if it has none."""
        sequence = self._sequences.get(request.request_id)
        return 0 if sequence is None else sequence.tokens

    def add_sequence(self, request: EngineRequest) -> int:
        """Take the blocks of the prompt of `request`. Return how many leading blocks are shared; with reuse the request
        continues behind them. Raises ValueError if too few blocks are free."""
        shared = 0
        sequence = self._sequences[request.request_id] = _CachedSequence(request.beam_width, len(self._pools))
        for window, (pool, geometry) in enumerate(zip(self._pools, self._geometries, strict=True)):
            lock = pool.lock(self._usable_hashes(request))
            sequence.locks.append(lock)
            shared = lock.num_committed
            self._references[window].update(self._usable_hashes(request)[:shared])
            self._grow(sequence, window, geometry, request.prompt_len)
        sequence.tokens = request.prompt_len
        request.context_current_position = request.prepopulated_prompt_len = shared * self.tokens_per_block
        return shared

    def store_context(self, request: EngineRequest) -> None:
        """Note that the prompt of `request` is computed, so that its full blocks can be shared."""
        hashes, sequence = self._usable_hashes(request), self._sequences[request.request_id]
        for window, (pool, lock) in enumerate(zip(self._pools, sequence.locks, strict=True)):
            fresh = hashes[lock.num_committed :]
            if fresh:
                pool.commit_blocks(lock, fresh)
                self._references[window].update(fresh)

    def add_token(self, request: EngineRequest) -> None:
        """Append a token to `request`. Raises ValueError if a block is needed and none is free."""
        sequence = self._sequences[request.request_id]
        sequence.tokens += 1
        for window, geometry in enumerate(self._geometries):
            self._grow(sequence, window, geometry, sequence.tokens)

    def remove_sequence(self, request: EngineRequest) -> None:
        """Give the blocks of `request` back, if it has any. What is cached in them stays cached until they are needed."""
        sequence = self._sequences.pop(request.request_id, None)
        if sequence is None:
            return
        for window, (pool, lock) in enumerate(zip(self._pools, sequence.locks, strict=True)):
            self._references[window].subtract(self._usable_hashes(request)[: lock.num_committed])
            pool.release(lock)

    def check(self) -> None:
        """Raise InvariantError if the blocks held and free are not all there are."""
        for window, pool in enumerate(self._pools):
            pool.check()
            if pool.free < 0 or any(count < 0 for count in self._references[window].values()):
                raise InvariantError("KV blocks: more are held than there are")

    @property
    def _is_single_window(self) -> bool:
        return len(self._pools) == 1

    def _need(self, request: EngineRequest) -> SequenceNeed:
        return _need(request)

    def _usable_hashes(self, request: EngineRequest) -> Sequence[int]:
        """Return the hashes of the blocks that may be shared: the last token is always computed."""
        if not (self.enable_block_reuse and self._is_single_window):
            return ()
        return request.block_hashes[: (request.prompt_len - 1) // self.tokens_per_block]

    def _grow(self, sequence: _CachedSequence, window: int, geometry: BlockGeometry, tokens: int) -> None:
        """Let `sequence` hold the blocks of `tokens` tokens in a window. Full blocks of the prompt are shared by the beams."""
        per_beam = geometry.blocks_for(min(tokens, geometry.window))
        lock, beams = sequence.locks[window], sequence.beam_width
        if per_beam <= sequence.blocks_per_beam[window]:
            return
        full = tokens // geometry.tokens_per_block if not sequence.tokens else 0
        opened = per_beam - sequence.blocks_per_beam[window] - lock.num_committed * (not sequence.tokens)
        alone = max(0, full - lock.num_committed)
        blocks = alone + (opened - alone) * beams
        self._pools[window].reserve(blocks)
        self._pools[window].assign(lock, blocks)
        sequence.blocks_per_beam[window] = per_beam


class CrossKvCacheManager(KvCacheManager):
    """The KV memory of cross attention in an encoder-decoder model: the output of the encoder, shared by the beams, which takes
    its blocks with the first chunk and does not grow."""

    def _need(self, request: EngineRequest) -> SequenceNeed:
        return SequenceNeed(request.encoder_output_len, 0)

    def blocks_to_completion(self, request: EngineRequest, match: ReusedPrefix) -> Sequence[int]:
        if request.context_current_position or request.is_generation_in_progress_state:
            return [0] * len(self._geometries)
        return [geometry.blocks_for(request.encoder_output_len) for geometry in self._geometries]

    def blocks_for_next_step(
        self, request: EngineRequest, match: ReusedPrefix, *, two_step_lookahead: bool = False
    ) -> Sequence[int]:
        return self.blocks_to_completion(request, match)

    def add_sequence(self, request: EngineRequest) -> int:
        sequence = self._sequences[request.request_id] = _CachedSequence(1, len(self._pools))
        for window, (pool, geometry) in enumerate(zip(self._pools, self._geometries, strict=True)):
            sequence.locks.append(pool.lock(()))
            self._grow(sequence, window, geometry, request.encoder_output_len)
        sequence.tokens = request.encoder_output_len
        return 0


class _CachedSequence:
    """The blocks of one request."""

    def __init__(self, beam_width: int, windows: int) -> None:
        self.beam_width = beam_width
        self.tokens = 0
        self.locks: list[RunLock] = []
        """The blocks of all beams, by window."""
        self.blocks_per_beam = [0] * windows


class _Releases(ReleaseSimulation):
    """Simulated releases: a shared block is free when its count has come down to 0."""

    def __init__(self, manager: KvCacheManager) -> None:
        self._manager = manager
        self._free = list(manager.free_blocks)
        self._released = [Counter[int]() for _ in self._free]

    @property
    def free_blocks(self) -> Sequence[int]:
        return self._free

    def release(self, request: EngineRequest) -> None:
        sequence = self._manager._sequences.get(request.request_id)
        if sequence is None:
            return
        hashes = self._manager._usable_hashes(request)
        for window, lock in enumerate(sequence.locks):
            held, released = self._manager._references[window], self._released[window]
            self._free[window] += lock.num_private
            for block_hash in hashes[: lock.num_committed]:
                released[block_hash] += 1
                self._free[window] += released[block_hash] == held[block_hash]


def _need(request: EngineRequest) -> SequenceNeed:
    return SequenceNeed(request.prompt_len, request.max_new_tokens, request.beam_width, request.num_draft_tokens)
