"""`maitred calibrate`: a latency model fitted to measurements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maitred.cli.terminal import printable
from maitred.core.errors import ConfigError, nearest_name_hint

if TYPE_CHECKING:
    from maitred.instance import InstanceConfig
    from maitred.study.calibration.fitting import Fit

_MODELS: Final = ("linear", "trained-physics", "table")
_LINEAR: Final = ("", " · prefill tokens", " · decode tokens")
_COSTS: Final = ("a step", "a token of prefill", "a decode")
_PHYSICS: Final = ("β1", "β2", "β3", "β4", "β5", "β6", "β7", "β8", "β1b", "β2b")


def run(
    measured: Annotated[
        Path,
        typer.Argument(
            help="Measured steps (CSV or JSON lines), the timeline of requests (CSV), or a folder with layer profiles.",
            metavar="MEASURED",
            show_default=False,
        ),
    ],
    latency_model: Annotated[
        str | None,
        typer.Option(
            "--latency-model",
            help="What to fit: linear, trained-physics or table. Without it: linear, or table for a folder.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="The model that was served, for trained-physics.", metavar="NAME", show_default=False)
    ] = "",
    hardware: Annotated[
        str, typer.Option("--hardware", help="The GPU it ran on, for trained-physics.", metavar="NAME")
    ] = "H100",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", help="GPUs that shared every layer.", metavar="N", min=1)
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write a YAML file that --config takes.", metavar="FILE", show_default=False),
    ] = None,
) -> None:
    """Fit a latency model to measurements, and print how well it fits.

    Steps have the columns prefill_tokens, decode_tokens, context_tokens and step_us. A timeline has input_tokens,
    output_tokens, queued_ts, scheduled_ts, first_token_ts and last_token_ts, and is for linear. A folder has meta.json,
    profile/ and requests.csv, and is for table.
    """
    name = latency_model or ("table" if measured.is_dir() else "linear")
    if name not in _MODELS:
        raise ConfigError(f"unknown latency model {name!r}", where="--latency-model", hint=nearest_name_hint(name, _MODELS))
    fit = _fit(measured, name, (model, hardware, tensor_parallel_size))
    for line in _report_lines(fit):
        typer.echo(printable(line))
    if out is not None:
        from maitred.study.calibration.fitting import write_fit

        written = write_fit(fit, out, measured.name)
        typer.echo(printable(f"written: {' and '.join(str(path) for path in written)}"))


def _fit(measured: Path, name: str, on: tuple[str, str, int]) -> Fit:
    from maitred.study.calibration.measurements import is_step_file, read_steps

    if measured.is_dir():
        return _fit_profile(measured, name)
    if not is_step_file(measured):
        return _fit_timeline(measured, name)
    steps = read_steps(measured)
    if name == "table":
        from maitred.study.calibration.table_fit import fit_table

        return fit_table(steps, measured.name)
    from maitred.study.calibration.fitting import fit_linear, fit_trained_physics

    if name == "linear":
        return fit_linear(steps)
    from msgspec.structs import replace

    from maitred.instance.catalogue import find_deployment

    engine = _instance_config(*on)
    return replace(fit_trained_physics(steps, find_deployment(engine)), engine=engine)


def _fit_profile(folder: Path, name: str) -> Fit:
    from maitred.study.calibration.measured_run import fit_profile

    if name != "table":
        raise ConfigError("layer profiles make a table", where="--latency-model", hint="--latency-model table")
    return fit_profile(folder)


def _fit_timeline(measured: Path, name: str) -> Fit:
    from maitred.study.calibration.fitting import fit_timeline
    from maitred.study.calibration.measurements import read_timeline

    if name != "linear":
        hint = "fit linear, or give measured steps: prefill_tokens, decode_tokens, context_tokens, step_us"
        raise ConfigError(f"a timeline of requests does not show enough for {name}", where=str(measured), hint=hint)
    return fit_timeline(read_timeline(measured))


def _instance_config(model: str, hardware: str, tensor_parallel_size: int) -> InstanceConfig:
    from maitred.instance import InstanceConfig

    if not model:
        hint = "such as --model meta-llama/llama-3.1-8b --hardware H100"
        raise ConfigError("trained-physics is fitted for a model on a GPU", where="--model", hint=hint)
    return InstanceConfig(model=model, hardware=hardware, tensor_parallel_size=tensor_parallel_size)


def _report_lines(fit: Fit) -> Iterator[str]:
    from maitred.instance.latency import LinearLatency, TrainedPhysicsLatency

    found, latency = fit.residuals, fit.latency
    if isinstance(latency, LinearLatency):
        yield f"linear: {' + '.join(f'{b:g}{of}' for b, of in zip(latency.beta, _LINEAR, strict=True))} µs"
    elif isinstance(latency, TrainedPhysicsLatency):
        yield f"trained-physics: {', '.join(f'{name} {b:g}' for name, b in zip(_PHYSICS, latency.beta, strict=True) if b)}"
    else:
        yield "table"
    yield f"{found.count} measurements, relative error {found.mean:+.2%} on average, standard deviation {found.sd:.2%}"
    yield f"its size: mean {found.mape:.2%}, p50 {found.p50:.2%}, p90 {found.p90:.2%}, p99 {found.p99:.2%}"
    yield f"R² {found.r_squared:.5f}, Pearson's r {found.pearson:.5f}: {found.quality}"
    if isinstance(latency, LinearLatency):
        for what in (cost for cost, b in zip(_COSTS, latency.beta, strict=True) if not b):
            yield f"warning: from these measurements {what} costs nothing; do they have steps with and without?"
