"""What a capacity scheduler counts in one pass: blocks, adapter pages, and the prefix blocks that are about to be computed.

Blocks are counted by attention window, and a request fits only if it fits in all of them. Adapter pages (LoRA) are charged once
per adapter.

**Promised blocks.** A request that begins promises the first block of its prompt that is not cached, and a later one with the
same first new block waits:

    prompts  A B C D   and   A B X    with A B cached: the first new blocks are C and X, both begin
    prompts  A B C D   and   A B C Y  with A B cached: both have C first, the second one waits until C is cached
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from maitred.batching.trtllm.kv_cache_view import NO_MATCH, KvCacheView, ReleaseSimulation, ReusedPrefix
from maitred.batching.trtllm.llm_request import LlmRequest


class PeftCacheView(Protocol):
    """The device memory for adapters, in pages."""

    @property
    def max_device_pages(self) -> int: ...

    def determine_num_pages(self, request: LlmRequest) -> int:
        """Return the pages of the adapter of `request`."""
        ...


class AdapterPages:
    """The adapter pages that the requests scheduled so far in a pass need. Without a cache of adapters they cost nothing."""

    def __init__(self, peft_cache: PeftCacheView | None) -> None:
        self._peft_cache = peft_cache
        self._adapters: set[int] = set()
        self._pages = 0

    def needed(self, request: LlmRequest) -> int:
        """Return the pages that `request` adds."""
        adapter = request.lora_task_id
        if self._peft_cache is None or adapter is None or adapter in self._adapters:
            return 0  # an adapter has its pages once, however many requests use it
        return self._peft_cache.determine_num_pages(request)

    def fits(self, request: LlmRequest) -> bool:
        """Return whether the pages of `request` fit beside those claimed so far."""
        pages = self.needed(request)
        return not pages or self._peft_cache is None or self._pages + pages <= self._peft_cache.max_device_pages

    def claim(self, request: LlmRequest) -> None:
        """Charge the adapter of `request`, unless it is charged already."""
        if request.lora_task_id is not None:
            self._pages += self.needed(request)
            self._adapters.add(request.lora_task_id)


class FreeBlocks:
    """The blocks that remain free if every scheduled request runs to its completion: less than 0 perhaps, by what runs."""

    def __init__(self, kv_cache: KvCacheView) -> None:
        self._kv_cache = kv_cache
        self._free = list(kv_cache.free_blocks)

    def reserve_running(self, requests: Sequence[LlmRequest]) -> None:
        """Subtract what the generating `requests` will still take."""
        self._subtract(self._kv_cache.blocks_to_complete_all(requests))

    def try_reserve(self, request: LlmRequest, match: ReusedPrefix) -> Sequence[int] | None:
        """Return the blocks of `request` by window, or None if it does not fit in all of them."""
        needed = self._kv_cache.blocks_to_completion(request, match)
        return needed if all(map(int.__le__, needed, self._free)) else None

    def reserve(self, needed: Sequence[int]) -> None:
        """Subtract the blocks that `try_reserve` has returned."""
        self._subtract(needed)

    def _subtract(self, needed: Sequence[int]) -> None:
        self._free = [free - blocks for free, blocks in zip(self._free, needed, strict=True)]


class StepBlocks:
    """The blocks that the next step of the scheduled requests takes, against what is free after the simulated releases."""

    def __init__(self, kv_cache: KvCacheView, *, two_step_lookahead: bool) -> None:
        self._kv_cache = kv_cache
        self._two_step_lookahead = two_step_lookahead
        self._releases: ReleaseSimulation = kv_cache.start_scheduling()
        self._taken = [0] * len(kv_cache.free_blocks)

    def try_take(self, request: LlmRequest, match: ReusedPrefix) -> list[int] | None:
        """Return the blocks taken by window with those of `request`, or None if it does not fit in all of them."""
        needed = self._kv_cache.blocks_for_next_step(request, match, two_step_lookahead=self._two_step_lookahead)
        taken = [before + blocks for before, blocks in zip(self._taken, needed, strict=True)]
        return taken if all(map(int.__le__, taken, self._releases.free_blocks)) else None

    def try_take_all(self, requests: Sequence[LlmRequest]) -> list[int] | None:
        """Return the blocks taken by window with those of all `requests`, which generate, or None if they do not all fit."""
        needed = self._kv_cache.blocks_for_next_step_of_all(requests, two_step_lookahead=self._two_step_lookahead)
        taken = [before + blocks for before, blocks in zip(self._taken, needed, strict=True)]
        return taken if all(map(int.__le__, taken, self._releases.free_blocks)) else None

    def take(self, taken: list[int]) -> None:
        """Take the blocks that `try_take` has returned."""
        self._taken = taken

    def release(self, request: LlmRequest) -> None:
        """Let `request` give its blocks back."""
        self._releases.release(request)


class PromisedBlocks:
    """The first new blocks of the requests that compute their prompt in a pass, in each of some caches."""

    def __init__(self, kv_caches: Sequence[KvCacheView]) -> None:
        self._promised = [(kv_cache, set[Hashable]()) for kv_cache in kv_caches]
        self._own: dict[int, list[ReusedPrefix]] = {}
        """What has been found for a request, which is looked up once in a pass."""

    def match(self, request: LlmRequest) -> ReusedPrefix:
        """Return the cached prefix of the prompt of `request` in the first of the caches."""
        return self._matches(request)[0] if self._promised else NO_MATCH

    def promise(self, request: LlmRequest) -> None:
        """Promise the first new block of `request` in each cache."""
        # Two requests that begin in one step would both compute what they have in common. The second one is better delayed
        # until the first one's blocks are in the cache.
        for (_, promised), match in zip(self._promised, self._matches(request), strict=True):
            if match.first_new_block is not None:
                promised.add(match.first_new_block)

    def is_promised(self, request: LlmRequest) -> bool:
        """Return whether a request of this pass computes the first new block of `request` in one of the caches."""
        matches = self._matches(request)
        return any(match.first_new_block in promised for (_, promised), match in zip(self._promised, matches, strict=True))

    def _matches(self, request: LlmRequest) -> list[ReusedPrefix]:
        found = self._own.get(request.request_id)
        if found is None:
            found = self._own[request.request_id] = [kv_cache.match_prefix(request) for kv_cache, _ in self._promised]
        return found
