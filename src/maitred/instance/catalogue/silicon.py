"""Step times and KV blocks from `aiconfigurator-core` (NVIDIA, Apache-2.0; the extra `silicon`): what it is asked, and how.

The package has measured kernels of 14 kinds of GPU under vLLM, SGLang and TensorRT-LLM. Loading them takes seconds, so what it
says of a deployment is kept on disk (`files/computed.py`) by everything that it depends on, and the package is imported only
when something new is asked. `SiliconTable` says how a step is put together from what is asked here:

    shared(tokens)      mixed_step_breakdown_per_op of as many prompt tokens: the operations that are not attention
    prompts(k, t, s)    predict_prefill_latency of k prompts of s + t tokens, s of them cached, less shared(k·t)
    decode(N, c)        decode_step_latency
    beside(N, c)        decode_step_per_op: the operations that are attention

Nearly all interpolated steps are within a percent of these calls. `mixed_step_latency` itself is not asked: it divides the
attention of a prompt that follows cached tokens by the steps that the whole prompt would take, and it knows no latent attention
(DeepSeek) of sequences that decode.

vLLM's matrix products in FP8 with scales of blocks (`fp8_block`: DeepSeek, MiniMax, Qwen3-FP8) were timed with their launch
from Python: none takes less than 157 µs on a B200 and 56 µs on an H100, where reading its weights takes 3 µs and SGLang's table
has 5 µs for the same kernel. vLLM runs such steps in CUDA graphs, so they are asked for with one scale (`fp8`), which takes as
long in SGLang's tables within 16 %. Experts keep the scales of blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from maitred.core.errors import ConfigError
from maitred.files.computed import computed
from maitred.files.scratch import scratch_folder
from maitred.instance.catalogue.refining import Samples, refine
from maitred.instance.latency import SiliconTable
from maitred.instance.latency.step_table import Curve, Grid

SILICON_HINT: Final = "pip install 'maitred[silicon]'"
_PACKAGE: Final = "aiconfigurator_core"
_DISTRIBUTION: Final = "aiconfigurator-core"
_FORM: Final = 9
"""Raised when tables are built in another way, so that older ones on disk are not taken."""
_ERROR: Final = 0.003
"""Share of a step by which one axis of a table may be off between its points."""


class IncompletePackageError(ConfigError):
    """The package is there and cannot be loaded, as something that it needs is missing."""

    def __init__(self, error: ImportError) -> None:
        hint = "pip install --force-reinstall 'maitred[silicon]', or --latency-model roofline"
        super().__init__(f"{_DISTRIBUTION} {installed_version()} is not installed completely: {error}", hint=hint)


class SiliconQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the step times of a deployment depend on."""

    model: str
    """A name on Hugging Face that the package knows, or any name with `files`."""
    files: tuple[tuple[str, str], ...] = ()
    """The configuration files of a model that the package does not know: names and texts."""
    system: str
    """A system of the package, such as `h100_sxm`."""
    engine: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1
    precision: str = ""
    expert_precision: str = ""
    kv_precision: str = ""
    package: str = ""
    """Version of the package; filled in by `silicon_table`."""
    form: int = _FORM

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the package, without model, system and engine."""
        gpus = self.tensor_parallel_size * self.data_parallel_size
        return {
            "tp_size": self.tensor_parallel_size,
            "pp_size": self.pipeline_parallel_size,
            "attention_dp_size": self.data_parallel_size,
            "moe_tp_size": gpus // self.expert_parallel_size,
            "moe_ep_size": self.expert_parallel_size,
            "gemm_quant_mode": self.precision or None,
            "moe_quant_mode": self.expert_precision or self.precision or None,
            "kvcache_quant_mode": self.kv_precision or None,
        }


class _MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the KV of a rank depends on."""

    deployment: SiliconQuery
    block_size: int
    max_num_tokens: int
    max_num_seqs: int
    memory_share: float


