"""A batch scheduler: preemptive SRPT, the requests with the fewest tokens left run and the others stand still with their KV.

`max_num_seqs` requests have KV memory, `max_running` of them run in each step. One that stands still loses nothing, so a short
request may go before a long one at any step. What is left is what the client allows (`max_output_tokens`), as a server knows no
more; without it requests are served in their order. Long answers starve under load.

To try it, in this folder:

    maitred simulate --num-requests 60 --rate 20 --prompt-tokens 400 --output-tokens 200 --max-num-seqs 64 \\
        --max-model-len 800 --batching "shortest_remaining:ShortestRemaining(max_running=8)"
"""

from collections.abc import Set

from maitred.batching import ContextChunkingConfig, LlmRequest, MicroBatchResult, RequestList, TokenBudgetScheduler


class ShortestRemaining(TokenBudgetScheduler):
    """The requests with the fewest tokens left, prompt and answer, run in each step."""

    def __init__(
        self,
        max_batch_size: int,
        max_num_tokens: int | None = None,
        ctx_chunk_config: ContextChunkingConfig | None = None,
        max_context_length: int | None = None,
        max_running: int = 16,
    ):
        super().__init__(min(max_batch_size, max_running), max_num_tokens, ctx_chunk_config, max_context_length)

    def schedule(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> MicroBatchResult:
        return super().schedule(sorted(active_requests, key=_tokens_left), inflight_request_ids)


def _tokens_left(request: LlmRequest) -> int:
    return request.context_remaining_length + request.max_new_tokens - request.num_generated_tokens
