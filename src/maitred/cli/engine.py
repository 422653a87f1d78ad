"""`maitred engine`: an emulated inference engine on a port."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli import instance_flags, model_flags
from maitred.cli.flags import command, flag
from maitred.cli.instance_flags import InstanceFlags
from maitred.cli.model_flags import ModelFlags
from maitred.cli.printable import printable

if TYPE_CHECKING:
    from maitred.config import Config
    from maitred.instance import InstanceConfig

_SERVER = "Server"
_DRAIN_SECS = 5.0
"""How long answers may go on after the first signal: nobody minds if an emulated engine breaks off."""


@dataclass(frozen=True, kw_only=True)
class _ServerFlags:
    port: Annotated[int | None, flag(_SERVER, "--port", "Default 9001; 0 takes any free one.", "PORT")] = None
    host: Annotated[str | None, flag(_SERVER, "--host", "Address to listen on. Default 127.0.0.1.", "HOST")] = None
    output_tokens: Annotated[
        str | None,
        flag(_SERVER, "--output-tokens", "How long answers are that nobody cuts. Default lognormal:200,150.", "LENGTHS"),
    ] = None
    seed: Annotated[int | None, flag(_SERVER, "--seed", "Of the lengths of answers. Default 42.", "SEED")] = None
    speed: Annotated[
        float | None, flag(_SERVER, "--speed", "Twice as fast with 2. Default 1: as the latency model says.", "FACTOR")
    ] = None
    config: Annotated[
        Path | None, flag(_SERVER, "--config", "A file with the sections engine and instance; flags win.", "FILE")
    ] = None


@dataclass(frozen=True, kw_only=True)
class EngineFlags(ModelFlags, InstanceFlags, _ServerFlags):
    """What the user said."""

    model: Annotated[
        str | None,
        flag(
            _SERVER,
            "--model",
            "The name of its model. Default 'emulated'. With --hardware its steps take what they do there.",
            "NAME",
        ),
    ] = None


@command(EngineFlags)
def run(flags: EngineFlags) -> None:
    """Serve OpenAI's API with tokens that come when a real engine's would, and need no model.

    Chat and text completions, streaming or not, embeddings, models, and /metrics under vLLM's names.
    """
    from maitred.config import load

    said = {f"engine.{name}": getattr(flags, name) for name in ("port", "host", "model", "output_tokens", "seed", "speed")}
    said |= {key: getattr(flags, name) for name, key in model_flags.KEYS.items()} | instance_flags.said(flags)
    said["instance.latency"] = model_flags.latency(flags)
    if not _is_timed(flags):
        said["instance.model"] = None
    _serve(load(flags.config, flags=said, flag_names={"instance.latency": "--latency-model"}, env=os.environ))


def _is_timed(flags: EngineFlags) -> bool:
    """Whether the model is more than a name: something is said that only counts with its figures."""
    figures = (flags.hardware, flags.hardware_config, flags.tensor_parallel_size, flags.data_parallel_size)
    return any(said is not None for said in figures) or flags.latency_model in ("roofline", "trained-physics")


def _about_overheads(instance: InstanceConfig) -> Iterator[str]:
    """What is said of a request's way in and out, which is a real one here. Nobody says those of trained-physics."""
    from maitred.instance.latency import LinearLatency, TrainedPhysicsLatency

    said, usual = instance.latency, (0.0, 0.0, 0.0)
    if isinstance(said, TrainedPhysicsLatency):
        usual = TrainedPhysicsLatency().alpha
    if isinstance(said, LinearLatency | TrainedPhysicsLatency) and said.alpha not in (usual, (0.0, 0.0, 0.0)):
        yield "alpha (--alpha-coeffs) has no effect here: what a request pays around an engine, a live one pays anyway"


def _serve(config: Config) -> None:
    from maitred.emulator.app import EngineApp
    from maitred.wire.server import run_server

    engine = config.engine

    def ready(url: str) -> None:
        typer.echo(f"maitred: engine on {url}, model: {engine.model}", err=True)

    app = EngineApp(engine, config.instance)
    instance = config.instance
    for warning in (*instance.warnings(prefix_cache=instance.enable_prefix_caching), *_about_overheads(instance)):
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)
    run_server(app, host=engine.host, port=engine.port, drain_secs=_DRAIN_SECS, on_ready=ready)
