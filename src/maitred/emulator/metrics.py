"""Metrics under vLLM's names, for vLLM's dashboards and routers: those that an emulated engine can fill truthfully.

Times are in real time: virtual time divided by the speed of the engine. There is one engine, "0".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from maitred.core.request import Request
from maitred.core.units import Micros, to_seconds
from maitred.emulator.series import Counter, Gauge, HistogramSeries, SeriesPage
from maitred.emulator.tokens import FinishReason
from maitred.instance import InstanceConfig

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_TTFT_SECS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_GAP_SECS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY_SECS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


class RequestInstants(msgspec.Struct, frozen=True, kw_only=True):
    """The course of a request that finished, in virtual time."""

    scheduled: Micros
    """When the request entered the running batch."""
    first_token: Micros
    last_token: Micros
    output_tokens: int
    preemptions: int


class InstanceGauges(Protocol):
    """The values that are read from the instance at each scrape."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...


class EmulatedMetrics:
    """The metrics of one engine."""

    def __init__(self, model: str, config: InstanceConfig, load: InstanceGauges, *, speed: float = 1.0) -> None:
        self._page = SeriesPage()
        self._labels = {"engine": "0", "model_name": model}
        self._speed = speed
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens read.")
        self._generation_tokens = self._counter("generation_tokens", "Output tokens.")
        self._preemptions = self._counter("num_preemptions", "How often a request lost its KV blocks to another.")
        name = "vllm:request_success_total"
        self._num_ended = {reason: Counter(name, {**self._labels, "finished_reason": reason.value}) for reason in FinishReason}
        self._page.add("counter", name, "Requests that ended.", *self._num_ended.values())
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT_SECS)
        self._gap = self._histogram("inter_token_latency_seconds", "One output token to the next.", _GAP_SECS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _LATENCY_SECS)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to running batch.", _LATENCY_SECS)
        self._prefill = self._histogram("request_prefill_time_seconds", "Running batch to first token.", _LATENCY_SECS)
        self._decode = self._histogram("request_decode_time_seconds", "First token to last token.", _LATENCY_SECS)
        self._inference = self._histogram("request_inference_time_seconds", "Running batch to last token.", _LATENCY_SECS)
        self._mean_gap = self._histogram("request_time_per_output_token_seconds", "Mean gap of a request's tokens.", _GAP_SECS)
        self._request_preemptions = self._histogram("request_num_preemptions", "Preemptions per request.", _PREEMPTION_BUCKETS)
        lengths = tuple(_one_two_five(config.model_len))
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens per request.", lengths)
        self._output_length = self._histogram("request_generation_tokens", "Output tokens per request.", lengths)
        self._most_tokens = self._histogram("request_params_max_tokens", "max_tokens, where a request has it.", lengths)
        self._n = self._histogram("request_params_n", "Answers per prompt.", (1, 2, 5, 10, 20))
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found there.")
        self._caching = config.caches_prefixes
        self._gauge("num_requests_running", "Requests in the running batch.", lambda: load.running)
        self._gauge("num_requests_waiting", "Requests in the wait queue.", lambda: load.waiting)
        self._gauge("num_requests_waiting_by_reason", "And why.", lambda: load.waiting, reason="capacity")
        self._gauge("kv_cache_usage_perc", "Used share of the KV blocks, 0 to 1.", lambda: load.kv_usage)
        self._cache_info(config)

    def on_first_token(self, request: Request, at: Micros, scheduled: Micros, cached: int) -> None:
        """Count a first token. The request entered the running batch at `scheduled`, with `cached` tokens of its prompt in the
        prefix cache."""
        if self._caching:
            self._queries.inc(request.prompt_tokens)
            self._hits.inc(cached)
        self._ttft.observe(self._seconds(at - request.arrival))
        self._queue.observe(self._seconds(scheduled - request.arrival))
        self.count_prompt_tokens(request.prompt_tokens)

    def count_prompt_tokens(self, tokens: int) -> None:
        self._prompt_tokens.inc(tokens)

    def observe_token_gap(self, span: Micros) -> None:
        self._gap.observe(self._seconds(span))

    def count_output_tokens(self, tokens: int) -> None:
        self._generation_tokens.inc(tokens)

    def on_kv_preempted(self) -> None:
        self._preemptions.inc()

    def on_finished(self, request: Request, course: RequestInstants, reason: FinishReason) -> None:
        decode = self._seconds(course.last_token - course.first_token)
        self._e2e.observe(self._seconds(course.last_token - request.arrival))
        self._prefill.observe(self._seconds(course.first_token - course.scheduled))
        self._decode.observe(decode)
        self._inference.observe(self._seconds(course.last_token - course.scheduled))
        if course.output_tokens > 1:
            self._mean_gap.observe(decode / (course.output_tokens - 1))
        self._request_preemptions.observe(course.preemptions)
        self._prompt_length.observe(request.prompt_tokens)
        self._output_length.observe(course.output_tokens)
        if request.max_output_tokens is not None:
            self._most_tokens.observe(request.max_output_tokens)
        self._n.observe(1)
        self.on_end(reason)

    def on_end(self, reason: FinishReason) -> None:
        self._num_ended[reason].inc()

    def exposition(self) -> bytes:
        """Return the exposition text, of the type `CONTENT_TYPE`."""
        return self._page.text().encode()

    def _seconds(self, span: Micros) -> float:
        return to_seconds(span) / self._speed

    def _counter(self, name: str, what: str) -> Counter:
        name = f"vllm:{name}_total"
        return self._page.add("counter", name, what, Counter(name, self._labels))[0]

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> HistogramSeries:
        name = f"vllm:{name}"
        return self._page.add("histogram", name, what, HistogramSeries(name, self._labels, buckets))[0]

    def _gauge(self, name: str, what: str, read: Callable[[], float], **extra: str) -> None:
        name = f"vllm:{name}"
        self._page.add("gauge", name, what, Gauge(name, {**self._labels, **extra}, read))

    def _cache_info(self, config: InstanceConfig) -> None:
        """Set a gauge of 1 that has the configuration of the KV cache as its labels."""
        labels = {
            "block_size": str(config.block_size_in_tokens),
            "num_gpu_blocks": str(config.kv_blocks),
            "kv_cache_size_tokens": str(config.kv_blocks * config.block_size_in_tokens),
            "enable_prefix_caching": str(config.caches_prefixes),
        }
        self._gauge("cache_config_info", "The KV cache.", lambda: 1.0, **labels)


def _one_two_five(limit: int) -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50, ... up to `limit`."""
    power = 1
    while power <= limit:
        yield from (digit * power for digit in (1, 2, 5) if digit * power <= limit)
        power *= 10
