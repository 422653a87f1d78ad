"""`maitred models`: the models and GPUs in the catalogue, and how much KV fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli.terminal import printable

if TYPE_CHECKING:
    from rich.table import Table

    from maitred.instance.latency import HardwareSpec, ModelSpec

_BLOCK_SIZE = 16
_WIDE = 200
"""Columns if the output is no terminal."""
_MOST_GPUS = 16


def run(
    model: Annotated[
        str | None, typer.Argument(help="Only this one: a name, or the path of a Hugging Face config.json.", metavar="MODEL")
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size", "--tp", help="Number of GPUs. Default: the fewest that it fits on.", metavar="N", min=1
        ),
    ] = None,
) -> None:
    """List the models that --model knows, and for each kind of GPU that --hardware knows how many thousand tokens of KV fit
    beside it, and on how many GPUs.
    """
    from rich.console import Console

    from maitred.instance.catalogue import find_model, model_names

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    names = model_names() if model is None else [model]
    console.print(_table([find_model(name) for name in names], tensor_parallel_size))
    typer.echo(printable("KV: thousand tokens @ GPUs, as the simulator computes them without --total-kv-blocks."))


def _table(models: list[ModelSpec], gpus: int | None) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from maitred.instance.catalogue import find_hardware, hardware_names

    hardware = [find_hardware(name) for name in hardware_names()]
    table = Table("model", "parameters", "context", *(h.name for h in hardware), box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].style, table.columns[0].no_wrap = "bold", True
    for column in table.columns[1:]:
        column.justify = "right"
    for model in models:
        context = f"{model.max_position_embeddings:,}" if model.max_position_embeddings else "?"
        table.add_row(
            model.name, f"{model.params / 1e9:,.1f} B", context, *(_kv_capacity(model, each, gpus) for each in hardware)
        )
    return table


def _kv_capacity(model: ModelSpec, hardware: HardwareSpec, gpus: int | None) -> str:
    """Return how many thousand tokens of KV fit on `gpus` GPUs, or on the fewest that the model fits on; "-" for none."""
    from maitred.core.errors import ConfigError
    from maitred.instance.catalogue import num_kv_blocks
    from maitred.instance.latency import Deployment

    for count in [gpus] if gpus is not None else [1 << n for n in range(_MOST_GPUS.bit_length())]:
        try:
            on = Deployment(model=model, hardware=hardware, tensor_parallel_size=count)
            return f"{num_kv_blocks(on, _BLOCK_SIZE) * _BLOCK_SIZE / 1000:,.0f} @ {count}"
        except (ConfigError, ValueError):
            continue
    return "-"
