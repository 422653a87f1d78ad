"""Measurements that engines and benchmarks write by themselves, as steps and timelines.

    vLLM's log, with --enable-logging-iteration-details    steps: tokens and ms of each; no step is better known than there
    vllm bench serve --save-result --save-detailed         a timeline as clients saw it (JSON)
    maitred bench --results-path FILE.csv                  the same
    TraceV2 with measured columns                          the same: `maitred bench --trace-output`, BLIS's `observe`
    maitred serve --record                                 the same, as the gateway saw them
    measured steps and timelines of `measurements`         as they are

The log does not say how much KV the decodes read. Where it names the size of the cache (`GPU KV cache size: N tokens`), its
usage after each step gives that, less the prompt tokens of the step itself; else the context counts as 0.

A timeline that clients have seen (`MeasuredRequest.seen_by_client`) contains what a request waits outside the engine: HTTP,
tokenising, queues in front. Its TTFT and E2E count from the instant of sending.

Example of a line of the log: `... Engine 000: Iteration(41): 1 context requests, 300 context tokens, 7 generation requests, 7
generation tokens, iteration elapsed time: 9.81 ms, GPU KV cache usage: 3.2%`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import JSON_ERRORS, ConfigError, describe_json_error, describe_read_error
from maitred.core.python_json import decode_python_json
from maitred.core.units import SECOND
from maitred.study.calibration.measurements import (
    MAX_SECS,
    MeasuredRequest,
    MeasuredStep,
    check_counts,
    is_recording,
    is_step_file,
    open_text,
    parse_number,
    read_header,
    read_recording,
    read_rows,
    read_steps,
    read_timeline,
)
from maitred.workload.formats.maitred import COMPLETED

_ITERATION: Final = re.compile(
    r"Iteration\(\d+\): (?P<prompts>\d+) context requests, (?P<prefill>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: (?P<ms>\S+) ms(?P<dummy> \(dummy\))?"
    r"(?:,.*?KV cache usage: (?P<usage>\S+)%)?"
)
_CACHE_SIZE: Final = re.compile(r"KV cache size: ([\d,]+) tokens")
_LOOKED_AT: Final = 2_000
"""Lines at the beginning of a log in which a step must be, for it to be taken for one."""
_LEAST_USAGE: Final = 0.03
"""Usage of the cache that a log must reach for its usage to say how much context there was: it has steps of 0.1 %."""
_OURS: Final = ("arrived_at_us", "first_token_at_us", "finished_at_us", "input_tokens", "output_tokens")
_TRACE: Final = ("arrival_time_us", "first_chunk_time_us", "last_chunk_time_us", "input_tokens", "output_tokens")


def is_steps(path: Path) -> bool:
    """Return whether the file holds steps, by its content. Raises ConfigError if it cannot be read."""
    return _is_log(path) or (not _is_json(path) and is_step_file(path))


def read_any_steps(path: Path) -> list[MeasuredStep]:
    """Read steps: measured ones, or those of vLLM's log. Raises ConfigError with the line of a mistake."""
    return _steps_of_log(path) if _is_log(path) else read_steps(path)


def read_any_timeline(path: Path) -> list[MeasuredRequest]:
    """Read the timeline of requests in any of the formats above, in the order in which they were sent. Raises ConfigError."""
    if _is_json(path):
        return _sorted(_of_vllm_bench(path), path)
    if is_recording(path):
        return read_recording(path)[0]
    header = set(read_header(path))
    if set(_OURS) <= header:
        return _sorted(_of_results(path, [name for name in ("outcome",) if name in header]), path)
    if set(_TRACE) <= header:
        return _sorted(_of_trace(path, header), path)
    return read_timeline(path)


def _lines(path: Path) -> Iterator[str]:
    try:
        with open_text(path, errors="replace") as lines:
            yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot be read: {describe_read_error(error)}", where=str(path)) from error


