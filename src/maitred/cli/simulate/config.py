"""The configuration that the flags of `maitred simulate` amount to, with the files and the environment beneath them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from maitred.cli import instance_flags, model_flags
from maitred.cli.flags import of_flag
from maitred.cli.simulate import admission_flags, cluster_flags, disaggregation_flags, flow_flags, output_flags
from maitred.cli.simulate.flags import Flags
from maitred.core.errors import ConfigError
from maitred.core.units import to_ms

if TYPE_CHECKING:
    from maitred.config import Config

_PARTS = (cluster_flags, disaggregation_flags, admission_flags, flow_flags, instance_flags, model_flags, output_flags)
_KEYS = {name: key for part in _PARTS for name, key in part.KEYS.items()}
_IN_MICROS = {**cluster_flags.IN_MICROS}
_ON = "--admission priority, or --capacity SLOTS"
_FLAG_NAMES = {
    **{key: f"--{name.replace('_', '-')}" for name, key in (_KEYS | _IN_MICROS).items()},
    "admission.slo_targets": "--slo-targets",
    "instance.latency": "--latency-model",
}


def configured(flags: Flags) -> Config:
    """Raises ConfigError for what cannot be."""
    from maitred.config import ConfigSources
    from maitred.config.sources import with_simulation_defaults

    values: dict[str, object] = {key: getattr(flags, name) for name, key in _KEYS.items()}
    for name, key in _IN_MICROS.items():
        micros: int | None = getattr(flags, name)
        values[key] = None if micros is None else to_ms(micros)
    values |= instance_flags.said(flags)
    values |= flow_flags.said(flags, flags.admission)
    values["instance.latency"] = model_flags.latency(flags)
    said = ConfigSources(
        file=flags.config,
        admission_file=flags.admission_config,
        policy_file=flags.policy_config,
        env=os.environ,
        flags=values,
        flag_names=_FLAG_NAMES,
    )
    read = said.merged()
    config = _resolved(with_simulation_defaults(read), flags)
    if not read.is_given("admission", "mode"):
        _check_admission_config(config, flags)
    if config.admission.mode != "flow-control":
        flow_flags.needs_flow_control(flags)
    if flags.decision_log is not None and config.admission.admits_all:
        hint = f"turn admission on with {_ON}"
        raise ConfigError("without admission there are no decisions to log", where="--decision-log", hint=hint)
    return config


def _resolved(config: Config, flags: Flags) -> Config:
    """With what follows from its names. Raises ConfigError, naming the flag if it was one that said what is wrong."""
    from maitred.instance.catalogue import resolve_instance

    try:
        return replace(config, instance=resolve_instance(config.instance))
    except ConfigError as error:
        if error.where not in model_flags.KEYS or getattr(flags, error.where) is None:
            raise
        raise of_flag(f"--{error.where.replace('_', '-')}", error) from error


def warnings(flags: Flags, config: Config) -> Iterator[str]:
    """What works and is hardly meant, a line each."""
    from maitred.routing import Signals

    caching = config.instance.enable_prefix_caching
    yield from config.admission.policy_warnings()
    if config.admission.mode == "flow-control" and config.cluster.capacity is not None and not config.admission.tenant_budgets:
        yield "a capacity has no effect: flow control goes by how loaded the instances are"
    yield from config.instance.warnings(prefix_cache=caching)
    if flags.gpu_memory_utilization is not None and flags.total_kv_blocks is not None:
        yield "--gpu-memory-utilization has no effect beside --total-kv-blocks, which it is to find"
    unknown = Signals.NOTHING if caching else Signals.CACHES
    if flags.rate is not None:  # requests drawn one by one: what do they say, and to whose run do they belong?
        unknown |= Signals.NOTHING if flags.prefix_tokens else Signals.PROMPT
        unknown |= Signals.NOTHING if flags.tenant_mix else Signals.SESSION
    yield from config.routing.warnings(unknown)


def _check_admission_config(config: Config, flags: Flags) -> None:
    """Raises ConfigError where nobody turned admission on, and it would be off without a word."""
    if config.cluster.capacity is None and flags.admission_config is not None and config.admission.never_refuses:
        raise ConfigError("without admission it has no effect", where="--admission-config", hint=f"turn it on with {_ON}")
