"""Speculative decoding: a draft proposes k tokens, and one step of the model verifies them all.

With a chance a that a proposed token is accepted, independently of the others, a step emits (Y. Leviathan, M. Kalman, Y.
Matias, Fast inference from transformers via speculative decoding, 2023, equation 1)

    E = (1 - a^(k+1)) / (1 - a) tokens        k + 1 for a = 1

and takes the time of a step in which each sequence has k more tokens, and k runs of the draft, each of which takes the share c
of a decode step (their cost coefficient). Sequences decode one token per step here, so one of these steps stands for the 1/E-th
part of a real one. Prompts are computed in whole steps, as ever: a chunk takes what it prolongs its step by.

    V(batch)   time of the batch, in which each sequence that decodes has k more tokens, and k · c · a plain decode step
    step       V(batch) - (1 - 1/E) · V(the same without prompts)

So a run emits as many tokens in the same time as one with real steps, and computes as many prompts. Where verifying k tokens
more costs nothing, decoding is faster by E / (1 + k c), their theorem 3.8. Not modelled: the chances of single tokens, so a
request gets its tokens evenly and not several at once; KV blocks for proposed tokens; prompts that the draft computes.

Example: a = 0.8 and k = 3 give E = 2.952. With c = 0.1 and a step of 10 ms, verified for nothing, a token takes
10 · 1.3 / 2.952 = 4.40 ms.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel, Overheads
from maitred.core.units import Micros
from maitred.instance.latency.base import StepTimes
from maitred.instance.latency.linear_steps import LinearSteps

_MOST_TOKENS = 64


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding: tokens that a draft proposes, and how many of them are accepted."""

    num_speculative_tokens: int = 0
    """Tokens that are proposed for each sequence in each step (vLLM's name); 0: none."""
    acceptance_rate: float = 0.7
    """Chance that a proposed token is accepted, if those before it are, 0..1."""
    draft_cost: float = 0.05
    """Time of one run of the draft, as a share of a decode step of the model."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_speculative_tokens <= _MOST_TOKENS:
            raise ValueError(f"num_speculative_tokens must be from 0 to {_MOST_TOKENS}, not {self.num_speculative_tokens}")
        for name in ("acceptance_rate", "draft_cost"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")

    def __bool__(self) -> bool:
        return self.num_speculative_tokens > 0

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens that a sequence gets from a step, 1 or more."""
        accepted, proposed = self.acceptance_rate, self.num_speculative_tokens
        return float(proposed + 1) if accepted == 1 else (1 - accepted ** (proposed + 1)) / (1 - accepted)

    def warnings(self) -> list[str]:
        """Return a warning for each key without effect."""
        plain = SpeculativeConfig()
        names = () if self else ("acceptance_rate", "draft_cost")
        return [
            f"speculative.{name} has no effect without num_speculative_tokens"
            for name in names
            if getattr(self, name) != getattr(plain, name)
        ]


class SpeculativeSteps(StepTimes):
    """The step times of a model with a draft."""

    def __init__(self, model: LatencyModel, config: SpeculativeConfig) -> None:
        self._model = model
        self._proposed, self._draft_cost = config.num_speculative_tokens, config.draft_cost
        self._saved = 1 - 1 / config.tokens_per_step
        self._is_constant = isinstance(model, LinearSteps)

    @property
    def overheads(self) -> Overheads:  # type: ignore[override]
        return self._model.overheads

    def micros(self, batch: BatchShape) -> float:
        if not batch.num_decodes:
            return self._model.step_time(batch)
        alone = self._verified(replace(batch, prefill_tokens=0, chunks=()))
        return (self._verified(batch) if batch.chunks else alone) - self._saved * alone

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return steps * self.step_time(batch) if self._is_constant else super().run_time(batch, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return min(limit, span // self.step_time(batch)) if self._is_constant else super().steps_within(batch, span, limit)

    def _verified(self, batch: BatchShape) -> float:
        """Return the time (µs) of a real step: what is verified, and the draft before it."""
        count, extra = batch.num_decodes, self._proposed
        # Proposed tokens read the KV that the decode reads anyway, so they are chunks without a context of their own.
        chunks = batch.chunks + (ChunkShape(extra, 0, extra),) * count
        verified = replace(batch, prefill_tokens=batch.prefill_tokens + extra * count, chunks=chunks)
        plain = BatchShape(count, batch.context_tokens, context_spread=batch.context_spread)
        draft = extra * self._draft_cost * self._model.step_time(plain) if self._draft_cost else 0.0
        return self._model.step_time(verified) + draft
