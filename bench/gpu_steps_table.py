"""What the latency models say of the steps that `gpu_steps.py` has measured on a GPU: a table of docs/accuracy.md.

    python bench/gpu_steps_table.py tests/vectors/gpu_steps/h100.json

Without the extra `silicon` the column of measured kernels is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maitred import InstanceConfig
from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel
from maitred.core.errors import ConfigError
from maitred.instance.catalogue import resolve_instance
from maitred.instance.latency import LatencyConfig, parse_latency

MODEL = "meta-llama/llama-3.1-8b"
MODELS = ("aiconfigurator(step_overhead=0, sequence_overhead=0)", "roofline", "trained-physics")

KINDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "whole prompts": lambda step: not step["decodes"] and not step["before"],
    "chunks behind KV": lambda step: not step["decodes"] and step["before"] > 0,
    "decodes": lambda step: not step["chunk"],
    "both": lambda step: step["decodes"] > 0 and step["chunk"] > 0,
}


def batch_of(step: dict[str, Any]) -> BatchShape:
    """Return the work of a measured step."""
    chunk, before = step["chunk"], step["before"]
    chunks = (ChunkShape(chunk, before, before + chunk),) if chunk else ()
    return BatchShape(step["decodes"], step["decodes"] * step["context"], chunk, chunks)


def times_of(name: str, hardware: str, steps: list[dict[str, Any]]) -> list[float] | None:
    """Return what a latency model says of the steps on this GPU, in ms, or None if its package is missing."""
    config = InstanceConfig(model=MODEL, hardware=hardware, latency=parse_latency(name))
    try:
        latency = resolve_instance(config).latency
    except ConfigError as error:
        print(f"{name}: {error}")
        return None
    assert isinstance(latency, LatencyConfig)
    model: LatencyModel = latency.compiled()
    return [model.step_time(batch_of(step)) / 1000 for step in steps]


def measured_ms(step: dict[str, Any]) -> float:
    """Return the time of a step that is repeated, with the faster attention."""
    return float(min(step["lasting_ms"], step.get("cudnn_ms", step["lasting_ms"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    found = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    steps = found["steps"]
    told = {name: times for name in MODELS if (times := times_of(name, found["about"]["hardware"], steps)) is not None}
    print(f"{MODEL} on {found['about']['gpu']}, PyTorch {found['about']['torch']}")
    print("| step | measured ms | W | MHz |", " | ".join(f"{name} ms, error %" for name in told), "|")
    print("|---|---:|---:|---:|" + "---:|" * len(told))
    for number, step in enumerate(steps):
        texts = [f"{times[number]:.1f}, {_error(times[number], measured_ms(step)):+.0f}" for times in told.values()]
        print(f"| {_words(step)} | {measured_ms(step):.1f} | {step['watts']} | {step['mhz']:,} |", " | ".join(texts), "|")
    for kind, chosen in KINDS.items():
        for name, times in told.items():
            print(f"{kind}, {name}: median of the absolute errors {median_error(times, steps, chosen):.0f} %")


def median_error(times: list[float], steps: list[dict[str, Any]], chosen: Callable[[dict[str, Any]], bool]) -> float:
    """Return the median of the absolute errors over the steps that are `chosen`, in %."""
    told = zip(times, steps, strict=True)
    return statistics.median([abs(_error(time, measured_ms(step))) for time, step in told if chosen(step)])


def _error(time: float, measured: float) -> float:
    return (time / measured - 1) * 100


def _words(step: dict[str, Any]) -> str:
    chunk = f"{step['chunk']:,} tokens after {step['before']:,}" if step["chunk"] else ""
    decodes = f"{step['decodes']} decode over {step['context']:,}" if step["decodes"] else ""
    return ", ".join(filter(None, (chunk, decodes)))


if __name__ == "__main__":
    main()
