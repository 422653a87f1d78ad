"""TensorRT-LLM's MaxUtilization tie for tie, where ours differs.

A new request that does not fit pauses a victim and is tried again. With reuse it then finds its own promise of its first new
block, and waits for itself: the victim was paused for nothing, and the step may be empty.

The interfaces and policies that stand for themselves are in `maitred.batching`.
"""

from __future__ import annotations

from typing import ClassVar

from maitred.batching import BATCH_SCHEDULERS, MaxUtilization


@BATCH_SCHEDULERS.register("trtllm-max-utilization")
class StrictMaxUtilization(MaxUtilization):
    """As max-utilization, but a request that has made another one pause may wait for its own first block."""

    skips_own_promise: ClassVar[bool] = True
