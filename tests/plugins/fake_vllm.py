"""vLLM as far as the scheduler class touches it, in a few lines: requests, a block pool, and a scheduler's loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.plugins.vllm.block_pool_view import BlockPoolView
from maitred.plugins.vllm.engine_request import VllmRequest, describe_request
from maitred.plugins.vllm.policy_queue import PolicyQueue, VllmState

HASH_BYTES = 32


class FakeStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    COMPLETE = auto()
    ABORTED = auto()


class FakeParams:
    """vLLM's `SamplingParams`."""

    def __init__(self, extra_args: dict[str, Any] | None = None) -> None:
        self.extra_args = extra_args


class FakeRequest(VllmRequest):
    """vLLM's `Request`. `blocks` is one letter for each full block of the prompt."""

    def __init__(self, name: str, prompt_tokens: int = 10, max_tokens: int = 1, *, blocks: str = "", **fields: Any) -> None:
        self.request_id = name
        self.status = FakeStatus.WAITING
        self.num_prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.priority = fields.pop("priority", 0)
        self.lora_request = fields.pop("lora_request", None)
        self.trace_headers = fields.pop("trace_headers", None)
        self.session_id = fields.pop("session_id", None)
        self.cache_salt = fields.pop("cache_salt", None)
        self.skip_reading_prefix_cache = fields.pop("skip_reading_prefix_cache", False)
        self.sampling_params = FakeParams(fields or None)
        self.block_hashes = [block_key(blocks[: i + 1]) for i in range(len(blocks))]
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.output_tokens = 0
        self.is_prefill_chunk = False
        self.num_stale_output_tokens = 0
        self.drop_stale_output = False

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.output_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.output_tokens


def block_key(prefix: str) -> bytes:
    """Return the hash of the block that ends `prefix`."""
    return prefix.encode().ljust(HASH_BYTES, b"\0")


class FakeBlock:
    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.block_hash: bytes | None = None


class FakeBlockMap:
    """vLLM's `BlockHashToBlockMap`."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, dict[int, FakeBlock]] = {}

    def get_one_block(self, key: bytes) -> FakeBlock | None:
        return next(iter(self._blocks.get(key, {}).values()), None)

    def contain(self, key: bytes, block_id: int) -> bool:
        return block_id in self._blocks.get(key, {})

    def insert(self, key: bytes, block: FakeBlock) -> None:
        self._blocks.setdefault(key, {})[block.block_id] = block

    def pop(self, key: bytes, block_id: int) -> FakeBlock | None:
        return self._blocks.get(key, {}).pop(block_id, None)

    def __len__(self) -> int:
        return sum(map(bool, self._blocks.values()))


class FakeBlockPool:
    """vLLM's `BlockPool`, with KV cache group 0."""

    def __init__(self, num_blocks: int = 100, hash_block_size: int = 16) -> None:
        self.hash_block_size = hash_block_size
        self.blocks = [FakeBlock(i) for i in range(num_blocks)]
        self.cached_block_hash_to_block: Any = FakeBlockMap()

    def get_num_free_blocks(self) -> int:
        return len(self.blocks)

    def store(self, prefix: str, block_id: int, group_id: int = 0) -> None:
        """Let the block `block_id` hold the block that ends `prefix`."""
        key = block_key(prefix) + group_id.to_bytes(4)
        self.blocks[block_id].block_hash = key
        self.cached_block_hash_to_block.insert(key, self.blocks[block_id])

    def evict(self, block_id: int) -> None:
        """Let the block forget what it holds."""
        block = self.blocks[block_id]
        assert block.block_hash is not None
        self.cached_block_hash_to_block.pop(block.block_hash, block_id)
        block.block_hash = None

    def reset(self) -> None:
        self.cached_block_hash_to_block = FakeBlockMap()
        for block in self.blocks:
            block.block_hash = None


class FakeEngine(VllmState):
    """What the queue asks of the engine: a clock that stands still unless a test moves it, and the running requests."""

    def __init__(self, pool: FakeBlockPool | None = None, view: BlockPoolView | None = None) -> None:
        self.time: Micros = 0
        self.running: list[FakeRequest] = []
        self.pool = pool or FakeBlockPool()
        self.view = view

    def now(self) -> Micros:
        return self.time

    def free_blocks(self) -> int:
        return self.pool.get_num_free_blocks()

    def on_head_shown(self) -> None:
        if self.view is not None:
            self.view.on_head_shown()

    def on_head_settled(self) -> None:
        if self.view is not None:
            self.view.on_head_settled()

    def running_requests(self) -> Sequence[VllmRequest]:
        return self.running

    def describe(self, request: VllmRequest, request_id: RequestId, arrival: Micros) -> Request:
        return describe_request(request, request_id, arrival, None if self.view is None else self.pool.hash_block_size)

    def is_complete(self, request: VllmRequest) -> bool:
        return request.status is FakeStatus.COMPLETE


class FakeScheduler:
    """vLLM's loop over a `RequestQueue`: running requests first, then the head of the queue, one after the other.

    A request runs its whole prompt, and a token per step then. Those in `blocked` are popped and put back, as vLLM does while a
    grammar is compiled. There is no memory: `preempt` takes the last running request.
    """

    def __init__(self, queue: PolicyQueue, engine: FakeEngine, max_num_seqs: int = 2) -> None:
        self.queue, self.engine, self.max_num_seqs = queue, engine, max_num_seqs
        self.blocked: set[str] = set()
        self.admitted: list[str] = []
        self.finished: list[str] = []

    def step(self) -> Mapping[str, int]:
        """Make one step. Returns the tokens of each request."""
        queue, running, skipped = self.queue, self.engine.running, []
        queue.begin_step()
        scheduled = {request.request_id: 1 for request in running}
        while queue and len(running) < self.max_num_seqs:
            request = queue.peek_request()
            assert queue.pop_request() is request
            assert isinstance(request, FakeRequest)
            if request.request_id in self.blocked:
                skipped.insert(0, request)
                continue
            request.status = FakeStatus.RUNNING
            running.append(request)
            self.admitted.append(request.request_id)
            scheduled[request.request_id] = request.num_tokens
        queue.prepend_requests(skipped)
        for request in running:
            request.num_computed_tokens += scheduled[request.request_id]
        queue.end_step(scheduled)
        queue.report_chunks()
        self._complete()
        return scheduled

    def preempt(self) -> None:
        """Take the last running request out of the batch."""
        request = self.engine.running.pop()
        request.status = FakeStatus.WAITING
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.queue.prepend_request(request)

    def abort(self, request: FakeRequest) -> None:
        """End a request before its answer is complete."""
        self.queue.remove_requests([request])
        self.engine.running = [other for other in self.engine.running if other is not request]
        request.status = FakeStatus.ABORTED
        self.queue.on_end([request.request_id])

    def _complete(self) -> None:
        for request in self.engine.running:
            request.output_tokens += 1
            if request.output_tokens == request.max_tokens:
                request.status = FakeStatus.COMPLETE
        ended = [request for request in self.engine.running if request.status is FakeStatus.COMPLETE]
        self.engine.running = [request for request in self.engine.running if request not in ended]
        self.finished += [request.request_id for request in ended]
        self.queue.on_end([request.request_id for request in ended])