def _is_json(path: Path) -> bool:
    return ".json" in path.suffixes[-2:]


def _is_log(path: Path) -> bool:
    if _is_json(path):
        return False
    return any(_ITERATION.search(line) for _, line in zip(range(_LOOKED_AT), _lines(path), strict=False))


def _steps_of_log(path: Path) -> list[MeasuredStep]:
    """Return the steps of a log. Dummy steps, and those in which nothing was computed, are left out."""
    cache_tokens, found = 0, list[_LoggedStep]()
    for number, line in enumerate(_lines(path), 1):
        if (size := _CACHE_SIZE.search(line)) is not None:
            cache_tokens = int(size[1].replace(",", ""))
        if (step := _logged_step(line, f"{path}:{number}")) is not None:
            found.append(step)
    if not found:
        raise ConfigError("there are no steps in it", where=str(path))
    if max(step.usage for step in found) < _LEAST_USAGE:
        cache_tokens = 0  # Tenths of a percent of a large cache are no count of tokens.
    return [step.measured(cache_tokens) for step in found]


class _LoggedStep(NamedTuple):
    """A line about a step in vLLM's log."""

    prompts: int
    prefill: int
    decodes: int
    us: float
    usage: float
    """Used share of the KV cache, from which the context of the step follows."""

    def measured(self, cache_tokens: int) -> MeasuredStep:
        # The usage counts what this step has reserved for its prefill too.
        context = max(0, round(self.usage * cache_tokens - self.prefill)) if self.decodes else 0
        return MeasuredStep(BatchShape(self.decodes, context, self.prefill, _chunks(self.prefill, self.prompts)), self.us)


def _logged_step(line: str, place: str) -> _LoggedStep | None:
    """Return the step that the line is about; None if it is about none, or about one that is left out. Raises ConfigError."""
    step = _ITERATION.search(line)
    if step is None or step["dummy"]:
        return None
    prompts, prefill, decodes = (int(step[name]) for name in ("prompts", "prefill", "decodes"))
    check_counts({"context requests": prompts, "context tokens": prefill, "generation requests": decodes}, place)
    us = parse_number(step["ms"], "iteration elapsed time", place) * 1e3
    if us <= 0 or prefill + decodes <= 0:
        return None
    usage = 0.0 if step["usage"] is None else parse_number(step["usage"], "KV cache usage", place)
    return _LoggedStep(prompts, prefill, decodes, us, usage / 100)


def _chunks(prefill: int, prompts: int) -> tuple[ChunkShape, ...]:
    """Return the chunks of a step: as many as it had prompts, of about one size, each taken for the beginning of its prompt."""
    each, more = divmod(prefill, prompts) if prompts else (prefill, 0)
    sizes = [each + (index < more) for index in range(max(1, prompts))]
    return tuple(ChunkShape(size, 0, size) for size in sizes if size)


class _VllmBench(msgspec.Struct):
    """The part of the file of `vllm bench serve --save-detailed` that is needed. Times are in seconds."""

    input_lens: list[int]
    output_lens: list[int]
    ttfts: list[float | None]
    itls: list[list[float]]
    start_times: list[float]
    errors: list[str | None] = []
    """What went wrong with each request; empty or null: nothing."""


def _of_vllm_bench(path: Path) -> Iterator[MeasuredRequest]:
    found = _decode_vllm_bench("".join(_lines(path)).strip(), path)
    columns = (found.input_lens, found.output_lens, found.ttfts, found.itls, found.start_times)
    failures = found.errors or [None] * len(found.ttfts)
    if len({len(column) for column in (*columns, failures)}) != 1:
        raise ConfigError("its lists have different lengths", where=str(path))
    for index, (prompt, output, ttft, gaps, start, failure) in enumerate(zip(*columns, failures, strict=True)):
        if failure or ttft == 0:  # A request that has no first token has a ttft of 0 there.
            continue
        place = f"{path}: request {index}"
        first = nan if ttft is None else ttft
        _check_spans({"ttfts": first, "start_times": start}, place)
        for gap in gaps:
            _check_spans({"itls": gap}, place)
        yield _seen(prompt, output, start, start + first, start + first + sum(gaps), place)


