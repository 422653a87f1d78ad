"""`maitred simulate`: a workload on a simulated cluster.

Flags become a configuration, a workload and open output files, in this order, so that a mistake is found before the first
event. Then the simulation runs, and its results are written and printed. Standard output carries results only, the same bytes
for the same run; progress and wall-clock time go to standard error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maitred.cli.config_flags import ADMISSION, CLUSTER, FLOW_CONTROL, SIMULATE
from maitred.cli.flags import SWITCH, command, flag, set_value
from maitred.cli.outputs import FileFlags, OutputFlags, Outputs, open_outputs
from maitred.cli.program_flags import PROGRAM_FLAG_NAMES, ProgramFlags, program_values
from maitred.cli.shared_flags import InstanceFlags, horizon, instance_values, parse_groups, short_horizon, slo
from maitred.cli.terminal import exit_on_signals, progress_bar, request_progress
from maitred.cli.traces import recorded_run, report_skipped
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.garbage import rare_collections
from maitred.core.printing import printable
from maitred.core.units import MILLISECOND, Micros

if TYPE_CHECKING:
    from maitred.config import Config
    from maitred.queueing.base import RequestFacts
    from maitred.report import Assessment, By, RunSetup, Summary
    from maitred.routing import Signals
    from maitred.sim import Results
    from maitred.workload import Trace
    from maitred.workload.load import Load

_SAMPLE_EVERY: Final = 5 * MILLISECOND
_INSTANCES_PER_SAMPLE: Final = 16
"""A sample costs as much as it has instances: with more than these, the first samples are farther apart."""
_MIXES: Final = {"workload.class_mix", "workload.tenant_mix"}
"""Keys that describe no workload by themselves."""
_MOST_TENANTS: Final = 200
"""More tenants than that are not looked at one by one, unless a breakdown by tenant is asked for."""
_DEFAULT_TOKENS: Final = 512
_DEFAULT_SHARE: Final = 0.5
_DEFAULT_REQUESTS: Final = 1000
_TURN_ON: Final = "--admission priority, or --capacity SLOTS"


@dataclass(frozen=True, kw_only=True)
class SimulateFlags(OutputFlags, InstanceFlags, ProgramFlags):
    """The flags that stand for no single key."""

    config: Annotated[
        Path | None, flag(CLUSTER.panel, "A file with the sections cluster, instance, routing, admission; flags win.", "FILE")
    ] = None
    admission_config: Annotated[
        Path | None,
        flag(
            ADMISSION.panel,
            "The section `admission` as a file of its own, such as SMG's.",
            "FILE",
            alias="--priority-scheduler-config",
        ),
    ] = None
    instance_groups: Annotated[
        str | None, flag(CLUSTER.panel, "Unequal instances, as kinds of GPU: 2xH100:3 is three of two H100.", "[TPx]GPU:N,...")
    ] = None
    policy_config: Annotated[
        Path | None, flag(ADMISSION.panel, "A policy bundle of BLIS: admission, routing, scheduler, ...", "FILE")
    ] = None
    flow_control: Annotated[bool | None, flag(FLOW_CONTROL.panel, "The same as --admission flow-control.", SWITCH)] = None
    slo_targets: Annotated[
        str | None,
        flag(FLOW_CONTROL.panel, "Longest TTFT in µs by SLO class: critical=100000,standard=500000.", "CLASS=µs,..."),
    ] = None


@command(SimulateFlags, *SIMULATE)
def run(flags: SimulateFlags) -> None:
    """Simulate a cluster under a workload, and print the latencies and rates that its users would see.

    The workload is a recorded trace (--trace), a file that describes clients (--workload-spec), or one stream of requests
    (--rate and --num-requests).
    """
    from maitred.core.decisions import DecisionLog, SealedLines
    from maitred.report import By, StreamingSummary, assess, fitness, summarise
    from maitred.report.costs import cost_warnings
    from maitred.sim import simulate
    from maitred.workload.load import as_flag, build_jobs, open_load_trace, read_workload_spec

    last, per, stated = horizon(flags), breakdown(flags), build_config(flags)
    config = _resolve_names(stated, flags)
    flags = _with_some_workload(flags, config)
    load, workload = flags.load, read_workload_spec(flags.load, as_flag)
    weights, warmup = flags.weights, flags.warmup_rule
    about_fleet = *config.instance.step_time_warnings(), *cost_warnings(config.cluster, config.instance)
    print_warnings([*_warnings(flags, stated), *about_fleet, *short_horizon(flags)])
    with exit_on_signals(), rare_collections(), ExitStack() as stack:
        trace = stack.enter_context(open_load_trace(load, as_flag)) if load.trace is not None else None
        if trace is not None and not trace.knows_prompts and "instance.enable_prefix_caching" in flags.values:
            print_warnings(["a prefix cache finds nothing: this trace does not say what its prompts have in common"])
        targets = slo(flags, trace or workload)
        # Rows that are not kept cannot be broken down later, so every breakdown that may be written is counted from the start.
        streaming = StreamingSummary(targets, [*By] if flags.metrics_file else [per]) if flags.summary_only else None
        jobs = build_jobs(load, flags.seed, trace, workload, as_flag)
        files = open_outputs(flags, _inputs(flags), trace, stack)
        recording = stack.enter_context(recorded_run(jobs, flags.trace_target, summary_only=bool(flags.summary_only)))
        decisions = SealedLines(files.decisions.write) if files.decisions else None
        began = monotonic()
        with progress_bar(quiet=bool(flags.quiet)) as show:
            results = recording.results = simulate(
                recording.jobs,
                *(config.cluster, config.instance, config.routing, config.admission, config.programs),
                seed=flags.run_seed,
                horizon=last,
                progress=request_progress(load, trace, show),
                log=DecisionLog(decisions.write) if decisions else None,
                sink=streaming.add if streaming else None,
                sample_every=_sample_distance(flags, files, config.cluster.num_instances),
                log_itl=streaming is None,
            )
        took = monotonic() - began
        if decisions is not None:
            decisions.close()
        summary = streaming.summary(results) if streaming else summarise(results, targets, _breakdowns(flags, per, results))
        score, setup = None if weights is None else fitness(summary, weights), _setup(flags, stated, config, last)
        assessment = assess(results, summary, setup, warmup)
        files.write(flags, results, summary, setup, assessment, score)
    _print_summary(flags, trace, summary, per, assessment, took)
    if score is not None and not (flags.quiet or flags.prints_a_file):
        typer.echo(score.in_words())


def _sample_distance(flags: SimulateFlags, files: Outputs, num_instances: int) -> Micros | None:
    """Return the first distance of the samples, or None if nothing is printed or written that looks at them."""
    if not files.need_samples and (flags.quiet or flags.prints_a_file):
        return None
    return _SAMPLE_EVERY * (1 + num_instances // _INSTANCES_PER_SAMPLE)


def _breakdowns(flags: SimulateFlags, per: By, results: Results) -> list[By]:
    """Return the breakdowns that are printed or written, and those that verdicts look at beside that by class."""
    from maitred.report import By

    if flags.metrics_file or flags.report:
        return [*By]
    return [per, By.TENANT] if 1 < len(results.tenants) <= _MOST_TENANTS else [per]


def _with_some_workload(flags: SimulateFlags, config: Config) -> SimulateFlags:
    """Return the flags with a workload: their own, or for a model alone half of what the cluster takes, said on stderr."""
    from maitred.instance.throughput_limit import RequestMix
    from maitred.sim.instance_groups import fleet_limit

    given = {key for key in flags.values if key.startswith("workload.")}
    if given - _MIXES or not config.instance.has_model:
        return flags
    limit = fleet_limit(config.cluster, config.instance, RequestMix(prompt=_DEFAULT_TOKENS, output=_DEFAULT_TOKENS))
    rate = float(f"{_DEFAULT_SHARE * limit:.2g}")
    workload = {"workload.rate": rate, "workload.num_requests": _DEFAULT_REQUESTS}
    what = f"--rate {rate:g} --num-requests {_DEFAULT_REQUESTS}, prompts and outputs of {_DEFAULT_TOKENS} tokens on average"
    whence = f"{_DEFAULT_SHARE:.0%} of what the instances could take"
    typer.echo(f"maitred: note: no workload is given, so it is {what}: {whence}", err=True)
    return replace(flags, values={**flags.values, **workload})


def build_config(flags: SimulateFlags) -> Config:
    """Return the configuration of the flags, with the files and the environment beneath them, as it is stated: what follows
    from names is missing. Raises ConfigError."""
    from maitred.config import ConfigSources
    from maitred.config.sources import with_simulation_defaults

    # Flags that stand for no single key (--flow-control) are translated first, so that errors name what was typed.
    sources = ConfigSources(
        file=flags.config,
        admission_file=flags.admission_config,
        policy_file=flags.policy_config,
        env=os.environ,
        flags=_values(flags),
        flag_names={
            **run.flag_names,
            **PROGRAM_FLAG_NAMES,
            "admission.slo_targets": "--slo-targets",
            "cluster.groups": "--instance-groups",
            "instance.latency": "--latency-model",
        },
    )
    merged = sources.merged()
    config = with_simulation_defaults(merged)
    if not merged.is_given("admission", "mode"):
        _check_admission_config(config, flags)
    if config.admission.mode != "flow-control":
        hint = "turn it on with --flow-control"
        _check_none_of(flags, "admission.flow_control.", ("slo_targets",), "flow control", hint)
    if config.programs.mode == "off":
        fields = ("acting_token_weight", "use_acting_token_decay")
        _check_none_of(flags, "programs.", fields, "programs", "turn them on with --router tr")
    return config


def _values(flags: SimulateFlags) -> dict[str, object]:
    """Return the values of configuration keys that the flags give. Raises ConfigError for flags that contradict each other."""
    values = {**instance_values(flags), **program_values(flags)}
    values = {key: value for key, value in values.items() if not key.startswith("workload.")}
    if flags.flow_control:
        set_value(values, "admission.mode", "flow-control", "--flow-control", "--admission")
    if flags.instance_groups is not None:
        values["cluster.groups"] = parse_groups(flags.instance_groups)
    if flags.slo_targets is not None:
        values["admission.slo_targets"] = _parse_slo_targets(flags.slo_targets)
    return values


def _parse_slo_targets(text: str) -> dict[str, int]:
    targets: dict[str, int] = {}
    for part in text.split(","):
        name, equals, micros = (word.strip() for word in part.partition("="))
        if not (name and equals and micros.isdecimal()):
            hint = "as critical=100000,standard=500000"
            raise ConfigError(f"{part!r} is no CLASS=µs", where="--slo-targets", hint=hint)
        targets[name] = int(micros)
    return targets


def _resolve_names(config: Config, flags: SimulateFlags) -> Config:
    """Return `config` with what follows from the names of model and hardware. Raises ConfigError, naming the flag if a flag
    gave the name."""
    from msgspec.structs import replace as with_changed

    from maitred.sim.instance_groups import resolve_fleet

    try:
        cluster, instance = resolve_fleet(config.cluster, config.instance)
        return with_changed(config, cluster=cluster, instance=instance)
    except ConfigError as error:
        key = f"instance.{error.where}"
        if key not in flags.values:
            raise
        raise error.at(run.flag_names[key]) from error


def _check_admission_config(config: Config, flags: SimulateFlags) -> None:
    """Raise ConfigError for an admission file that would have no effect, because nothing turns admission on."""
    if not config.cluster.limits_slots and flags.admission_config is not None and config.admission.never_refuses:
        hint = f"turn it on with {_TURN_ON}"
        raise ConfigError("without admission it has no effect", where="--admission-config", hint=hint)


def _check_none_of(flags: SimulateFlags, section: str, fields: Iterable[str], without: str, hint: str) -> None:
    """Raise ConfigError for a flag that has no effect: one that stands for a key of the section, or has one of these fields."""
    given = [run.flag_names[key] for key in run.key_flags if key.startswith(section) and key in flags.values]
    given += [f"--{name.replace('_', '-')}" for name in fields if getattr(flags, name) is not None]
    if given:
        raise ConfigError(f"without {without} it has no effect", where=given[0], hint=hint)


def _warnings(flags: SimulateFlags, config: Config) -> Iterator[str]:
    """Yield a warning for each setting that has no effect or is probably a mistake. `config` is as stated."""
    from random import Random

    from maitred.routing import Signals
    from maitred.routing.base import signals_read
    from maitred.sim.instance_groups import weight_warnings

    caching = config.instance.caches_prefixes
    yield from config.admission.policy_warnings()
    if config.admission.mode == "flow-control" and config.cluster.capacity is not None and not config.admission.tenant_budgets:
        yield "a capacity has no effect: flow control goes by how loaded the instances are"
    reads = signals_read(config.routing.router(Random(0)))
    by_load = config.admission.mode == "flow-control" or config.admission.policy != "always-admit"
    reads |= Signals.LOAD if by_load else Signals.NOTHING
    yield from config.cluster.warnings(is_admission_off=config.admission.mode == "off", reads=reads)
    yield from config.instance.warnings(prefix_cache=caching)
    yield from config.instance.warnings_without(_missing_facts(flags.load))
    is_drawn = flags.load.rate is not None and not flags.load.prefix_tokens
    if is_drawn and caching and "instance.enable_prefix_caching" in flags.values:
        yield "a prefix cache finds nothing: no two prompts are alike without --prefix-tokens"
    if config.programs.mode == "tr" and not caching:
        yield "programs are paused to keep KV that nothing keeps between their requests: give --enable-prefix-caching"
    yield from config.routing.warnings(_missing_signals(flags.load, caching=caching))
    yield from weight_warnings(config.routing, config.cluster)


def _missing_facts(load: Load) -> RequestFacts:
    """Return the facts that no request of this load states: drawn requests have classes and tenants only if flags say so."""
    from maitred.queueing.base import RequestFacts

    if load.rate is None:
        return RequestFacts.NOTHING
    given = RequestFacts.NOTHING
    given |= RequestFacts.PRIORITY_CLASS if load.class_mix else RequestFacts.NOTHING
    given |= RequestFacts.TENANT if load.tenant_mix else RequestFacts.NOTHING
    return ~given


def _missing_signals(load: Load, *, caching: bool) -> Signals:
    """Return the signals that no router can have here: drawn requests have prompts and tenants only if the flags give them."""
    from maitred.routing import Signals

    missing = Signals.NOTHING if caching else Signals.CACHES
    if load.rate is not None and not load.prefix_tokens:
        missing |= Signals.PROMPT
    if load.rate is not None and not load.tenant_mix:
        missing |= Signals.SESSION
    return missing


def breakdown(flags: FileFlags) -> By:
    """Return the rows into which `--per` splits the tables. Raises ConfigError."""
    from maitred.report import By

    if flags.per is None:
        return By.CLASS
    if flags.per not in [*By]:
        hint = nearest_name_hint(flags.per, [by.value for by in By])
        raise ConfigError(f"there is no breakdown {flags.per!r}", where="--per", hint=hint)
    return By(flags.per)


def _inputs(flags: SimulateFlags) -> dict[str, Path | None]:
    """Return the files that a run reads beside its trace, by flag."""
    return {
        "--workload-spec": flags.spec_file,
        "--config": flags.config,
        "--admission-config": flags.admission_config,
        "--policy-config": flags.policy_config,
    }


def _setup(flags: SimulateFlags, stated: Config, config: Config, last: Micros | None) -> RunSetup:
    from maitred.report import RunSetup, derived_keys
    from maitred.workload.load import describe

    sections = {name: getattr(config, name) for name in ("cluster", "instance", "routing", "admission", "programs")}
    return RunSetup(
        workload=describe(flags.load),
        command=f"maitred simulate {flags.command_line}",
        seed=flags.run_seed,
        horizon=last,
        sections=sections,
        derived=derived_keys(stated.instance, config.instance),
    )


def print_warnings(warnings: Iterable[str]) -> None:
    """Print each on a line of its own, on standard error."""
    for warning in warnings:
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)


def _print_summary(
    flags: SimulateFlags, trace: Trace | None, summary: Summary, per: By, assessment: Assessment, took: float
) -> None:
    print_warnings(summary.warnings)
    if trace:
        report_skipped(trace)
    if flags.quiet or flags.prints_a_file:
        return
    from rich.console import Console

    from maitred.report import print_run

    print_run(summary, assessment, Console(), per)
    arrived = summary.total.arrived
    typer.echo(f"{arrived:,} requests in {took:.1f} s ({arrived / max(took, 1e-3):,.0f}/s)", err=True)