class _FoundTable(msgspec.Struct, frozen=True):
    """What the package says of a deployment: its table, or why there is none."""

    table: SiliconTable | None = None
    problem: str = ""


class _Blocks(msgspec.Struct, frozen=True):
    blocks: int = 0
    problem: str = ""


@lru_cache(maxsize=1)
def installed_version() -> str:
    """Return the version of the package, or an empty string if it is not installed."""
    try:
        return version(_DISTRIBUTION) if find_spec(_PACKAGE) else ""
    except PackageNotFoundError:
        return ""


def require_package() -> None:
    """Raise ConfigError if the package is not installed."""
    if not installed_version():
        hint = f"{SILICON_HINT}, or --latency-model roofline"
        raise ConfigError(f"the latency model aiconfigurator needs the package {_DISTRIBUTION}", hint=hint)


@lru_cache(maxsize=1)
def silicon_model_files() -> dict[str, Path]:
    """Return the config.json of each model that the package knows, by its name on Hugging Face; empty without the package."""
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        return {}
    folder = Path(found.submodule_search_locations[0]) / "model_configs"
    suffix = "_config.json"
    return {
        path.name.removesuffix(suffix).replace("--", "/"): path
        for path in sorted(folder.glob(f"*{suffix}"))
        if not path.name.endswith("_hf_quant_config.json")
    }


@lru_cache(maxsize=16)
def silicon_table(query: SiliconQuery) -> SiliconTable:
    """Return the step times of a deployment. Raises ConfigError if the package is missing, or knows nothing of it."""
    require_package()
    query = msgspec.structs.replace(in_graphs(query), package=installed_version())
    answer = computed("aiconfigurator", query, _FoundTable, lambda: _ask_table(query))
    if answer.table is None:
        raise _unknown(query, answer.problem)
    return answer.table


def silicon_blocks(query: SiliconQuery, block_size: int, max_num_tokens: int, max_num_seqs: int, memory_share: float) -> int:
    """Return the KV blocks of one rank by the memory model of the package. Raises ConfigError if the model does not fit."""
    require_package()
    asked = _MemoryQuery(
        deployment=msgspec.structs.replace(query, package=installed_version()),
        block_size=block_size,
        max_num_tokens=max_num_tokens,
        max_num_seqs=max_num_seqs,
        memory_share=memory_share,
    )
    answer = computed("aiconfigurator", asked, _Blocks, lambda: _ask_blocks(asked))
    if answer.blocks < 1:
        hint = "a larger --tensor-parallel-size, other --hardware, or give --total-kv-blocks"
        raise ConfigError(f"{query.model} on {query.system}: {answer.problem}", where="hardware", hint=hint)
    return answer.blocks


def in_graphs(query: SiliconQuery) -> SiliconQuery:
    """Return `query` with precisions whose kernels were timed as the engine runs them (see above)."""
    blocks = query.precision == "fp8_block" or (not query.precision and _has_block_scales(query))
    if blocks and query.engine == "vllm":
        return msgspec.structs.replace(query, precision="fp8", expert_precision=query.expert_precision or "fp8_block")
    if query.precision == "fp8_static" and not query.expert_precision:  # experts have no such distinction
        return msgspec.structs.replace(query, expert_precision="fp8")
    return query


def _has_block_scales(query: SiliconQuery) -> bool:
    known = silicon_model_files().get(query.model)
    text = dict(query.files).get("config.json") or (known.read_text(encoding="utf-8") if known else "{}")
    found = msgspec.json.decode(text).get("quantization_config") or {}
    return found.get("quant_method") == "fp8" and bool(found.get("weight_block_size"))


