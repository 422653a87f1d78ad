"""VllmKeys: the part of a configuration that has the names and meanings of vLLM's `SchedulerConfig` (0.32 and 0.33).

They are the rules of `batching/vllm/continuous.py`, and hold where an instance plans its steps by those. Where the two releases
differ, `vllm_release` says which one is followed:

    0.33    by priority, a request that is preempted for its own block no longer ends the step for those after it
    0.33    `prefill_schedule_interval` holds in an engine by itself; in 0.32 only among data-parallel engines

Two more differences need what an instance has not. A waiting request that gets no tokens, for want of room for its images, is
passed over (0.32 stopped there). The limit on LoRA adapters counts those of all running requests (0.32: those with tokens in
the step).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from maitred.core.contracts import QueuePolicy
from maitred.queueing import ClientPriorityOrder, QueueingConfig

_SWITCHES = (
    "scheduling_policy",
    "max_num_active_seqs",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "watermark",
    "prefill_schedule_interval",
    "vllm_release",
)


class VllmKeys(QueueingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules by which vLLM's scheduler fills a step."""

    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """`priority`: as vLLM with `--scheduling-policy priority`, the most urgent by the client's priority goes first, then the
    first to arrive, and the last of that order is preempted when KV blocks run out. `fcfs`: by `scheduler` and
    `preemption_policy`."""
    max_num_seqs: int = 256
    """Most sequences in the running batch."""
    max_num_active_seqs: int | None = None
    """Most sequences that are admitted to the running batch: at most `max_num_seqs`, for which the engine has its buffers.
    Null: as many."""
    max_num_batched_tokens: int = 2048
    """Token budget of one step."""
    long_prefill_token_threshold: int = 0
    """Largest chunk of one prompt in one step while other requests are here, in tokens; 0: no limit but
    `max_num_batched_tokens`."""
    long_prefill_token_threshold_adaptive: bool = False
    """Let a chunk have an equal share of `max_num_batched_tokens` among all requests that run or wait, where that is more than
    `long_prefill_token_threshold`."""
    enable_chunked_prefill: bool = True
    """Compute a prompt in several steps if the token budget does not hold it. Otherwise it waits until the budget does, and
    prompt and output together are at most `max_num_batched_tokens`."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only when its whole prompt fits into the free KV blocks, and not as soon as its first chunk does."""
    watermark: float = 0.0
    """Share of all KV blocks that stays free when a request is admitted beside others, so that those that run need not be
    preempted soon; from 0 to below 1."""
    prefill_schedule_interval: int = 1
    """Steps from one that computes prompts to the next while other requests decode; 1: every step may. All steps may while one
    in as many leaves requests waiting. For `vllm_release: "0.33"`."""
    vllm_release: Literal["0.32", "0.33"] = "0.32"
    """The release of vLLM whose rules are followed where they differ."""
    max_num_queued_reqs: int | None = None
    """Most requests that wait and run in one instance. One more is rejected. Null: no limit."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of requests without their first token from which further requests are rejected. Null: no limit."""

    def policy(self) -> QueuePolicy:
        policy = super().policy()
        return ClientPriorityOrder() if self.scheduling_policy == "priority" else policy

    def _check_vllm_keys(self, max_model_len: int | None) -> None:
        """Raise ValueError for a value out of range, and for keys that contradict each other."""
        for name in ("long_prefill_token_threshold", "max_num_queued_reqs", "max_num_queued_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")
        if self.prefill_schedule_interval < 1:
            raise ValueError(f"prefill_schedule_interval must be at least 1, not {self.prefill_schedule_interval}")
        active = self.max_num_active_seqs
        if active is not None and not 1 <= active <= self.max_num_seqs:
            raise ValueError(f"max_num_active_seqs must be from 1 to max_num_seqs {self.max_num_seqs}, not {active}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be from 0 to below 1, not {self.watermark}")
        if not self.enable_chunked_prefill and max_model_len is not None and self.max_num_batched_tokens < max_model_len:
            budget = f"max_num_batched_tokens {self.max_num_batched_tokens}"
            raise ValueError(f"{budget} must be at least max_model_len {max_model_len} without enable_chunked_prefill")
        if self.scheduling_policy == "priority" and (self.scheduler != "fcfs" or self.enable_priority_scheduling):
            other = "enable_priority_scheduling" if self.enable_priority_scheduling else f"scheduler {self.scheduler}"
            raise ValueError(f"scheduling_policy priority is an order of its own: leave out one of it and {other}")

    def _changed_switches(self) -> list[str]:
        """Return the keys of vLLM's rules that are not at their defaults."""
        fields = dict(zip(VllmKeys.__struct_fields__, VllmKeys.__struct_defaults__, strict=True))
        return [name for name in _SWITCHES if getattr(self, name) != fields[name]]

    def _vllm_warnings(self) -> Iterator[str]:
        if self.prefill_schedule_interval > 1 and self.vllm_release == "0.32":
            yield 'prefill_schedule_interval has no effect in an engine by itself with vllm_release "0.32", but with "0.33"'
        if self.long_prefill_token_threshold_adaptive and not self.long_prefill_token_threshold:
            yield "long_prefill_token_threshold_adaptive has no effect without long_prefill_token_threshold"
        if self.scheduling_policy == "priority" and not self.scheduler_reserve_full_isl:
            risk = "long prompts may preempt each other for ever, as in vLLM"
            yield f"scheduling_policy priority without scheduler_reserve_full_isl: {risk}"
