"""The names of `vllm bench serve` for a workload, for what is printed and for a result file.

--request-rate inf                              all requests at once
--dataset-name random, --random-input-len ...   lengths around a mean, by a range ratio, behind a shared prefix
--dataset-name timed_trace, --dataset-path      a trace, in the units of --timed-trace-sec-multiplier and -chunk-hash-size
--ramp-up-strategy, ...                         see `workload.transforms.ramp_up`
--percentile-metrics, --metric-percentiles      a table more; `--goodput ttft:500,tpot:50` is the SLO, in ms
--save-result, --result-filename                the JSON that vLLM's tools read, as with --save-detailed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from maitred.cli.flags import SWITCH, CommandFlags, flag
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.units import from_ms

if TYPE_CHECKING:
    from maitred.report import Slo, Summary
    from maitred.sim import Results
    from maitred.study.live.benchmark import LiveRun
    from maitred.workload.transforms import RampStrategy

_PANEL: Final = "Workload in the names of vllm bench serve"
_SHOWN: Final = "What is shown, in the names of vllm bench serve"
_TIMED_TRACE: Final = "timed_trace"
_DATASETS: Final = ("random", _TIMED_TRACE)
_TIMED_TRACE_OPTIONS: Final = (
    *("sec_multiplier", "chunk_hash_size"),
    *("label_timestamp", "label_input_length", "label_output_length", "label_hash_ids"),
)
"""The parameters of the format `timed_trace`, which are flags of vLLM behind --timed-trace-."""
_METRICS: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
GOODPUT_METRICS: Final = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms"}
_AT_ONCE: Final = 1e6
"""Requests per second that stand for all at once."""
_RANDOM_INPUT, _RANDOM_OUTPUT = 1024, 128
"""Lengths of vLLM's random prompts and answers."""


@dataclass(frozen=True, kw_only=True)
class VllmFlags(CommandFlags):
    """Flags that `vllm bench serve` has too."""

    dataset_name: Annotated[str | None, flag(_PANEL, "random, or timed_trace (with --dataset-path).", "NAME")] = None
    dataset_path: Annotated[str | None, flag(_PANEL, "The trace of timed_trace.", "FILE")] = None
    timed_trace_sec_multiplier: Annotated[
        float | None, flag(_PANEL, "Seconds in a unit of its timestamps. Default: 1; for ms 0.001.", "SECS")
    ] = None
    timed_trace_chunk_hash_size: Annotated[
        int | None, flag(_PANEL, "Tokens that one of its hash ids stands for. Default: 16.", "TOKENS")
    ] = None
    timed_trace_label_timestamp: Annotated[str | None, flag(_PANEL, "Its key of times. Default: timestamp.", "KEY")] = None
    timed_trace_label_input_length: Annotated[
        str | None, flag(_PANEL, "Its key of prompt lengths. Default: input_length.", "KEY")
    ] = None
    timed_trace_label_output_length: Annotated[
        str | None, flag(_PANEL, "Its key of output lengths. Default: output_length.", "KEY")
    ] = None
    timed_trace_label_hash_ids: Annotated[str | None, flag(_PANEL, "Its key of hash ids. Default: hash_ids.", "KEY")] = None
    self_timed: Annotated[
        bool | None, flag(_PANEL, "Send a timed_trace at its own times, which is always so here.", SWITCH)
    ] = None
    input_len: Annotated[
        int | None,
        flag(_PANEL, "Tokens of a random prompt. Default: 1024.", "TOKENS", alias="--input-len", name="--random-input-len"),
    ] = None
    output_len: Annotated[
        int | None,
        flag(_PANEL, "Tokens of a random answer. Default: 128.", "TOKENS", alias="--output-len", name="--random-output-len"),
    ] = None
    range_ratio: Annotated[
        float | None, flag(_PANEL, "Lengths from 1 - R to 1 + R times these. Default: 0.", "R", name="--random-range-ratio")
    ] = None
    prefix_len: Annotated[int | None, flag(_PANEL, "The same as --prefix-tokens.", "TOKENS", name="--random-prefix-len")] = None
    ramp_up_strategy: Annotated[str | None, flag(_PANEL, "Let the rate grow over the run: linear or exponential.", "NAME")] = (
        None
    )
    ramp_up_start_rps: Annotated[float | None, flag(_PANEL, "Requests per second at the start of a ramp.", "RATE")] = None
    ramp_up_end_rps: Annotated[float | None, flag(_PANEL, "Requests per second at its end.", "RATE")] = None

    percentile_metrics: Annotated[
        str | None, flag(_SHOWN, "A table of percentiles of these: ttft,tpot,itl,e2el.", "METRIC,...")
    ] = None
    metric_percentiles: Annotated[str, flag(_SHOWN, "Which percentiles. Default: 99.", "P,...")] = "99"
    goodput: Annotated[
        list[str] | None,
        flag(_SHOWN, "The SLO, in ms: ttft:500, tpot:50 or e2el:5000. Repeatable, or with commas.", "METRIC:MS"),
    ] = None
    save_result: Annotated[bool | None, flag(_SHOWN, "Write what vllm bench serve --save-detailed writes.", SWITCH)] = None
    result_filename: Annotated[Path | None, flag(_SHOWN, "Where to. Default: bench.json.", "FILE")] = None


