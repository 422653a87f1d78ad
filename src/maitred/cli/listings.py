"""What the command line knows by name: `maitred policies` (every plug-in, kind by kind), `maitred formats` (of traces) and
`maitred models` (models and GPUs, and how much KV fits).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.printing import printable

if TYPE_CHECKING:
    from rich.table import Table

    from maitred.core.registry import Registry
    from maitred.instance.latency import HardwareSpec, ModelSpec


_POLICIES_WIDTH = 1000
"""Columns where the output is no terminal: then each plug-in has a line of its own, for other programs to read."""
_BLOCK_SIZE = 16
_SHOWN_GPUS = ("H100", "B200")
_MOST_GPUS = 16


def policies(
    name: Annotated[str | None, typer.Argument(help="Show one of them, with its parameters.", metavar="POLICY")] = None,
) -> None:
    """List the policies of the wait queue (--scheduler): their order, what they cost, which requests starve under them; then
    the plug-ins of all other kinds: priorities, admission policies, routers, scorers, latency models, trace formats and so on.

    A plug-in is named as `--scheduler NAME`, or with parameters: `--scheduler 'bounded(lpm, max_wait=5)'`. One of your own is
    MODULE:CLASS, where a file in the working directory is a module: `--scheduler my_policies:SmallFirst`.
    """
    if name is not None:
        for line in _detail_lines(name):
            typer.echo(printable(line))
        return
    from rich.console import Console

    from maitred.config.root import KINDS

    console = Console()
    if not console.is_terminal:
        console = Console(width=_POLICIES_WIDTH)
    for kind in KINDS:
        console.print(_kind_table(kind))


def _kind_table(kind: Registry[Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(f"{kind.kind} ({kind.flag})", "parameters", *kind.headings.values(), box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].style, table.columns[0].no_wrap = "bold", True
    for name in kind:
        parameters = kind.usage(name).removeprefix(name).strip("():")
        table.add_row(name, *(escape(cell) for cell in (parameters, *kind.describe(name).values())))
    return table


def _detail_lines(name: str) -> Iterator[str]:
    """Yield the lines about one plug-in. Raises ConfigError for one that there is not."""
    from maitred.config.root import KINDS
    from maitred.core.policy_spec import parse_spec

    word = parse_spec(name, "policy").word
    kind = _kind_of(word)
    if kind is None:
        raise ConfigError(f"unknown policy {word!r}", hint=nearest_name_hint(word, {known for kind in KINDS for known in kind}))
    yield kind.usage(word) if word == name.strip() else name
    first, *others = kind.describe(name).items()
    yield f"  {first[1]}"
    for heading, text in others:
        yield f"  {heading.partition(',')[0]}: {text}"
    doc = inspect.getdoc(kind.find(word))
    if doc and doc.rstrip(".") != first[1]:
        yield ""
        yield from doc.splitlines()


def _kind_of(word: str) -> Registry[Any] | None:
    """Return the kind that knows the name of a plug-in, or the path of a class; None if none knows a name."""
    from maitred.config.root import KINDS

    return _kind_of_class(word) if ":" in word else next((kind for kind in KINDS if word in kind), None)


def _kind_of_class(word: str) -> Registry[Any]:
    """Return the first kind that has the methods of the class. Raises the first ConfigError if there is none."""
    from maitred.config.root import KINDS

    problem = None
    for kind in KINDS:
        try:
            kind.find(word)
        except ConfigError as error:
            problem = problem or error
        else:
            return kind
    raise problem or ConfigError(f"unknown policy {word!r}")


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Only this one, on each kind of GPU: a name, or the path of a Hugging Face config.json.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            "--hardware", help="Only this kind of GPU. Default: H100 and B200; with MODEL, all. Repeatable.", metavar="GPU"
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size", "--tp", help="Number of GPUs. Default: the fewest that it fits on.", metavar="N", min=1
        ),
    ] = None,
) -> None:
    """List the models that --model knows, and how many thousand tokens of KV fit beside each of them, and on how many GPUs.

    With MODEL, list the kinds of GPU that --hardware knows, what they are, and the same of each of them.
    """
    from rich.console import Console

    from maitred.instance.catalogue import find_hardware, find_model, hardware_names, model_names
    from maitred.report.table import print_table

    kinds = [find_hardware(name) for name in hardware or (_SHOWN_GPUS if model is None else hardware_names())]
    if model is None:
        table = _models_table([find_model(name) for name in model_names()], kinds, tensor_parallel_size)
    else:
        table = _gpus_table(find_model(model), kinds, tensor_parallel_size)
    print_table(table, Console())
    typer.echo(printable("KV: thousand tokens @ GPUs, as simulated without --total-kv-blocks."))
    typer.echo(printable("Others: --model FOLDER (with config.json), --hardware-config FILE."))


def _models_table(listed: list[ModelSpec], kinds: list[HardwareSpec], gpus: int | None) -> Table:
    table = _listing("model", "size", "context", *(f"KV on {kind.name}" for kind in kinds))
    for model in listed:
        kv = (_kv_capacity(model, kind, gpus) for kind in kinds)
        table.add_row(model.name, f"{model.params / 1e9:,.1f} B", _context(model), *kv)
    return table


def _gpus_table(model: ModelSpec, kinds: list[HardwareSpec], gpus: int | None) -> Table:
    size = f"{model.name}\n{model.params / 1e9:,.1f} B, context {_context(model)}"
    table = _listing(size, "GiB", "TB/s", "TFLOPS\n16 bits", "TFLOPS\n8 bits", "KV")
    for kind in kinds:
        eight = f"{kind.peak_tflops_fp8:,.0f}" if kind.peak_tflops_fp8 else "-"
        figures = (f"{kind.memory_gib:,.0f}", f"{kind.bandwidth_tb_s:,.2f}", f"{kind.peak_tflops:,.0f}", eight)
        table.add_row(kind.name, *figures, _kv_capacity(model, kind, gpus))
    return table


def _listing(*headings: str) -> Table:
    """Return a table with names in the first column and figures in the others."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(*headings, box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].style, table.columns[0].no_wrap = "bold", True
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _context(model: ModelSpec) -> str:
    return f"{model.max_position_embeddings:,}" if model.max_position_embeddings else "?"


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


def formats() -> None:
    """List the trace formats, each with a description and the beginning of a file.

    A trace is named as FORMAT:FILE, or as FILE where its first line tells the format. It may be gzipped.
    """
    from maitred.workload import FORMATS

    for name in FORMATS:
        trace_format = FORMATS.create(name)
        typer.echo(printable(f"{name}: {trace_format.description}"))
        typer.echo(printable(f"    {trace_format.example}"))
