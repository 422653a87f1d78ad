"""How loaded a backend says it is, from its `/metrics`: vLLM's and SGLang's gauges, in Prometheus' text format.

    waiting      vllm:num_requests_waiting                            sglang:num_queue_reqs
    running      vllm:num_requests_running                            sglang:num_running_reqs
    KV usage     vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc  sglang:token_usage      (0 to 1)

There is a series for each engine, data-parallel rank or model behind one address: counts are summed up, usage is their mean.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

METRICS_PATH: Final = "/metrics"
_WAITING: Final = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_RUNNING: Final = ("vllm:num_requests_running", "sglang:num_running_reqs")
_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_GAUGE_SAMPLE: Final = re.compile(
    rf"^({'|'.join((*_WAITING, *_RUNNING, *_KV_USAGE))})(?:\{{.*\}})?[ \t]+([0-9.eE+-]+)", re.MULTILINE
)


class ReportedLoad(msgspec.Struct, frozen=True):
    """As of the poll that found it."""

    waiting: int
    running: int
    kv_usage: float
    """0 to 1; 0 if it is not said."""


def parse_reported_load(page: bytes | bytearray) -> ReportedLoad | None:
    """None: the page says nothing of running requests, so it is not that of an engine we know."""
    found: dict[str, list[float]] = {}
    for name, value in _GAUGE_SAMPLE.findall(page.decode("utf-8", "replace")):
        found.setdefault(name, []).append(_parse_number(value))
    running = _first_values(found, _RUNNING)
    if not running:
        return None
    usage = _first_values(found, _KV_USAGE)
    mean = sum(usage) / len(usage) if usage else 0.0
    return ReportedLoad(round(sum(_first_values(found, _WAITING))), round(sum(running)), min(mean, 1.0))


def _first_values(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    """Of the first of these metrics that there is."""
    return next((found[name] for name in names if name in found), [])


def _parse_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value < 1e15 else 0.0