def vllm_workload(flags: VllmFlags) -> dict[str, object]:
    """Return the workload that the flags give, by key. Raises ConfigError."""
    return {f"workload.{name}": value for name, value in _workload(flags)}


def _workload(flags: VllmFlags) -> Iterator[tuple[str, object]]:
    given = flags.values
    if flags.prefix_len is not None:
        if "workload.prefix_tokens" in given:
            problem = "--random-prefix-len and --prefix-tokens are two names for one thing"
            raise ConfigError(problem, hint="give one of them")
        yield "prefix_tokens", flags.prefix_len
    _check_dataset(flags)
    if flags.dataset_name == _TIMED_TRACE:
        yield from _timed_trace(flags)
        return
    if given.get("workload.rate") == inf:
        yield "rate", _AT_ONCE
    yield from _random_lengths(flags, has_defaults=flags.dataset_name == "random")


def _check_dataset(flags: VllmFlags) -> None:
    name = flags.dataset_name
    if name is not None and name not in _DATASETS:
        hint = f"{nearest_name_hint(name, _DATASETS)}; others are traces: --trace FORMAT:FILE (maitred formats)"
        raise ConfigError(f"the data set {name!r} is not known", where="--dataset-name", hint=hint)
    if (name == _TIMED_TRACE) != (flags.dataset_path is not None):
        raise ConfigError("it goes with --dataset-name timed_trace", where="--dataset-path", hint="give both, or neither")
    options = [f"--timed-trace-{option.replace('_', '-')}" for option in _timed_trace_options(flags)]
    options += ["--self-timed"] if flags.self_timed else []
    if options and name != _TIMED_TRACE:
        hint = "--trace FORMAT:FILE has the units of its format"
        raise ConfigError("it goes with --dataset-name timed_trace", where=options[0], hint=hint)


def _timed_trace(flags: VllmFlags) -> Iterator[tuple[str, object]]:
    """Yield the trace of the flags. Its times are its own, so the rate `inf`, vLLM's default, says nothing."""
    options = ", ".join(f"{name}={value}" for name, value in _timed_trace_options(flags).items())
    yield "trace", f"{_TIMED_TRACE}({options}):{flags.dataset_path}" if options else f"{_TIMED_TRACE}:{flags.dataset_path}"
    if flags.values.get("workload.rate") == inf:
        yield "rate", None
    if (rows := flags.values.get("workload.num_requests")) is not None:
        yield "num_requests", None
        yield "max_requests", rows


def _timed_trace_options(flags: VllmFlags) -> Mapping[str, object]:
    """Return the parameters of the format `timed_trace` that the flags give."""
    options = {name: getattr(flags, f"timed_trace_{name}") for name in _TIMED_TRACE_OPTIONS}
    return {name: value for name, value in options.items() if value is not None}


def _random_lengths(flags: VllmFlags, *, has_defaults: bool) -> Iterator[tuple[str, object]]:
    """Yield the lengths of prompts and answers; without `has_defaults` only those that are given."""
    ratio = flags.range_ratio or 0.0
    if not 0 <= ratio < 1:
        raise ConfigError(f"{ratio:g} cannot be used", where="--random-range-ratio", hint="from 0 to below 1")
    for key, mean, default in (
        ("input_tokens", flags.input_len, _RANDOM_INPUT),
        ("output_tokens", flags.output_len, _RANDOM_OUTPUT),
    ):
        length = mean if mean is not None else default if has_defaults else None
        if length is not None:
            low, high = max(1, round(length * (1 - ratio))), max(1, round(length * (1 + ratio)))
            yield key, str(length) if low == high else f"uniform:{low},{high}"


