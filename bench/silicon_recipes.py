"""How the engines behind the measured pairs of bench/silicon.py were started, where that changes who is served when.

InferenceX publishes the commands (github.com/SemiAnalysisAI/InferenceX: `MODEL_PRECISION_GPU[_ENGINE].sh` in
`benchmarks/single_node` and, before 2026, in `benchmarks`). Where none is published, as for the pairs of AIConfigurator's own
gap analysis, an engine has its defaults. Nothing here was chosen by the measured times, but that as many requests run as there
are clients: the limit of the commands was raised from version to version, and with a lower one all else is queueing.

    SGLang         --scheduler-recv-interval, --chunked-prefill-size with --max-prefill-tokens
    TensorRT-LLM   batch_wait_max_tokens_ratio, batch_wait_timeout_iters, --max_num_tokens
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maitred.instance.sglang_config import SGLangConfig


@dataclass(frozen=True)
class Setup:
    """What is known of the run behind a pair."""

    engine: str
    model: str
    system: str
    precision: str
    """`fp8`, `fp4` or `bf16`."""
    tensor_parallel_size: int
    ranks: int
    users: int
    prompt: int
    output: int


def published_keys(setup: Setup) -> dict[str, Any]:
    """Return the keys of an instance that the published command states; none where there is no command."""
    if setup.ranks > 1:
        return {}  # SGLang polls each step with attention data parallelism; TensorRT-LLM does not wait
    return _sglang(setup) if setup.engine == "sglang" else _trtllm(setup) if setup.engine == "trtllm" else {}


def _sglang(setup: Setup) -> dict[str, Any]:
    by_users = 30 if setup.users >= 16 else 10
    blackwell = setup.system.startswith("b")
    if "DeepSeek" in setup.model and setup.precision == "fp8":
        # dsr1_fp8_b200.sh, dsr1_fp8_b300.sh; dsr1_fp8_h200.sh
        if blackwell and setup.tensor_parallel_size == 4:
            return _recipe(10, 8192)
        return _recipe(by_users if blackwell else 1, 32768)
    if "DeepSeek" in setup.model:
        return _recipe(by_users, 16384)  # dsr1_fp4_b200.sh, dsr1_fp4_b300.sh
    if "Qwen3.5" in setup.model:
        if setup.system == "h200_sxm":
            return _recipe(1, 16384)  # qwen3.5_fp8_h200.sh
        if setup.precision == "fp8" and setup.system == "b300_sxm":
            return _recipe(10, 16384)  # qwen3.5_fp8_b300.sh
        if setup.precision == "fp4" and setup.system == "b200_sxm":
            return _recipe(30, 32768)  # qwen3.5_fp4_b200.sh
        return _recipe(by_users, 32768)  # qwen3.5_fp8_b200.sh, qwen3.5_bf16_b200.sh, ..._b300.sh, qwen3.5_fp4_b300.sh
    if "GLM-5" in setup.model:
        return _recipe(1, 32768)  # glm5_fp8_b200.sh
    return {}


def _recipe(interval: int, chunk: int) -> dict[str, Any]:
    options = SGLangConfig(scheduler_recv_interval=interval, max_prefill_tokens=chunk, ignore_eos=True)
    return {"sglang": options, "max_num_batched_tokens": chunk}


def _trtllm(setup: Setup) -> dict[str, Any]:
    short = setup.prompt == setup.output == 1024
    longest = setup.prompt + setup.output + 200  # MAX_MODEL_LEN
    if "3.1-70B" in setup.model:
        # 70b_fp8_b200_trt_slurm.sh; 70b_fp4_b200_trt_slurm.sh, 70b_fp8_h200_trt_slurm.sh
        tokens = 16384 if (setup.precision, setup.system) == ("fp8", "b200_sxm") else longest
        waits = {"batching": "batch-waiting(0.9, 20)"} if short and setup.tensor_parallel_size < 8 else {}
        return {"max_num_batched_tokens": tokens, **waits}
    if "DeepSeek" in setup.model:
        # dsr1_fp8_b200_trt.sh; dsr1_fp8_h200_trt.sh, dsr1_fp4_b200_trt.sh
        tokens = max(8192, -(-(setup.users + setup.prompt + 64) // 64) * 64)
        delays = short and 64 <= setup.users < 256 and (setup.precision, setup.system) == ("fp8", "b200_sxm")
        return {"max_num_batched_tokens": tokens, **({"batching": "batch-waiting(0.8, 40)"} if delays else {})}
    return {}
