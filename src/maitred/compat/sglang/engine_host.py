"""EngineHost: the wait queue and the KV blocks of an instance, as SGLang's passes and retractions use them.

A pass counts tokens and takes no blocks: the blocks of its batch are reserved after it. What it finds in the prefix cache it
locks at once, so that nothing of it is evicted or counted as free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

from maitred.compat.sglang.new_token_ratio import NewTokenRatio
from maitred.compat.sglang.prefill_adder import PrefillAdder
from maitred.compat.sglang.prefill_delayer import PrefillDelayer, RankReport
from maitred.compat.sglang.prefill_pass import PrefillHost
from maitred.compat.sglang.prefill_request import PrefillRequest
from maitred.compat.sglang.rules import SGLangRules
from maitred.compat.sglang.wait_queue import SGLangQueue
from maitred.core.contracts import StepView, WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv import NO_HIT, BlockManager, PrefixBlockManager, PrefixHit

_LAST_PASSES = 16
"""Passes of which the delayer knows how many requests they took."""


class SGLangRequest(PrefillRequest):
    """A request of the instance, from when it is first tried."""

    def __init__(self, seq: SequenceState, rules: SGLangRules, queued_at: Micros) -> None:
        request = seq.request
        most = rules.max_model_len - request.prompt_tokens
        if request.max_output_tokens is not None:
            most = min(most, request.max_output_tokens)
        super().__init__(
            request.prompt_tokens,
            most,
            seq.num_output_tokens,
            -rules.sign * request.priority,
            queued_at,
            ignores_eos=rules.options.ignore_eos,
        )
        self.seq = seq


class DecodingRequests(Sequence[SGLangRequest]):
    """The requests that decode, as they are when a pass begins. They are listed only if it looks at them one by one."""

    def __init__(self, count: int, tokens_left: int, list_requests: Callable[[], list[SGLangRequest]]) -> None:
        """There are `count` of them, which may generate `tokens_left` tokens yet. `list_requests` is called at most once."""
        self.tokens_left = tokens_left
        self._count = count
        self._list_requests = list_requests
        self._requests: list[SGLangRequest] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> SGLangRequest: ...

    @overload
    def __getitem__(self, index: slice) -> list[SGLangRequest]: ...

    def __getitem__(self, index: int | slice) -> SGLangRequest | list[SGLangRequest]:
        if self._requests is None:
            self._requests = self._list_requests()
        return self._requests[index]


class EngineHost(PrefillHost):
    """One instance."""

    def __init__(self, rules: SGLangRules, blocks: BlockManager, release: Callable[[SequenceState], None]) -> None:
        """`release` lets a sequence leave the batch, and publishes nothing of it."""
        self._rules = rules
        self._blocks = blocks
        self._prefix_blocks = blocks if isinstance(blocks, PrefixBlockManager) else None
        self._release = release
        self._requests: dict[RequestId, SGLangRequest] = {}
        self._hit: PrefixHit = NO_HIT
        """What the cache holds of the request that is being tried."""
        self._is_locked = False
        self.num_loaded = 0
        """Blocks that the pass loads from the memory of the host."""
        options = rules.options
        self.new_token_ratio = NewTokenRatio(
            options.schedule_conservativeness,
            options.init_new_token_ratio,
            options.min_new_token_ratio_factor,
            options.new_token_ratio_decay_steps,
        )
        self._delayer = None if rules.delay is None else PrefillDelayer(rules.delay)
        self._last_batches = [0] * _LAST_PASSES

    def begin_pass(self, waiting: WaitQueue | None, step: StepView, num_running: int, num_prefilling: int, now: Micros) -> None:
        """Begin the pass of the step that begins at `now`."""
        self._waiting, self._step, self._now = waiting, step, now
        self._num_running, self._num_prefilling = num_running, num_prefilling
        self._verdict: bool | None = None
        self.num_loaded = 0

    def end_pass(self, num_admitted: int) -> None:
        """End the pass, which has taken `num_admitted` requests."""
        if self._delayer is None:
            return
        if self._verdict is None:
            self._negotiate(is_prefillable=False)
        attempted = num_admitted
        if self._verdict is False and not num_admitted:
            attempted = min(self.num_waiting(), self.num_free_slots())
        if attempted:
            self._last_batches = [*self._last_batches[1:], attempted]

    def request_of(self, seq: SequenceState) -> SGLangRequest:
        """Return the request of `seq`."""
        request = self._requests.get(seq.request.id)
        if request is None:
            at = seq.request.arrival if seq.queued_at is None else seq.queued_at
            request = self._requests[seq.request.id] = SGLangRequest(seq, self._rules, at)
        return request

    def requeue(self, request: SGLangRequest, now: Micros) -> None:
        """Note that `request` was preempted at `now`: it has a new place in the queue, and its tokens."""
        request.queued_at, request.cached_tokens, request.host_tokens = now, 0, 0
        request.output_tokens = request.seq.num_output_tokens

    def forget(self, seq: SequenceState) -> None:
        """Drop what is known of `seq`."""
        self._requests.pop(seq.request.id, None)

    def available_tokens(self) -> int:
        free = self._blocks.free - (self._hit.num_unreferenced if self._is_locked else 0)
        return free * self._blocks.block_size

    def lock(self, request: PrefillRequest) -> None:
        self._is_locked = True

    def unlock(self, request: PrefillRequest) -> None:
        self._is_locked = False

    def allows_prefill(self) -> bool:
        if self._delayer is None:
            return True
        if self._verdict is None:
            self._negotiate(is_prefillable=True)
        return self._verdict is not False

    def num_waiting(self) -> int:
        return 0 if self._waiting is None else len(self._waiting)

    def num_free_slots(self) -> int:
        return self._rules.passes.max_num_running - self._num_running - self._num_prefilling

    def sort_queue(self) -> None:
        if self._waiting is not None:
            if self._prefix_blocks is not None:
                self._prefix_blocks.apply_evictions()
            self._waiting.on_step_start(self._step, self._now)

    def head(self) -> PrefillRequest | None:
        seq = None if self._waiting is None else self._waiting.peek()
        return None if seq is None else self.request_of(seq)

    def take_head(self) -> None:
        assert self._waiting is not None
        seq = self._waiting.pop()
        if self._prefix_blocks is not None:
            self._prefix_blocks.admit(seq, self._hit)
            if self._hit.num_in_host:
                request = self.request_of(seq)
                request.cached_tokens, request.host_tokens = request.cached_tokens + request.host_tokens, 0
                self.num_loaded += self._hit.num_in_host
        self._is_locked = False

    def match(self, request: PrefillRequest) -> None:
        assert isinstance(request, SGLangRequest)
        seq = request.seq
        self._hit = NO_HIT if self._prefix_blocks is None else self._prefix_blocks.find_cached(seq)
        request.fill_tokens = seq.num_tokens_to_prefill
        request.cached_tokens = self._hit.num_blocks * self._blocks.block_size
        request.host_tokens = self._hit.num_in_host * self._blocks.block_size

    def uncached_work(self) -> Iterable[int]:
        return self._waiting.uncached_work() if isinstance(self._waiting, SGLangQueue) else ()

    def release(self, request: PrefillRequest) -> None:
        assert isinstance(request, SGLangRequest)
        self._release(request.seq)

    def evict_until_free(self, tokens: int) -> None:
        if self._prefix_blocks is not None:
            cache = self._prefix_blocks.cache
            missing = self._blocks.blocks_for(tokens) - cache.free_uncached
            if missing > 0:
                cache.evict(missing)

    def make_adder(self, running: Sequence[PrefillRequest], num_mixed: int) -> PrefillAdder:
        has_cache = self._prefix_blocks is not None
        limits, ratio = self._rules.passes.limits, self.new_token_ratio.value
        expected: float | None = None
        if isinstance(running, DecodingRequests):
            expected = running.tokens_left * (1.0 if self._rules.options.ignore_eos else ratio)
        return PrefillAdder(limits, self, running, ratio, num_mixed, expected, has_cache=has_cache)

    def _is_below(self, watermark: float | None) -> bool:
        """Return whether less than the share `watermark` of the memory is used."""
        return watermark is not None and 1 - self._blocks.free / self._blocks.total < watermark

    def _negotiate(self, *, is_prefillable: bool) -> None:
        delayer, rules = self._delayer, self._rules
        assert delayer is not None
        assert rules.delay is not None
        state = RankReport(
            is_prefillable,
            is_prefillable and self._is_below(rules.delay.low_watermark),
            self._num_running,
            max(self._last_batches),
            self.num_waiting(),
            delayer.is_overdue(self._now),
        )
        self._verdict = delayer.negotiate([state], rules.passes.max_num_running, self._now).allows_prefill
