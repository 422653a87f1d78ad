"""The latency model `aiconfigurator`: step times made of measured kernels, of the package `aiconfigurator-core` (NVIDIA).

The package holds times of matrix products, attention, experts and all-reduces, measured on real GPUs under real engines, and
adds them up for a step of a given shape. Asking it needs its database in memory, so the catalogue asks once for each deployment
(`catalogue/silicon.py`) and keeps a `SiliconTable`. A step of one rank is

    N sequences of c tokens of KV decode, alone      decode(N, c)
    with prompts: k chunks of t tokens after s       shared(k·t + N) + prompts(k, t, s) + beside(N, c)

`prompts` and `beside` are attention, and `shared` is all the rest. Unequal chunks count as k equal ones that attend to as many
pairs of tokens: t is the mean of their tokens, and s = Σ t·(start + t/2) / Σ t - mean/2, which is never below 0. Between the
points of a grid times are linear, so a run of decode-only steps is summed exactly (`affine`); after the last point they go
straight on. The catalogue places the points so that no step is far from what the package itself says.

Ranks of data parallelism share the sequences evenly, and each chunk goes to the rank with the fewest tokens; the slowest rank
counts. Stages of a pipeline work on different batches at the same time, so an instance with PP stages behaves as PP ranks do:
in the time in which one batch passes all stages, each of PP batches does.

Kernels are not all that an engine spends. `step_overhead` is added to every step, however many ranks there are,
`sequence_overhead` for each sequence of the slowest rank, and `alpha` is what a request pays around the engine, as in `linear`;
the catalogue fills in what was fitted for the engine.

Example, on one GPU: `shared` has the points (0, 5000) and (1000, 20000), `prompts` says 900 µs for one chunk of 500 tokens
after none, and `beside` says 250 µs for 10 sequences of 1,000 tokens. A step with all of them takes 5,000 + 510·15 + 900 + 250
= 13,800 µs.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import Literal

from maitred.core.contracts import BatchShape, LatencyModel, Overheads
from maitred.core.errors import ConfigError
from maitred.instance.latency.affine import Envelope, PiecewiseAffineModel
from maitred.instance.latency.base import HOUR, LATENCY_MODELS, NO_ALPHA, LatencyConfig, alpha_overheads, check_alpha
from maitred.instance.latency.deployment import Deployment
from maitred.instance.latency.silicon_steps import SiliconSteps
from maitred.instance.latency.silicon_table import SiliconTable
from maitred.instance.latency.table import chunks_by_rank, envelope_through


@LATENCY_MODELS.register("aiconfigurator")
class AIConfiguratorLatency(LatencyConfig, frozen=True, tag="aiconfigurator"):
    """The sum of measured kernels on this GPU under this engine (NVIDIA AIConfigurator; extra `silicon`)."""

    engine: Literal["", "vllm", "sglang", "trtllm"] = ""
    """The engine whose kernels were measured. Empty: that of `flavour`, and without one vLLM."""
    precision: str = ""
    """Precision of the matrix products, in AIConfigurator's words: `bfloat16`, `fp8` (activations scaled anew in each step),
    `fp8_static` (by the scales of the checkpoint, as NVIDIA's), `fp8_block`, `nvfp4`, `int4_wo` and so on. Empty: that of the
    model's own weights."""
    expert_precision: str = ""
    """Precision of the experts, in the same words. Empty: `precision`."""
    kv_precision: Literal["", "bfloat16", "fp8", "int8"] = ""
    """Precision of the KV. Empty: that of the model's configuration."""
    pipeline_parallel_size: int = 1
    """Stages of a pipeline, each with a part of the layers."""
    expert_parallel_size: int | None = None
    """GPUs over which whole experts are spread; each expert is split over the others. Null: all of them with
    `data_parallel_size` above 1, and otherwise 1."""
    deployment: Deployment | None = None
    """The figures of the model and the GPU, as in `roofline`; the catalogue fills it in."""
    table: SiliconTable | None = None
    """The step times themselves, which the catalogue fills in."""
    step_overhead: float | None = None
    """µs that each step takes beside its kernels: scheduling, sampling and whatever else the engine does on the CPU. Null: what
    was fitted for the engine (`catalogue/silicon.toml`; with TensorRT-LLM nothing). 0: none."""
    sequence_overhead: float | None = None
    """µs that a step takes beside its kernels for each of its sequences: batch, sampling and output of a sequence are prepared
    and taken apart on the CPU. Null: what was fitted for the engine. 0: none."""
    alpha: tuple[float, float, float] | None = None
    """α0, α1 and α2 in µs, as those of `linear`: HTTP, tokenizer and client. Null: α0 as it was fitted for the engine (on an
    H100 only with SGLang). `[0, 0, 0]`: none."""

    def __post_init__(self) -> None:
        for name in ("step_overhead", "sequence_overhead"):
            if not 0 <= (getattr(self, name) or 0.0) <= HOUR:
                raise ValueError(f"{name} must be from 0 to {HOUR:g} (µs: an hour), not {getattr(self, name)}")
        check_alpha(self.alpha or NO_ALPHA)
        for name in ("pipeline_parallel_size", "expert_parallel_size"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= _MAX_GPUS:
                raise ValueError(f"{name} must be from 1 to {_MAX_GPUS:,}, not {value}")

    @property
    def overheads(self) -> Overheads:
        return alpha_overheads(self.alpha or NO_ALPHA)

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, in which each step takes `scale` times as long. Raises ConfigError without its table."""
        if self.table is None:
            hint = "say which: --model meta-llama/llama-3.1-8b --hardware H100"
            raise ConfigError("the latency model aiconfigurator needs a model", hint=hint)
        return _compiled(self.table, scale, self.step_overhead or 0.0, self.sequence_overhead or 0.0, self.overheads)


_MAX_GPUS = 4096


@lru_cache(maxsize=16)
def _compiled(table: SiliconTable, scale: float, of_step: float, of_sequence: float, overheads: Overheads) -> LatencyModel:
    return _SiliconModel(table, scale, of_step, of_sequence, overheads)


class _SiliconModel(PiecewiseAffineModel):
    def __init__(self, table: SiliconTable, scale: float, of_step: float, of_sequence: float, overheads: Overheads) -> None:
        super().__init__(overheads)
        self._table, self._ranks, self._scale = table, table.ranks, scale
        self._of_step, self._of_sequence = of_step, of_sequence
        self._steps = SiliconSteps(table, scale, of_step, of_sequence)
        if self._ranks == 1:
            self.mixed_steps = self._steps

    def envelope_of(self, decodes: int) -> Envelope:
        grid, rank = self._table.decode, -(-decodes // self._ranks)
        times = accumulate([grid.value_at(rank, context) for context in grid.axes[1]], max)
        overhead = self._of_step + self._of_sequence * rank
        return envelope_through(
            [(round(context * decodes), (us + overhead) * self._scale) for context, us in zip(grid.axes[1], times, strict=True)]
        )

    def prefill_step_time(self, batch: BatchShape) -> float:
        if self._ranks == 1:
            return self._steps.time_of(batch.chunks, batch.num_decodes, batch.context_tokens)
        context = batch.context_tokens / batch.num_decodes if batch.num_decodes else 0.0
        ranks = chunks_by_rank(batch, self._ranks)
        slowest = max([self._steps.rank_time(chunks, decodes, context) for chunks, decodes in ranks])
        return (self._of_step + slowest) * self._scale
