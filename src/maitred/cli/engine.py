"""`maitred engine`: an emulated inference engine on a port."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.cli.printable import printable

if TYPE_CHECKING:
    from maitred.config import Config

_SERVER = "Server"
_INSTANCE = "The instance behind it"
_DRAIN_SECS = 5.0
"""How long answers may go on after the first signal: nobody minds if an emulated engine breaks off."""


def _flag(panel: str, name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


def run(
    port: Annotated[int | None, _flag(_SERVER, "--port", "Default 9001; 0 takes any free one.", "PORT")] = None,
    host: Annotated[str | None, _flag(_SERVER, "--host", "Address to listen on. Default 127.0.0.1.", "HOST")] = None,
    model: Annotated[str | None, _flag(_SERVER, "--model", "The name of its model. Default 'emulated'.", "NAME")] = None,
    output_tokens: Annotated[
        str | None,
        _flag(_SERVER, "--output-tokens", "How long answers are that nobody cuts. Default lognormal:200,150.", "LENGTHS"),
    ] = None,
    seed: Annotated[int | None, _flag(_SERVER, "--seed", "Of the lengths of answers. Default 42.", "SEED")] = None,
    speed: Annotated[
        float | None, _flag(_SERVER, "--speed", "Twice as fast with 2. Default 1: as the latency model says.", "FACTOR")
    ] = None,
    config: Annotated[
        Path | None, _flag(_SERVER, "--config", "A file with the sections engine and instance; flags win.", "FILE")
    ] = None,
    latency: Annotated[
        str | None,
        _flag(_INSTANCE, "--latency", "Time of a step in µs: β0 + β1·prefill tokens + β2·decodes.", "linear:β0,β1,β2"),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            "--schedule-policy",
            help="Order of the wait queue, such as lpm or bounded(lpm, max_wait=5): see maitred policies.",
            metavar="POLICY",
            rich_help_panel=_INSTANCE,
            show_default=False,
        ),
    ] = None,
    priority_policy: Annotated[
        str | None,
        _flag(_INSTANCE, "--priority-policy", "Scores for priority-fcfs: constant, slo-based, inverted-slo.", "POLICY"),
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        _flag(_INSTANCE, "--enable-prefix-caching/--no-prefix-caching", "Prompts that begin alike share KV blocks."),
    ] = None,
    max_num_seqs: Annotated[int | None, _flag(_INSTANCE, "--max-num-seqs", "Most requests in the running batch.", "N")] = None,
    max_num_batched_tokens: Annotated[
        int | None, _flag(_INSTANCE, "--max-num-batched-tokens", "Token budget of a step.", "TOKENS")
    ] = None,
    total_kv_blocks: Annotated[int | None, _flag(_INSTANCE, "--total-kv-blocks", "KV blocks.", "N")] = None,
    block_size_in_tokens: Annotated[
        int | None, _flag(_INSTANCE, "--block-size-in-tokens", "Tokens in a KV block.", "TOKENS")
    ] = None,
    max_model_len: Annotated[
        int | None, _flag(_INSTANCE, "--max-model-len", "Longest prompt and answer together.", "TOKENS")
    ] = None,
) -> None:
    """Serve OpenAI's API with tokens that come when a real engine's would, and need no model.

    Chat and text completions, streaming or not, embeddings, models, and /metrics under vLLM's names.
    """
    from maitred.config import load

    said = {
        "engine.port": port,
        "engine.host": host,
        "engine.model": model,
        "engine.output_tokens": output_tokens,
        "engine.seed": seed,
        "engine.speed": speed,
        "instance.latency": _latency(latency),
        "instance.scheduler": scheduler,
        "instance.priority_policy": priority_policy,
        "instance.enable_prefix_caching": enable_prefix_caching,
        "instance.max_num_seqs": max_num_seqs,
        "instance.max_num_batched_tokens": max_num_batched_tokens,
        "instance.total_kv_blocks": total_kv_blocks,
        "instance.block_size_in_tokens": block_size_in_tokens,
        "instance.max_model_len": max_model_len,
    }
    _serve(load(config, flags={key: value for key, value in said.items() if value is not None}, env=os.environ))


def _serve(config: Config) -> None:
    from maitred.emulator.app import EngineApp
    from maitred.wire.server import serve

    engine = config.engine

    def ready(url: str) -> None:
        typer.echo(f"maitred: engine on {url}, model: {engine.model}", err=True)

    app = EngineApp(engine, config.instance)
    for warning in config.instance.warnings(prefix_cache=config.instance.enable_prefix_caching):
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)
    serve(app, host=engine.host, port=engine.port, drain_secs=_DRAIN_SECS, ready=ready)


def _latency(text: str | None) -> dict[str, Any] | None:
    """As a configuration file would say it."""
    if text is None:
        return None
    import msgspec

    from maitred.instance import parse_latency

    said: dict[str, Any] = msgspec.to_builtins(parse_latency(text))
    return said
