"""`maitred check`: whether a configuration is valid, and a summary of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli.serve import admin_need
from maitred.cli.terminal import exit_if_any
from maitred.core.errors import ConfigError
from maitred.core.printing import printable
from maitred.scheduler.link_config import without_password

if TYPE_CHECKING:
    from maitred.admission import AdmissionConfig
    from maitred.config import Config, ConfigSources
    from maitred.core.yaml_document import ReadableFile
    from maitred.instance import InstanceConfig
    from maitred.scheduler.link_config import SchedulerConfig


def run(
    file: Annotated[str | None, typer.Argument(help="The YAML file to check.", metavar="FILE", show_default=False)] = None,
    admission_config: Annotated[
        str | None,
        typer.Option(
            "--admission-config",
            "--priority-scheduler-config",
            help="The section admission as a YAML file, as `maitred serve` takes it.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            help="Slots of a model, for which is printed what each class may hold. Default: those of the configuration.",
            metavar="SLOTS",
            show_default=False,
            min=1,
        ),
    ] = None,
) -> None:
    """Check a configuration, together with the MAITRED_ variables, and print a summary of it.

    If it is invalid, print every error with its place, and exit with 2.
    """
    from msgspec.structs import replace

    from maitred.compat.instance_rules import instance_rules
    from maitred.config.root import known_capacity, overcommit_error
    from maitred.config.shadow_file import shadow_problems
    from maitred.gateway.access.caller_sources import source_problems
    from maitred.gateway.admin.port_certificates import certificate_problems
    from maitred.gateway.cluster.link_setup import link_problems
    from maitred.gateway.observe.outputs import output_problems
    from maitred.sim.disaggregation import check_disaggregation
    from maitred.sim.instance_groups import name_problems

    sources = _sources(file, admission_config)
    if capacity is not None and not sources.merged().is_given("admission", "mode"):
        sources = replace(sources, flags={"admission.mode": "priority"})  # The files of SMG do not say it: it is a flag there.
    config = sources.load()
    instance_rules(config.instance).new_parts(config.instance)  # what its parts find out only together
    check_disaggregation(config.cluster, config.instance)
    overcommit = overcommit_error(config, known_capacity(config) if capacity is None else capacity)
    found = [*([] if overcommit is None else [overcommit]), *certificate_problems(config.gateway, datetime.now(UTC))]
    is_shared = sources.merged().is_given("scheduler")
    if not config.gateway.host:
        hint = "127.0.0.1, or 0.0.0.0 for all addresses of this machine"
        found.append(ConfigError("'' is no address", where="gateway.host", hint=hint))
    found += [*source_problems(config.gateway), *output_problems(config.gateway)]
    found += [*name_problems(config.cluster, config.instance)]
    exit_if_any([*found, *(link_problems(config.scheduler) if is_shared else ()), *shadow_problems(config)])
    typer.echo(f"{printable(', '.join(str(path) for path in (sources.file, sources.admission_file) if path))}: ok")
    slots = _capacity(config) if capacity is None else capacity
    for line in (*_summary_lines(config, slots), *(_scheduler_lines(config.scheduler) if is_shared else ())):
        typer.echo(f"  {printable(line)}")
    # Beside a file of admission alone, the gateway is given in flags of `maitred serve`.
    has_gateway = sources.file is not None and sources.merged().is_given("gateway")
    if is_shared and len(config.scheduler.addresses) > 1 and config.scheduler.election is None:
        warning = "scheduler.election is not given: gateways take no scheduler without one where there are several addresses"
        typer.echo(f"maitred: warning: {warning}", err=True)
    for warning in (*_warnings(config, slots), *(_gateway_warnings(config) if has_gateway else ())):
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)


def _sources(file: str | None, admission_config: str | None) -> ConfigSources:
    """Return the sources of a configuration, which has no errors. Raises Exit(2), with every error printed, if it has any."""
    from maitred.config import ConfigSources

    sources = ConfigSources(
        file=_file_path("FILE", file), admission_file=_file_path("--admission-config", admission_config), env=dict(os.environ)
    )
    if sources.file is None and sources.admission_file is None:
        raise ConfigError("there is nothing to check", hint="maitred check FILE, or --admission-config FILE, or both")
    if sources.file is not None and _is_admission_alone(sources.files.at(sources.file)):
        hint = f"maitred check --admission-config {sources.file}"
        raise ConfigError("this is the section admission alone", where=str(sources.file), hint=hint)
    exit_if_any(sources.problems())
    return sources


def _file_path(name: str, given: str | None) -> Path | None:
    if given == "":
        raise ConfigError("'' names no file", where=name, hint="name the YAML file to check")
    return None if given is None else Path(given)


def _is_admission_alone(file: ReadableFile) -> bool:
    """Return whether a file has keys of the section admission, and no section. Raises ConfigError if it is no YAML."""
    from maitred.admission import AdmissionConfig
    from maitred.config import Config
    from maitred.core.yaml_document import YamlDocument
    from maitred.core.yaml_schema import section_keys

    tree = YamlDocument.read(file).tree
    keys = tree.keys() if isinstance(tree, dict) else set()
    return not keys & section_keys(Config).keys() and bool(keys & section_keys(AdmissionConfig).keys())


def _summary_lines(config: Config, capacity: int) -> Iterator[str]:
    gateway, engine, cluster = config.gateway, config.engine, config.cluster
    slots = f"{gateway.slots_per_backend} slots" if gateway.slots_per_backend else "the slots it reports (else 64)"
    yield f"gateway    {gateway.host}:{gateway.port}, {_count(len(gateway.backends), 'backend')}, {slots} on each"
    if gateway.admin_port is not None:
        address = f"{gateway.admin_host or gateway.host}:{gateway.admin_port}"
        yield f"           the operator's pages on {address}, {admin_need(gateway)}"
    yield from _admission_lines(config.admission, capacity)
    if gateway.shadow is not None:
        yield f"shadow     by {gateway.shadow}"
    programs = config.programs
    if programs.mode != "off":
        yield f"programs   {programs.mode}, flavour {programs.flavour}, acting estimator {programs.estimator}"
    yield f"routing    {config.routing.policy}" + (f", scorers {config.routing.scorers}" if config.routing.scorers else "")
    yield from _instance_lines(config.instance)
    yield f"engine     {engine.model!r} on {engine.host}:{engine.port}"
    learned = "slots are learned" if cluster.limits_slots else "no admission"
    admission = learned if cluster.capacity is None else f"{cluster.capacity} slots"
    yield f"cluster    {_count(cluster.num_instances, 'instance')}, {admission}"


def _scheduler_lines(link: SchedulerConfig) -> Iterator[str]:
    tls = "plain" if link.tls_cert is None and link.tls_ca is None else "TLS"
    elected = "the only one" if link.election is None else f"elected in {without_password(link.election)}"
    yield f"scheduler  on {link.listen}, {tls}, {elected}, pages on {link.pages_host}:{link.pages_port}"
    asked = ", ".join(map(without_password, link.addresses)) or "itself (no addresses)"
    yield f"           a gateway asks {asked}; without one for {link.degraded_after_secs:g} s: {link.degraded}"


def _instance_lines(instance: InstanceConfig) -> Iterator[str]:
    from maitred.instance.flavours import flavour_keys

    yield f"instance   {instance.scheduler}, {instance.max_num_seqs} sequences, {instance.max_num_batched_tokens} tokens a step"
    if instance.flavour is not None:
        keys = ", ".join(f"{key} {getattr(instance, key)}" for key in flavour_keys(instance.flavour))
        yield f"           flavour {instance.flavour}" + (f": {keys}" if keys else "")


def _capacity(config: Config) -> int:
    """Return the slots of a model that all backends serve, as far as they are known without asking the backends."""
    from maitred.scheduler.config import DEFAULT_SLOTS_PER_BACKEND

    return max(1, len(config.gateway.backends)) * (config.gateway.slots_per_backend or DEFAULT_SLOTS_PER_BACKEND)


def _admission_lines(config: AdmissionConfig, capacity: int) -> Iterator[str]:
    if config.policy != "always-admit":
        yield f"policy     {config.policy}"
    if config.mode == "off":
        yield "admission  off"
    elif config.mode == "legacy":
        yield _legacy_line(config)
    elif config.mode == "flow-control":
        yield _flow_control_line(config)
    else:
        yield f"admission  priority, flavour {config.flavour}, of {capacity} slots"
        yield from _class_lines(config, capacity)


def _legacy_line(config: AdmissionConfig) -> str:
    legacy = config.legacy
    limit = f"{legacy.max_concurrent_requests} in flight" if legacy.max_concurrent_requests > 0 else "no limit"
    rate = f", {legacy.rate_limit_tokens_per_second:g} per second" if legacy.rate_limit_tokens_per_second else ""
    return f"admission  legacy: {limit}{rate}, {legacy.queue_size} may wait, {legacy.queue_timeout_secs:g} s at most"


def _flow_control_line(config: AdmissionConfig) -> str:
    limits = config.flow_control
    detector = config.detector
    waiting, used = limits.queue_depth_threshold, limits.kv_cache_util_threshold
    saturated = {
        "never": "",
        "concurrency": f" (at {limits.max_concurrency} in flight per instance)",
        "utilization": f" (at {waiting:g} waiting or {used:.0%} of the KV blocks)",
    }[detector]
    return f"admission  flow control, flavour {config.flavour}, saturated by {detector}{saturated}"


def _class_lines(config: AdmissionConfig, capacity: int) -> Iterator[str]:
    """Yield a line for each class: its share of the slots, its queue, and whether it may preempt."""
    from maitred.admission import Admission

    reserved_above = 0
    for c, view in Admission(config, {"": capacity}).view("").classes.items():
        rules = config.class_rules(c)
        reserved = f"{view.reserved:>5} reserved" + (f" (of {view.desired} wished)" if view.reserved < view.desired else "")
        held = f"may hold up to {capacity - reserved_above}"
        preempts = ", may preempt" if rules.can_preempt else ""
        yield f"  {c.label:<12}{reserved}, {held}, {view.queue_size} may wait, {rules.queue_timeout_secs:g} s at most{preempts}"
        reserved_above += view.reserved
    yield f"  {'':<12}{capacity - reserved_above:>5} for any class"


def _warnings(config: Config, capacity: int) -> Iterator[str]:
    yield from config.admission.warnings()
    yield from config.instance.warnings(prefix_cache=config.instance.caches_prefixes)
    yield from config.routing.warnings()
    if config.admission.mode == "priority":
        yield from _overcommit_warnings(config.admission, capacity)


def _gateway_warnings(config: Config) -> Iterator[str]:
    """Yield what keeps a gateway from serving as it is meant, in a configuration that has something to say about it."""
    from maitred.gateway.access.caller_sources import source_warnings
    from maitred.gateway.admin.possible_tenants import tenant_warnings
    from maitred.wire.clock import Clock

    if not config.gateway.backends and not config.gateway.discover:
        yield "gateway.backends names no backend: maitred serve needs one, there or as --backend URL"
    yield from tenant_warnings(config.gateway, config.admission)
    yield from source_warnings(config.gateway, Clock().wall())


def _overcommit_warnings(admission: AdmissionConfig, capacity: int) -> Iterator[str]:
    """Yield a warning if the reservations are more than `capacity`."""
    from maitred.admission import bootstrap_problem, overcommit_problem

    problem = overcommit_problem(admission, capacity)
    refused = problem if admission.preset.bootstrap_capacity is None else bootstrap_problem(admission)
    if refused and admission.falls_back_on_overcommit:
        yield f"{refused}: maitred serve would use legacy admission"
    elif problem:
        yield f"{problem}: they would be scaled down"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