def parse_ramp(flags: VllmFlags, strategy: str) -> tuple[RampStrategy, float, float]:
    """Return how the rate grows, and the rates at the two ends. Raises ConfigError, naming the flag."""
    from maitred.workload.transforms import RampStrategy

    known = next((each for each in get_args(RampStrategy) if each == strategy), None)
    if known is None:
        hint = nearest_name_hint(strategy, get_args(RampStrategy))
        raise ConfigError(f"there is no strategy {strategy!r}", where="--ramp-up-strategy", hint=hint)
    start = _ramp_rate("--ramp-up-start-rps", flags.ramp_up_start_rps)
    return known, start, _ramp_rate("--ramp-up-end-rps", flags.ramp_up_end_rps)


def _ramp_rate(name: str, rate: float | None) -> float:
    if rate is None or not 0 < rate < 1e9:
        problem = "is missing" if rate is None else f"{rate:g} cannot be used"
        raise ConfigError(problem, where=name, hint="requests per second, above 0")
    return rate


def vllm_slo(flags: VllmFlags) -> Slo | None:
    """Return the SLO of --goodput, or None without it. Raises ConfigError."""
    from maitred.report import Slo

    if not flags.goodput:
        return None
    parts = (part for text in flags.goodput for part in text.replace(",", " ").split())
    targets = dict(map(_goodput_target, parts))
    return Slo(ttft_ms=targets.get("ttft_ms"), tpot_ms=targets.get("tpot_ms"), e2e_ms=targets.get("e2e_ms"))


def _goodput_target(part: str) -> tuple[str, float]:
    """Return the target and its ms that `e2el:5000` names. Raises ConfigError."""
    name, _, value = part.partition(":")
    try:
        limit = float(value) if from_ms(float(value)) > 0 else 0.0
    except (ValueError, OverflowError):
        limit = 0.0
    if name not in GOODPUT_METRICS or limit <= 0:
        raise ConfigError(f"cannot read {part!r}", where="--goodput", hint="as ttft:500, tpot:50 or e2el:5000, in ms")
    return GOODPUT_METRICS[name], limit


def _percentiles(flags: VllmFlags) -> Sequence[float]:
    try:
        found = [float(part) for part in flags.metric_percentiles.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each <= 100 for each in found):
        hint = "as 50,90,99"
        raise ConfigError(f"cannot read {flags.metric_percentiles!r}", where="--metric-percentiles", hint=hint)
    return found


def check_percentiles(flags: VllmFlags) -> Sequence[str]:
    """Return the metrics of --percentile-metrics. Raises ConfigError for one that is not known."""
    _percentiles(flags)
    metrics = [name.strip() for name in (flags.percentile_metrics or "").split(",") if name.strip()]
    for name in metrics:
        if name not in _METRICS:
            hint = nearest_name_hint(name, _METRICS)
            raise ConfigError(f"there is no metric {name!r}", where="--percentile-metrics", hint=hint)
    return metrics


def print_percentiles(flags: VllmFlags, results: Results) -> None:
    """Print the percentiles that --percentile-metrics asks for, if it does."""
    metrics = check_percentiles(flags)
    if not metrics:
        return
    import numpy as np
    from rich.console import Console

    from maitred.core.units import to_ms
    from maitred.report.table import NO_VALUE, format_number, new_table, print_table
    from maitred.study.live.vllm_result import vllm_latencies

    percentiles = _percentiles(flags)
    table = new_table({"percentiles": "bold"}, ("mean", *(f"p{each:g}" for each in percentiles)), min_width=9)
    for name, values in vllm_latencies(results).items():
        if name in metrics:
            figures = [values.mean(), *np.percentile(values, percentiles)] if len(values) else []
            shown = [format_number(to_ms(figure)) for figure in figures] or [NO_VALUE] * (1 + len(percentiles))
            table.add_row(f"{_METRICS[name]} ms", *shown)
    print_table(table, Console())


def write_vllm_result(flags: VllmFlags, live: LiveRun, summary: Summary) -> None:
    """Write the file of --save-result, if it is asked for. Raises ConfigError if it cannot be written."""
    if not flags.save_result and flags.result_filename is None:
        return
    import msgspec

    from maitred.report import OutputFile
    from maitred.study.live.vllm_result import vllm_result

    with OutputFile(flags.result_filename or Path("bench.json"), where="--result-filename") as file:
        file.write(msgspec.json.encode(vllm_result(live, summary)) + b"\n")
    typer.echo(f"written: {flags.result_filename or 'bench.json'}", err=True)