def _unknown(query: SiliconQuery, problem: str) -> ConfigError:
    what = f"AIConfigurator knows no {query.model} on {query.system} under {query.engine}: {problem}"
    return ConfigError(
        what, where="latency", hint="another engine or precision of aiconfigurator(...), or --latency-model roofline"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the warnings of the package about rows that it fills in from another engine off standard error."""
    logger = logging.getLogger(_PACKAGE)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _name_of(query: SiliconQuery) -> AbstractContextManager[str]:
    """Name the model to the package: a model with files by a folder that has these, under a path that no other had, because the
    package reads each path once."""
    return scratch_folder(query.files) if query.files else nullcontext(query.model)


def _ask_table(query: SiliconQuery) -> _FoundTable:
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError as error:
        raise IncompletePackageError(error) from error
    problem = ""
    with _quiet(), _name_of(query) as model:
        for attention in _attention_precisions(query):
            try:
                handle = EngineHandle.compile(model, query.system, query.engine, **{**query.arguments(), **attention})
                ranks = query.data_parallel_size * query.pipeline_parallel_size
                return _FoundTable(table=build_table(handle, ranks, _source(query)))
            except ImportError as error:
                raise IncompletePackageError(error) from error
            except Exception as error:  # the package raises whatever its parts raise
                problem = problem or _first_line(error)
    return _FoundTable(problem=problem)


def _attention_precisions(query: SiliconQuery) -> list[dict[str, str]]:
    """Return the precisions of attention to be tried: as the model's configuration has it, and 16 bits where there are no
    measurements of that, as the package itself falls back."""
    found = [{}, {"fmha_quant_mode": "bfloat16"}]
    return found if query.kv_precision else [*found, {"fmha_quant_mode": "bfloat16", "kvcache_quant_mode": "bfloat16"}]


def _source(query: SiliconQuery) -> str:
    return f"AIConfigurator {query.package}: {query.engine} {_release(query)} on {query.system}"


def _release(query: SiliconQuery) -> str:
    """Return the release of the engine under which the kernels were measured."""
    from aiconfigurator_core.sdk.perf_database import resolve_query_version

    return str(resolve_query_version(query.system, query.engine, "current"))


def _first_line(error: Exception) -> str:
    said = str(error).strip() or type(error).__name__
    return said.splitlines()[0][:300]


def _ask_blocks(asked: _MemoryQuery) -> _Blocks:
    try:
        from aiconfigurator_core.sdk.memory import estimate_num_gpu_blocks
    except ImportError as error:
        raise IncompletePackageError(error) from error
    query = asked.deployment
    try:
        with _quiet(), _name_of(query) as model:
            return _Blocks(
                estimate_num_gpu_blocks(
                    model,
                    query.system,
                    query.engine,
                    _release(query),
                    scheduler_block_size=asked.block_size,
                    max_num_tokens=asked.max_num_tokens,
                    max_batch_size=asked.max_num_seqs,
                    memory_fraction_kind="of_free" if query.engine == "trtllm" else "of_total",
                    memory_fraction_value=asked.memory_share,
                    **query.arguments(),
                )
            )
    except ImportError as error:
        raise IncompletePackageError(error) from error
    except Exception as error:  # as above
        return _Blocks(problem=_first_line(error))


_TOKENS: Final = (1, *(1 << power for power in range(3, 17)))
_CHUNKS: Final = (1, 2, 4, 8, 16, 32, 64)
_CHUNK_TOKENS: Final = tuple(1 << power for power in range(16))
_TOKENS_BEFORE: Final = (0, 1, *(1 << power for power in range(4, 19)))
_SHORTEST: Final = 1 / 16
_SEQUENCES: Final = tuple(1 << power for power in range(11))
_CONTEXTS: Final = (1, *(1 << power for power in range(6, 19)))
"""Points that every table has, up to the largest sizes that engines run; beyond, times go straight on."""
_SAMPLED_SEQUENCES: Final = (1, 4, 16, 24, 32, 64, 128, 256, 512, 1024)
_SAMPLED_CONTEXTS: Final = (64, 512, 1024, 2048, 8192, 20000)


_ATTENTION: Final = ("attention", "mla")
"""Parts of the names of operations that depend on the tokens before."""


def build_table(handle: Any, ranks: int, source: str) -> SiliconTable:
    """Return the step times that `handle`, an `EngineHandle` of the package, answers."""

    def is_attention(name: str) -> bool:
        return any(part in name for part in _ATTENTION)

    @cache
    def shared(tokens: int) -> float:
        return _micros(
            sum(ms for name, ms, *_ in handle.mixed_step_breakdown_per_op(tokens, 0, tokens, 1)[0] if not is_attention(name))
        )

    def prompts(chunks: int, tokens: int, before: int) -> float:
        return _micros(handle.predict_prefill_latency(chunks, before + tokens, before)) - shared(chunks * tokens)

    def decode(sequences: int, context: int) -> float:
        return _micros(handle.decode_step_latency(sequences, context, 1))

    def beside(sequences: int, context: int) -> float:
        return _micros(sum(ms for name, ms, *_ in handle.decode_step_per_op(sequences, context, 1) if is_attention(name)))

    def whole_decodes(*shapes: tuple[int, int]) -> Samples:
        return [(us, _ERROR * us) for us in (decode(*shape) for shape in shapes)]

    def whole_prompts(*shapes: tuple[int, int, int]) -> Samples:
        return [(prompts(*shape), _ERROR * (prompts(*shape) + shared(shape[0] * shape[1]))) for shape in shapes]

    tokens = refine(_TOKENS, lambda x: [(shared(x), _ERROR * shared(x))])
    chunks = refine(_CHUNKS, lambda x: whole_prompts((x, 16, 0), (x, 128, 0), (x, 128, 4096), (x, 512, 0), (x, 4096, 0)))
    each = refine(_CHUNK_TOKENS, lambda x: whole_prompts((1, x, 0), (1, x, 4096), (2, x, 16384), (4, x, 0)), _SHORTEST)
    past = refine(_TOKENS_BEFORE, lambda x: whole_prompts((1, 1, x), (8, 1, x), (1, 128, x), (1, 2048, x), (4, 512, x)))
    sequences = refine(_SEQUENCES, lambda x: whole_decodes(*((x, c) for c in _SAMPLED_CONTEXTS)))
    contexts = refine(_CONTEXTS, lambda x: whole_decodes(*((n, x) for n in _SAMPLED_SEQUENCES)))
    curve: Curve = tuple((x, round(shared(int(x)), 2)) for x in tokens)
    return SiliconTable(
        shared=curve,
        prompts=_grid(prompts, chunks, each, past),
        decode=_rising(_grid(decode, sequences, contexts)),
        beside=_rising(_grid(beside, sequences, contexts)),
        ranks=ranks,
        source=source,
    )


def _micros(ms: float) -> float:
    if not 0 <= ms < 1e9:
        raise ValueError(f"it says that a step takes {ms} ms")
    return ms * 1000


def _grid(function: Any, *axes: tuple[float, ...]) -> Grid:
    points: list[tuple[int, ...]] = [()]
    for axis in axes:
        points = [(*point, int(x)) for point in points for x in axis]
    return Grid(axes, tuple(round(function(*point), 2) for point in points))


def _rising(grid: Grid) -> Grid:
    """Return `grid` with times that do not fall along the last axis: where measurements do, the mean of the points (the least
    squares, by pooling adjacent violators)."""
    length, us = len(grid.axes[-1]), list[float]()
    for start in range(0, len(grid.us), length):
        pools = list[tuple[float, int]]()
        for value in grid.us[start : start + length]:
            pools.append((value, 1))
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (mean, count), (other, more) = pools.pop(), pools.pop()
                pools.append(((mean * count + other * more) / (count + more), count + more))
        us += [mean for mean, count in pools for _ in range(count)]
    return Grid(grid.axes, tuple(us))