def _check_spans(values: Mapping[str, float], place: str) -> None:
    """Raise ConfigError for a number that cannot be one of seconds, such as NaN."""
    for name, value in values.items():
        if not 0 <= value <= MAX_SECS:
            raise ConfigError(f"{name} should be a number of seconds, 0 or more, not {value:g}", where=place)


def _decode_vllm_bench(text: str, path: Path) -> _VllmBench:
    """Return the result in `text`; with --append-result, which writes a line for each run, that of the last one.

    Figures without a value are NaN there, and a rate without a limit Infinity; only the lists that are needed are checked.
    """
    try:
        last = text if text.count("\n{") == 0 else text[text.rindex("\n{") :]
        return msgspec.convert(decode_python_json(last), _VllmBench)
    except JSON_ERRORS as error:
        hint = "vllm bench serve --save-result --save-detailed writes input_lens, output_lens, ttfts, itls and start_times"
        what = f"it is no result with every request: {describe_json_error(str(error))}"
        raise ConfigError(what, where=str(path), hint=hint) from error


def _of_results(path: Path, outcome: Sequence[str]) -> Iterator[MeasuredRequest]:
    """Yield the completed requests of `maitred bench --results-path` (or of a simulation). `outcome` is the column that says
    how each has ended, if there is one."""
    for line, (_, texts) in enumerate(read_rows(path, (), (*_OURS, *outcome)), 2):
        place = f"{path}:{line}"
        numbers = {name: parse_number(text, name, place) for name, text in zip(_OURS, texts, strict=False) if text}
        # Instants that never came are empty; but an answer that broke off has a first token and an end as well.
        if len(numbers) == len(_OURS) and texts[len(_OURS) :] in ([], [COMPLETED]):
            yield _seen_in_micros([numbers[name] for name in _OURS], place)


def _of_trace(path: Path, header: Collection[str]) -> Iterator[MeasuredRequest]:
    shared, status = ([name for name in (column,) if name in header] for column in ("prefix_length", "status"))
    for line, (values, ended) in enumerate(read_rows(path, (*_TRACE, *shared), status), 2):
        arrived, first, last, own, output, *prefix = values
        if first > 0 and last > 0 and ended in ([], [""], ["ok"]):
            yield _seen_in_micros((arrived, first, last, own + sum(prefix), output), f"{path}:{line}")


def _seen_in_micros(values: Sequence[float], place: str) -> MeasuredRequest:
    """Return the request with these instants of sending, of the first and of the last token, and these lengths."""
    arrived, first, last, prompt, output = values
    check_counts({"input_tokens": prompt, "output_tokens": output}, place)
    _check_spans({"the time of sending": arrived / SECOND, "that of the last token": last / SECOND}, place)
    return _seen(int(prompt), int(output), arrived / SECOND, first / SECOND, last / SECOND, place)


def _seen(prompt: int, output: int, sent: float, first: float, last: float, place: str) -> MeasuredRequest:
    """Return a request as its client saw it. Raises ConfigError if its instants do not follow each other."""
    check_counts({"input tokens": prompt, "output tokens": output}, place)
    if not sent < first or last < first:
        raise ConfigError("a request should be sent, have its first and then its last token", where=place)
    return MeasuredRequest(prompt, output, sent, sent, sent, first, last, 0, seen_by_client=True)


def _sorted(rows: Iterable[MeasuredRequest], path: Path) -> list[MeasuredRequest]:
    found = [row for row in rows if row.prompt_tokens >= 1 and row.output_tokens >= 1]
    if not found:
        raise ConfigError("no request in it completed", where=str(path))
    return sorted(found, key=lambda row: row.sent)
