"""`maitred engine`: an emulated inference engine on a port."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli.config_flags import ENGINE, HARDWARE, INSTANCE, SGLANG
from maitred.cli.flags import command, flag
from maitred.cli.shared_flags import InstanceFlags, instance_values
from maitred.core.printing import printable

if TYPE_CHECKING:
    from maitred.config import Config
    from maitred.instance import InstanceConfig

_FOLDER = "instance.model_config_folder"
_NEED_MODEL = ("aiconfigurator", "roofline", "trained-physics")
_DRAIN_SECS = 5.0
"""How long responses may go on after the first signal: an emulated engine may break off."""


@dataclass(frozen=True, kw_only=True)
class EngineFlags(InstanceFlags):
    """The flags that stand for no single key."""

    config: Annotated[Path | None, flag(ENGINE.panel, "A file with the sections engine and instance; flags win.", "FILE")] = (
        None
    )


@command(EngineFlags, ENGINE, HARDWARE, INSTANCE, SGLANG)
def run(flags: EngineFlags) -> None:
    """Serve OpenAI's API with tokens that come at the times of a real engine, without a model.

    Chat and text completions, streaming or not, embeddings, models, and /metrics under vLLM's names.
    """
    from maitred.config import load

    values = instance_values(flags)
    if names_real_model(flags):
        values["instance.model"] = values.get("engine.model")
    names = {**run.flag_names, "instance.model": "--model", "instance.latency": "--latency-model"}
    _serve(load(flags.config, flags=values, flag_names=names, env=os.environ))


def names_real_model(flags: EngineFlags) -> bool:
    """Return whether --model is more than a name: another flag needs the figures of that model."""
    return (
        any(row.key in flags.values for row in HARDWARE.flags if row.key != _FOLDER)
        or re.split(r"[:(]", flags.latency_model or "")[0] in _NEED_MODEL
    )


def _about_overheads(instance: InstanceConfig) -> Iterator[str]:
    """Yield a warning for overheads of a request that are given: here requests have real ones.

    The overheads that trained-physics has by default are not given.
    """
    from maitred.instance.latency import AIConfiguratorLatency, LinearLatency, TrainedPhysicsLatency

    latency, default = instance.latency, (0.0, 0.0, 0.0)
    if isinstance(latency, TrainedPhysicsLatency):
        default = TrainedPhysicsLatency().alpha
    has_alpha = LinearLatency | TrainedPhysicsLatency | AIConfiguratorLatency
    if isinstance(latency, has_alpha) and latency.alpha not in (None, default, (0.0, 0.0, 0.0)):
        yield "alpha (--alpha-coeffs) has no effect here: what a request pays around an engine, a live one pays anyway"


def _serve(config: Config) -> None:
    from maitred.emulator.engine import EngineApp
    from maitred.wire.server import Listener, open_ports, run_server, serve

    engine = config.engine

    def ready(url: str) -> None:
        typer.echo(f"maitred: engine on {url}, model: {engine.model}", err=True)

    app = EngineApp(engine, config.instance)
    instance = config.instance
    for warning in (*instance.warnings(prefix_cache=instance.caches_prefixes), *_about_overheads(instance)):
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)
    ports = open_ports([Listener(engine.host, engine.port, app)])
    run_server(serve(app, ports, drain_secs=_DRAIN_SECS, on_ready=ready))
