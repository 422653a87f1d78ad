"""What runs with measured kernels are known to lack: the overheads of an engine, the errors, and where measurements end.

All of it is data (`silicon.toml`), made by `bench/silicon.py` from pairs of TTFT and TPOT that were measured: overheads are
fitted to one half of them, and the errors are those of the other.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, Final

from msgspec.structs import replace

from maitred.instance.catalogue.specs import load_entries
from maitred.instance.latency import AIConfiguratorLatency
from maitred.instance.latency.base import NO_ALPHA

_FILE: Final = "silicon.toml"
_MEDIAN_OF_NORMAL: Final = NormalDist().inv_cdf(0.75)
"""Median of the absolute value of a normal error, in standard deviations."""


def with_overheads(latency: AIConfiguratorLatency, engine: str, system: str) -> AIConfiguratorLatency:
    """Return `latency` with the overheads that were fitted for `engine` and hold on `system`, where it states none."""
    fitted = _of_engine(engine)
    step, sequence, request = fitted["step_overhead_us"], fitted["sequence_overhead_us"], fitted["request_overhead_us"]
    if system in fitted.get("no_request_overhead_on", ()):
        request = 0.0
    return replace(
        latency,
        step_overhead=step if latency.step_overhead is None else latency.step_overhead,
        sequence_overhead=sequence if latency.sequence_overhead is None else latency.sequence_overhead,
        alpha=(request, 0.0, 0.0) if latency.alpha is None else latency.alpha,
    )


def without_request_overhead(latency: AIConfiguratorLatency) -> AIConfiguratorLatency:
    """Return `latency` without a fitted α, which another kind of latency model in the same fleet does not have."""
    return replace(latency, alpha=NO_ALPHA) if latency == _as_fitted(latency) else latency


def described_overheads(latency: AIConfiguratorLatency) -> str:
    """Return the overheads of a resolved latency model and whence they are, in words; empty where none was fitted.

    Example: `with 1,500 µs per step, 25 µs per sequence of a step and 44 ms per request, fitted on half of 875 pairs`.
    """
    step, sequence = latency.step_overhead or 0.0, latency.sequence_overhead or 0.0
    request = (latency.alpha or NO_ALPHA)[0] / 1000
    of_sequence = f", {sequence:,g} µs per sequence of a step" if sequence else ""
    amounts = f"with {step:,g} µs per step{of_sequence} and {request:,g} ms per request"
    if latency != _as_fitted(latency):
        return f"{amounts} as given"
    fitted = _of_engine(latency.engine)
    return f"{amounts}, fitted on half of {sum(fitted['pairs']):,} pairs" if step or sequence or request else ""


def nearest_error(latency: AIConfiguratorLatency) -> str:
    """Return the error on the measured pairs that are nearest to a resolved latency model, in words, or that it is unknown."""
    found = _nearest_pairs(latency)
    if found is None:
        return "error unknown"
    count, ttft, tpot = found
    system, engine = _system(latency), latency.engine
    is_own = system in _of_engine(engine)["told"]
    where = f"{system} under {engine}" if is_own else f"other systems under {engine}, as {system} has too few"
    return f"median error TTFT {ttft} %, TPOT {tpot} % on {count:,} measured pairs of {where}"


def nearest_deviation(latency: AIConfiguratorLatency) -> float | None:
    """Return the standard deviation of the factor by which the step times of a resolved latency model are wrong, or None if it
    is unknown: that of a normal error with the median absolute error of TPOT on the nearest measured pairs. (A step is what
    TPOT measures; the error of TTFT is mostly that of queues and of the overhead of a request.)"""
    found = _nearest_pairs(latency)
    return None if found is None else round(found[2] / 100 / _MEDIAN_OF_NORMAL, 4)


def beyond_kernels(longest_prompt: int, longest_context: int) -> str:
    """Return in words which part of a mix is outside the measured kernels; empty if nothing is. Both lengths are in tokens."""
    measured: dict[str, Any] = load_entries(_FILE)["kernels"]
    parts = []
    if longest_prompt > measured["prompt"]:
        parts.append(f"prompts of up to {longest_prompt:,} tokens (measured up to {measured['prompt']:,})")
    if longest_context > measured["context"]:
        parts.append(f"decodes over up to {longest_context:,} tokens (measured up to {measured['context']:,})")
    return " and ".join(parts)


def _nearest_pairs(latency: AIConfiguratorLatency) -> tuple[int, int, int] | None:
    """Return the number of the nearest measured pairs, and the median errors of TTFT and TPOT there in %; None: unknown."""
    if latency != _as_fitted(latency) or latency.deployment is None:
        return None
    told = _of_engine(latency.engine)["told"]
    count, ttft, tpot = told.get(_system(latency)) or told["all"]
    return count, ttft, tpot


def _of_engine(engine: str) -> dict[str, Any]:
    return load_entries(_FILE)[engine or "vllm"]


def _as_fitted(latency: AIConfiguratorLatency) -> AIConfiguratorLatency:
    bare = replace(latency, step_overhead=None, sequence_overhead=None, alpha=None)
    return with_overheads(bare, latency.engine, _system(latency))


def _system(latency: AIConfiguratorLatency) -> str:
    return latency.deployment.hardware.aiconfigurator if latency.deployment else ""
