"""KvCacheView: KV memory as capacity schedulers look at it.

A capacity scheduler asks what a request needs and what is free, for each attention window apart, and never changes anything.
The releases that it considers happen in a `ReleaseSimulation`.

`get_max_resource_count` and `get_needed_resource_to_completion` are TensorRT-LLM's documented pair for schedulers that users
write. They count whole requests against the whole pool: a request that runs has the same need as before it began.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import msgspec

from maitred.batching.trtllm.llm_request import LlmRequest


class ReusedPrefix(msgspec.Struct, frozen=True, gc=False):
    """The cached prefix of the prompt of a request, by one walk through the cache. All counts are leading full blocks."""

    first_new_block: Hashable = None
    """The key of the first block of the prompt that is not cached, or None if all full ones are."""
    num_cached_blocks: int = 0
    """Those that are cached, whether in use or not."""
    num_referenced_blocks: int = 0
    """Of these, those that a request holds: the others count as free, so using one takes a free block."""


NO_MATCH: Final = ReusedPrefix()


class ReleaseSimulation(ABC):
    """The free blocks as they would be if some requests gave theirs back."""

    @property
    @abstractmethod
    def free_blocks(self) -> Sequence[int]:
        """Free blocks by window, after the releases so far."""

    @abstractmethod
    def release(self, request: LlmRequest) -> None:
        """Let `request` give its blocks back. A shared block is free when the last one that holds it is released."""


class KvCacheView(ABC):
    """The KV memory of one instance, as a capacity scheduler looks at it. Sequences of blocks have one number per window."""

    tokens_per_block: int
    enable_block_reuse: bool = False
    """Whether requests share the blocks of equal prefixes."""

    @property
    @abstractmethod
    def free_blocks(self) -> Sequence[int]:
        """Free blocks by window; cached blocks that no request holds are free."""

    @abstractmethod
    def blocks_to_completion(self, request: LlmRequest, match: ReusedPrefix) -> Sequence[int]:
        """Return the blocks that `request` will take until its answer is complete, beyond those that it has."""

    @abstractmethod
    def blocks_for_next_step(
        self, request: LlmRequest, match: ReusedPrefix, *, two_step_lookahead: bool = False
    ) -> Sequence[int]:
        """Return the blocks that the next step of `request` takes, or the next two."""

    @abstractmethod
    def match_prefix(self, request: LlmRequest) -> ReusedPrefix:
        """Return the cached prefix of the prompt of `request`."""

    @abstractmethod
    def start_scheduling(self) -> ReleaseSimulation:
        """Return a simulation in which nothing has been released yet."""

    @abstractmethod
    def get_max_resource_count(self) -> int:
        """Return the number of blocks that there are, free or not; of the smallest window if there are several."""

    @abstractmethod
    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        """Return the blocks of `request` when its answer is complete, those included that it has."""

    def blocks_to_complete_all(self, requests: Sequence[LlmRequest]) -> Sequence[int]:
        """Return the blocks that all `requests`, which generate, will take until their answers are complete."""
        return self._sum(self.blocks_to_completion(request, NO_MATCH) for request in requests)

    def blocks_for_next_step_of_all(self, requests: Sequence[LlmRequest], *, two_step_lookahead: bool) -> Sequence[int]:
        """Return the blocks that the next step of all `requests`, which generate, takes."""
        return self._sum(
            self.blocks_for_next_step(request, NO_MATCH, two_step_lookahead=two_step_lookahead) for request in requests
        )

    def _sum(self, needs: Iterable[Sequence[int]]) -> Sequence[int]:
        sums = [0] * len(self.free_blocks)
        for needed in needs:
            for window, blocks in enumerate(needed):
                sums[window] += blocks
        return sums
