"""TensorRT-LLM's own rules (PyTorch backend, 2025-06 to 2026-09), where ours differ or where no other system has the mechanism.

    strict.py          MaxUtilization tie for tie, with the pause that serves no request; superseded rules of chunk sizes
    waiting_queue.py   the queue in front of the active requests: first come, first served, or by priority
    attention_dp.py    requests spread over the ranks of attention data parallelism; prompts held back for the others
    batch_waiting.py   prompts held back until a step is worth it
    interleaved.py     the scheduler of the second KV-cache manager, which allocates while it schedules

The interfaces and policies that stand for themselves are in `maitred.batching`.
"""
