"""A batch scheduler: no request begins unless its blocks to completion are free.

It is written against the interface that TensorRT-LLM documents for its PyTorch runtime, and only the imports are maitred's.
There they are

    from tensorrt_llm._torch.pyexecutor.llm_request import LlmRequestState
    from tensorrt_llm._torch.pyexecutor.scheduler import CapacityScheduler, RequestList

To try it, in this folder:

    maitred simulate --num-requests 60 --rate 20 --prompt-tokens 400 --output-tokens 200 --max-model-len 800 \\
        --total-kv-blocks 300 --batching batch_scheduler:GuaranteedNoEvictScheduler
"""

from maitred.batching import CapacityScheduler, KvCacheView, LlmRequestState, RequestList


class GuaranteedNoEvictScheduler(CapacityScheduler):
    """Reserve the whole memory of a request before it begins, so that none is ever evicted."""

    no_schedule_until_state = LlmRequestState.CONTEXT_INIT
    no_schedule_after_state = LlmRequestState.GENERATION_COMPLETE

    def __init__(self, max_num_requests: int, kv_cache_manager: KvCacheView):
        super().__init__()
        self.max_num_requests = max_num_requests
        self.kv_cache_manager = kv_cache_manager

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList]:
        running = {LlmRequestState.GENERATION_IN_PROGRESS, LlmRequestState.GENERATION_TO_COMPLETE}
        scheduled, pending = [], []
        free = self.kv_cache_manager.get_max_resource_count()
        for request in active_requests:
            state = request.state
            if not self.no_schedule_until_state.value <= state.value < self.no_schedule_after_state.value:
                continue
            # A prompt that is half computed holds its memory, too.
            if state in running or not request.is_first_context_chunk:
                scheduled.append(request)
                free -= self.kv_cache_manager.get_needed_resource_to_completion(request)
            else:
                pending.append(request)
        for request in pending:
            needed = self.kv_cache_manager.get_needed_resource_to_completion(request)
            if len(scheduled) >= self.max_num_requests or needed > free:
                break
            scheduled.append(request)
            free -= needed
        assert scheduled, "no request gets its resources to completion: increase the KV cache pool size"
        return scheduled, []
