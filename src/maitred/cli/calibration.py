"""`maitred calibrate`: a latency model fitted to measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maitred.cli.flags import SWITCH, CommandFlags, command, flag
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.printing import printable

if TYPE_CHECKING:
    from maitred.instance import InstanceConfig
    from maitred.instance.latency import LatencyConfig
    from maitred.study.calibration.fitting import Fit
    from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep
    from maitred.study.calibration.outside import OutsideTimes
    from maitred.study.calibration.residuals import Residuals


_MODELS: Final = ("linear", "trained-physics", "table")
_LINEAR: Final = ("", " · prefill tokens", " · decode tokens")
_COSTS: Final = ("a step", "a token of prefill", "a decode")
_PHYSICS: Final = ("β1", "β2", "β3", "β4", "β5", "β6", "β7", "β8", "β1b", "β2b")


_FIT: Final = "The fit"
_ENGINE: Final = "The engine"


@dataclass(frozen=True, kw_only=True)
class CalibrateFlags(CommandFlags):
    """The flags of `maitred calibrate`."""

    measured: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Measured steps (vLLM's log, CSV, JSON lines), the timeline of requests, or a folder with layer profiles.",
            metavar="MEASURED...",
            show_default=False,
        ),
    ] = None
    latency_model: Annotated[
        str | None, flag(_FIT, "linear, trained-physics or table. Default: linear, or table for a folder.", "NAME")
    ] = None
    clients: Annotated[
        list[Path] | None,
        flag(
            _FIT,
            "What clients saw of requests to this engine: of maitred bench, vllm bench serve or TraceV2. Fits what a request "
            "waits outside the steps. Repeatable.",
            "FILE",
        ),
    ] = None
    alpha_only: Annotated[
        bool | None, flag(_FIT, "Keep the latency model of --config, and fit only what clients saw beyond it.", SWITCH)
    ] = None
    config: Annotated[Path | None, flag(_ENGINE, "The engine that served them: its section instance.", "FILE")] = None
    model: Annotated[str, flag(_ENGINE, "The model that was served, for trained-physics.", "NAME")] = ""
    hardware: Annotated[str, flag(_ENGINE, "The GPU it ran on, for trained-physics. Default: H100.", "NAME")] = "H100"
    tensor_parallel_size: Annotated[int, flag(_ENGINE, "GPUs that shared every layer. Default: 1.", "N")] = 1
    out: Annotated[Path | None, flag(_FIT, "Write a YAML file that --config takes.", "FILE")] = None
    plot: Annotated[Path | None, flag(_FIT, "The residuals: .png, .svg or .pdf.", "FILE")] = None
    force: Annotated[bool | None, flag(_FIT, "Write a fit even if it is poor.", SWITCH)] = None


@command(CalibrateFlags)
def calibrate(flags: CalibrateFlags) -> None:
    """Fit a latency model to measurements, and print how well it fits.

    Steps are those of vLLM's log with --enable-logging-iteration-details, or rows with prefill_tokens, decode_tokens,
    context_tokens and step_us. A timeline is for linear: that of clients, as for --clients, or that of the engine, with
    input_tokens, output_tokens, queued_ts, scheduled_ts, first_token_ts and last_token_ts. A folder has meta.json, profile/ and
    requests.csv, and is for table.
    """
    measured = flags.measured or []
    if not measured and not flags.alpha_only:
        raise ConfigError("there is nothing to fit", hint="maitred calibrate vllm.log, or steps.csv, or run.csv")
    if flags.tensor_parallel_size < 1:
        raise ConfigError("must be at least 1", where="--tensor-parallel-size")
    if flags.plot is not None:
        from maitred.report import check_plot_path

        check_plot_path(flags.plot, where="--plot")
    fit = _fit_alpha(flags, _client_timelines(measured, flags.clients or ())) if flags.alpha_only else _fit_all(flags, measured)
    _write(fit, flags.out, flags.plot, [*measured, *(flags.clients or ())], force=bool(flags.force))


def _fit_all(flags: CalibrateFlags, measured: Sequence[Path]) -> Fit:
    """Return the latency model that the flags ask for, and what clients saw beyond it; print how well it fits."""
    name = flags.latency_model or ("table" if measured[0].is_dir() else "linear")
    if name not in _MODELS:
        raise ConfigError(f"unknown latency model {name!r}", where="--latency-model", hint=nearest_name_hint(name, _MODELS))
    fit = _with_engine(_fit(measured, name, (flags.model, flags.hardware, flags.tensor_parallel_size)), flags.config)
    for line in _report_lines(fit):
        typer.echo(printable(line))
    seen = _client_timelines(measured, flags.clients or ())
    return _with_outside(fit, seen) if seen else fit


def _with_outside(fit: Fit, seen: Sequence[Sequence[MeasuredRequest]]) -> Fit:
    """Return the fit with what clients saw beyond the steps, and print that."""
    from msgspec.structs import replace

    from maitred.study.calibration.outside import fit_outside

    latency, outside = fit_outside(fit.latency, seen, fit.engine)
    for line in _outside_lines(outside):
        typer.echo(line)
    return replace(fit, latency=latency)


def _fit_alpha(flags: CalibrateFlags, seen: Sequence[Sequence[MeasuredRequest]]) -> Fit:
    """Return the latency model of --config with what clients saw beyond it; residuals are of their E2E."""
    from maitred.config import load
    from maitred.instance.catalogue import resolve_instance
    from maitred.instance.latency import LatencyConfig, LinearLatency
    from maitred.study.calibration.fitting import Fit
    from maitred.study.calibration.outside import fit_outside, latencies_of

    if flags.config is None or not seen:
        hint = "maitred calibrate --alpha-only --config FILE --clients run.csv"
        raise ConfigError("it needs an engine and what clients saw", where="--alpha-only", hint=hint)
    engine = resolve_instance(load(flags.config).instance)
    known = engine.latency or LinearLatency()
    if not isinstance(known, LatencyConfig) or known.__struct_config__.tag == "roofline":
        raise ConfigError("this latency model has no α", where=str(flags.config), hint="linear, table or trained-physics")
    latency, outside = fit_outside(known, seen, engine)
    for line in _outside_lines(outside):
        typer.echo(line)
    measured, predicted = latencies_of(latency, seen, engine)
    return Fit.of(latency, measured, predicted, engine)


def _write(fit: Fit, out: Path | None, plot: Path | None, measured: Sequence[Path], *, force: bool) -> None:
    """Write what was asked for. Raises ConfigError for a poor fit, unless it is to be written all the same."""
    written: list[Path] = []
    name = ", ".join(path.name for path in measured)
    if plot is not None:
        from maitred.study.calibration.fitting import plot_residuals

        plot_residuals(fit, plot, name)
        written.append(plot)
    if out is not None:
        from maitred.study.calibration.fitting import write_fit

        if fit.residuals.quality == "poor" and not force:
            problem = f"the fit is poor ({_how_wrong(fit.residuals)}) and is not written"
            raise ConfigError(problem, where=str(out), hint="try --latency-model table, or --force to write it all the same")
        written += write_fit(fit, out, name)
    if written:
        typer.echo(printable(f"written: {' and '.join(str(path) for path in written)}"))


def _how_wrong(found: Residuals) -> str:
    return f"mean error {found.mape:.1%}" + (f", misfit of equal steps {found.equal.misfit:.1%}" if found.equal else "")


def _with_engine(fit: Fit, config: Path | None) -> Fit:
    """Return the fit for the engine of the file, if there is one."""
    if config is None:
        return fit
    from msgspec.structs import replace

    from maitred.config import load

    return replace(fit, engine=load(config).instance)


def _client_timelines(measured: Sequence[Path], clients: Sequence[Path]) -> list[list[MeasuredRequest]]:
    """Return the timelines of clients: the files of --clients, and those among the measured ones that clients have written."""
    from maitred.study.calibration.importers import is_steps, read_any_timeline

    found = [read_any_timeline(path) for path in clients]
    found += [read_any_timeline(path) for path in measured if not path.is_dir() and not is_steps(path)]
    return [rows for rows in found if rows[0].seen_by_client]


def _outside_lines(outside: OutsideTimes) -> Iterator[str]:
    alpha, per_token = outside.alpha, outside.alpha_per_token
    yield f"outside the steps: a request waits {alpha:,.0f} µs + {per_token:.3g} · prompt tokens (α)"
    if outside.per_step or outside.per_sequence:
        each = f" + {outside.per_sequence:,.0f} · sequences" if outside.per_sequence else ""
        yield f"between the steps: {outside.per_step:,.0f} µs{each}, which are part of the model now"


def _fit(measured: Sequence[Path], name: str, on: tuple[str, str, int]) -> Fit:
    from maitred.study.calibration.importers import is_steps, read_any_steps

    first = measured[0]
    if first.is_dir():
        if len(measured) > 1:
            raise ConfigError("one folder makes one table", where=str(measured[1]), hint="give one folder")
        return _fit_profile(first, name)
    kinds = [is_steps(path) for path in measured]
    if not all(kinds):
        if any(kinds):
            raise ConfigError("steps and timelines do not go together", hint="what clients saw goes with --clients")
        return _fit_timeline(measured, name)
    return _fit_steps([step for path in measured for step in read_any_steps(path)], name, first.name, on)


def _fit_steps(steps: Sequence[MeasuredStep], name: str, source: str, on: tuple[str, str, int]) -> Fit:
    from msgspec.structs import replace

    from maitred.instance.catalogue import find_deployment
    from maitred.study.calibration.fitting import fit_linear, fit_table, fit_trained_physics

    if name == "table":
        return fit_table(steps, source)
    if name == "linear":
        return fit_linear(steps)
    engine = _instance_config(*on)
    return replace(fit_trained_physics(steps, find_deployment(engine)), engine=engine)


def _fit_profile(folder: Path, name: str) -> Fit:
    from maitred.study.calibration.measured_run import fit_profile

    if name != "table":
        raise ConfigError("layer profiles make a table", where="--latency-model", hint="--latency-model table")
    return fit_profile(folder)


def _fit_timeline(measured: Sequence[Path], name: str) -> Fit:
    from maitred.study.calibration.fitting import fit_timeline
    from maitred.study.calibration.importers import read_any_timeline

    timelines = [read_any_timeline(path) for path in measured]  # first, so that a file of another kind is not called one
    if name != "linear":
        hint = "fit linear, or give measured steps: prefill_tokens, decode_tokens, context_tokens, step_us"
        raise ConfigError(f"a timeline of requests does not show enough for {name}", where=str(measured[0]), hint=hint)
    return fit_timeline(*timelines)


def _instance_config(model: str, hardware: str, tensor_parallel_size: int) -> InstanceConfig:
    from maitred.instance import InstanceConfig

    if not model:
        hint = "such as --model meta-llama/llama-3.1-8b --hardware H100"
        raise ConfigError("trained-physics is fitted for a model on a GPU", where="--model", hint=hint)
    return InstanceConfig(model=model, hardware=hardware, tensor_parallel_size=tensor_parallel_size)


def _report_lines(fit: Fit) -> Iterator[str]:
    from maitred.instance.latency import LinearLatency

    found, latency = fit.residuals, fit.latency
    yield _model_line(latency)
    yield f"{found.count} measurements, relative error {found.mean:+.2%} on average, standard deviation {found.sd:.2%}"
    yield f"its size: mean {found.mape:.2%}, p50 {found.p50:.2%}, p90 {found.p90:.2%}, p99 {found.p99:.2%}"
    few = f" ({found.outliers:,} outliers count little)" if found.outliers else ""
    if found.equal is None:
        yield f"R² {found.r_squared:.5f}, Pearson's r {found.pearson:.5f}: {found.quality}{few}"
    else:
        yield f"R² {found.r_squared:.5f}, Pearson's r {found.pearson:.5f}{few}"
        yield f"equal steps: their mean is off by {found.equal.misfit:.1%}: {found.quality}"
        yield (
            f"({found.equal.groups:,} groups with {found.equal.covered:.0%} of the steps; a step differs from its group's mean "
            f"by {found.equal.noise:.0%})"
        )
    if isinstance(latency, LinearLatency):
        for what in (cost for cost, b in zip(_COSTS, latency.beta, strict=True) if not b):
            yield f"warning: from these measurements {what} costs nothing; do they have steps with and without?"


def _model_line(latency: LatencyConfig) -> str:
    from maitred.instance.latency import LinearLatency, TrainedPhysicsLatency

    if isinstance(latency, LinearLatency):
        return f"linear: {' + '.join(f'{b:g}{of}' for b, of in zip(latency.beta, _LINEAR, strict=True))} µs"
    if isinstance(latency, TrainedPhysicsLatency):
        return f"trained-physics: {', '.join(f'{name} {b:g}' for name, b in zip(_PHYSICS, latency.beta, strict=True) if b)}"
    return "table"
