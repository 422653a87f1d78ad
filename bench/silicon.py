"""How far are simulated TTFT and TPOT from 3,024 measured pairs? The table of docs/accuracy.md.

    python bench/silicon.py --out silicon.jsonl                # all; what is in the file already is not computed again
    python bench/silicon.py --out silicon.jsonl --sample 500   # 500 of them, drawn with --seed
    python bench/silicon.py --out silicon.jsonl --table        # only the tables of what is in the file

The pairs are those of `systems/silicon_sample.csv` in aiconfigurator-core (the extra `silicon`): mean TTFT and TPOT of a closed
loop of so many clients against one deployment of vLLM, SGLang or TensorRT-LLM, most of them from InferenceX. Its 1,602 rows of
disaggregated deployments are those of bench/silicon_disaggregated.py.

Each is simulated as it was measured: as many users, who each send the next request when the last one is answered, --rounds
requests of each, prompts and answers uniformly between 0.8 and 1 times the stated length (`--random-range-ratio 0.8`, as
InferenceX measures; the others as stated), by an engine that is started as it was (bench/silicon_recipes.py), and where that is
not published with steps of at most 8,192 tokens. Step times are, one after the other, those of
`aiconfigurator`, of `roofline`, and of BLIS's `trained-physics`; beside them stands what AIConfigurator itself predicts
(`run_agg`, with the prompt as the tokens of a mixed step). The overheads of `aiconfigurator` are fitted to the pairs of half of
the deployments (`is_fitted`), which --overheads does, and `bare` is without them. Nothing else is fitted to these pairs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from msgspec.structs import replace

from maitred import InstanceConfig
from maitred.core.errors import ConfigError
from maitred.instance.catalogue import find_hardware, find_model
from maitred.instance.catalogue.silicon import SiliconQuery, in_graphs, silicon_blocks, silicon_model_files, silicon_table
from maitred.instance.catalogue.silicon_accuracy import with_overheads
from maitred.instance.catalogue.specs import read_model_config
from maitred.instance.latency import (
    AIConfiguratorLatency,
    Deployment,
    HardwareSpec,
    LatencyConfig,
    ModelSpec,
    RooflineLatency,
    TrainedPhysicsLatency,
)
from maitred.sim import simulate
from maitred.workload import closed_loop
from silicon_pairs import Row, read_rows, served
from silicon_recipes import Setup, published_keys

STEP_TOKENS = 8192
BLOCK = 16
PLENTY = 10_000_000
"""KV blocks where the memory model of the package says that the model does not fit, though it was measured."""
PREDICTORS = ("aiconfigurator", "bare", "predicted", "roofline", "trained-physics")
HEADINGS = (
    *("maitred, measured kernels", "the same without overheads", "AIConfigurator itself", "maitred, roofline"),
    "BLIS's trained-physics",
)
LEAST_TOLD = 5
"""Pairs of a system that have an error of their own."""
LEAST_GROUP = 50
WEIGHTS = {"nvfp4": 0.5625, "int4_wo": 0.5, "fp8": 1.0, "fp8_block": 1.0, "": 0.0}
"""Bytes of a parameter."""


@cache
def kv_blocks(query: SiliconQuery) -> int:
    try:
        return silicon_blocks(query, BLOCK, STEP_TOKENS, 256, 0.9) * query.data_parallel_size
    except ConfigError:
        return PLENTY


@cache
def deployment(query: SiliconQuery) -> Deployment:
    """Return the figures for `roofline` and `trained-physics`. Raises ConfigError or ValueError where they have none."""
    hardware = next(spec for spec in hardware_specs() if spec.aiconfigurator == query.system)
    return Deployment(
        model=replace(model_spec(query.model), weight_bytes=WEIGHTS[query.precision or query.expert_precision]),
        hardware=hardware,
        tensor_parallel_size=query.tensor_parallel_size,
        data_parallel_size=query.data_parallel_size,
    )


@lru_cache(maxsize=1)
def hardware_specs() -> list[HardwareSpec]:
    from maitred.instance.catalogue import hardware_names

    return [find_hardware(name) for name in hardware_names()]


@cache
def model_spec(name: str) -> ModelSpec:
    try:
        return find_model(name)
    except ConfigError:
        return read_model_config(silicon_model_files()[name])


def setup_of(row: Row) -> Setup:
    query = row.query
    sizes = (query.tensor_parallel_size, query.data_parallel_size, row.users, row.prompt, row.output)
    return Setup(query.engine, query.model, query.system, row.precision, *sizes)


def simulated(row: Row, latency: LatencyConfig, rounds: int) -> tuple[float, float]:
    """Return the mean TTFT and TPOT in ms."""
    keys: dict[str, Any] = {
        "flavour": row.query.engine,
        "latency": latency,
        "total_kv_blocks": kv_blocks(known_query(row)),
        "max_num_seqs": row.users,
        "max_model_len": row.prompt + row.output,  # what TensorRT-LLM reserves for a request
        "max_num_batched_tokens": STEP_TOKENS,
        "enable_prefix_caching": False,
        "prefix_cache": "blocks",
        **(published_keys(setup_of(row)) if row.varies else {}),
    }
    keys["max_num_batched_tokens"] *= row.query.data_parallel_size
    instance = InstanceConfig(**keys)
    prompt, output = (f"uniform:{length * 4 // 5},{length}" if row.varies else length for length in (row.prompt, row.output))
    jobs = closed_loop(row.users, row.users * rounds, input_tokens=prompt, output_tokens=output)
    results = simulate(jobs, instance=instance)
    ttft = (results.first_token - results.arrival) / 1000
    tpot = (results.finished - results.first_token) / 1000 / np.maximum(results.output_tokens - 1, 1)
    return float(ttft.mean()), float(tpot.mean())


@lru_cache(maxsize=8)
def predictor(query: SiliconQuery) -> tuple[Any, Any, Any]:
    """Return backend, model and database of the package, with the precision of attention that it has measurements of."""
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model, resolve_context_fmha_by_data
    from aiconfigurator_core.sdk.perf_database import get_database, resolve_query_version

    release = resolve_query_version(query.system, query.engine, "current")
    database = get_database(query.system, query.engine, release)
    config = build_model_config(**query.arguments())
    resolve_context_fmha_by_data(config, query.model, database, query.engine, is_context_role=True)
    return get_backend(query.engine), get_model(query.model, config, query.engine), database


def predicted(row: Row) -> tuple[float, float]:
    """Return the TTFT and TPOT in ms that AIConfigurator itself predicts."""
    from aiconfigurator_core.sdk.config import RuntimeConfig

    backend, model, database = predictor(in_graphs(known_query(row)))
    batch = max(1, row.users // row.query.data_parallel_size)
    config = RuntimeConfig(batch_size=batch, isl=row.prompt, osl=row.output)
    summary = backend.run_agg(model, database, config, ctx_tokens=row.prompt).get_summary_df().iloc[0]
    return float(summary["ttft"]), float(summary["tpot"])


def attempt(question: Callable[[], tuple[float, float]]) -> tuple[float, float] | str:
    try:
        return question()
    except Exception as error:  # whatever the parts of the package raise: this deployment has no answer
        return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def kernels(row: Row) -> AIConfiguratorLatency:
    return AIConfiguratorLatency(table=silicon_table(known_query(row)))


@cache
def known_query(row: Row) -> SiliconQuery:
    """Return the deployment with the precision of the checkpoint that was served, or as the row has it where there are no
    kernels for that."""
    for query in (served(row.query, row.precision), row.query):
        try:
            silicon_table(query)
            return query
        except ConfigError:
            continue
    return row.query


def answers(row: Row, names: Iterable[str], rounds: int) -> dict[str, Any]:
    of: dict[str, Callable[[], tuple[float, float]]] = {
        "aiconfigurator": lambda: simulated(row, with_overheads(kernels(row), row.query.engine, row.query.system), rounds),
        "bare": lambda: simulated(row, kernels(row), rounds),
        "predicted": lambda: predicted(row),
        "roofline": lambda: simulated(row, RooflineLatency(deployment(row.query)), rounds),
        "trained-physics": lambda: simulated(row, TrainedPhysicsLatency(deployment=deployment(row.query)), rounds),
    }
    return {name: attempt(of[name]) for name in names}


def run(rows: list[Row], out: Path, names: list[str], rounds: int) -> None:
    done = {(said["id"], name) for said in read_answers(out) for name in said["answers"]}
    # Rows of one deployment follow each other: its tables and databases are in memory once.
    ordered = sorted(rows, key=lambda row: (str(row.query), row.id))
    with out.open("a", encoding="utf-8") as file:
        for number, row in enumerate(ordered):
            lacking = [name for name in names if (row.id, name) not in done]
            if lacking:
                file.write(json.dumps({"id": row.id, "answers": answers(row, lacking, rounds)}) + "\n")
                file.flush()
            print(f"\r{number + 1}/{len(ordered)}", end="", file=sys.stderr)
    print(file=sys.stderr)


def read_answers(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []


def errors(rows: list[Row], found: dict[str, dict[str, Any]], names: list[str], metric: int) -> dict[str, list[float]]:
    """Return the relative errors by predictor, over the rows that all of `names` answer."""
    lists: dict[str, list[float]] = {name: [] for name in names}
    for row in rows:
        said = [found.get(row.id, {}).get(name) for name in names]
        if all(isinstance(each, list) for each in said):
            measured = (row.ttft_ms, row.tpot_ms)[metric]
            for name, each in zip(names, said, strict=True):
                lists[name].append(each[metric] / measured - 1)  # type: ignore[index]
    return lists


def is_fitted(query: SiliconQuery) -> bool:
    """Whether overheads are fitted to the pairs of this deployment; on the others their errors are told."""
    return crc32(json.dumps([query.model, query.system, query.engine, query.arguments()]).encode()) % 2 == 0


def print_overheads(rows: list[Row], out: Path) -> None:
    """Print the overheads of each engine with which the median errors of the pairs that are fitted are the smallest, without
    another simulation, and the errors of the others: without overheads -> with those that are shipped."""
    found = answers_of(out)
    print("| engine | system | fitted, told | ms of a step | ms of a request | TTFT | TPOT |\n|---|---|---|---|---|---|---|")
    for engine in ("vllm", "sglang", "trtllm"):
        of_engine = [row for row in rows if row.query.engine == engine]
        halves = [[row for row in of_engine if is_fitted(row.query) is fitted] for fitted in (True, False)]
        for system in ("all", *sorted({row.query.system for row in of_engine})):
            fitted, told = [[row for row in half if system in ("all", row.query.system)] for half in halves]
            step, request = _best_shift(fitted, found, 1, 10), _best_shift(fitted, found, 0, 400)
            lists = [errors(told, found, ["aiconfigurator", "bare"], metric) for metric in (0, 1)]
            count = len(lists[0]["bare"])
            cells = [
                " -> ".join(f"{np.median(np.abs(each[name])):.0%}" for name in ("bare", "aiconfigurator")) for each in lists
            ]
            of = (
                f"{engine} | {system} | {len(errors(fitted, found, ['bare'], 0)['bare'])}, {count} | {step:.2f} | {request:.0f}"
            )
            if count >= LEAST_TOLD:
                print(f"| {of} | {cells[0]} | {cells[1]} |")


def _best_shift(rows: list[Row], found: dict[str, dict[str, Any]], metric: int, most: float) -> float:
    pairs = [(row, found[row.id]["bare"][metric]) for row in rows if isinstance(found.get(row.id, {}).get("bare"), list)]
    said, measured = np.array([each for _, each in pairs]), np.array([(row.ttft_ms, row.tpot_ms)[metric] for row, _ in pairs])
    return min(np.linspace(0, most, 401), key=lambda ms: float(np.median(np.abs((said + ms) / measured - 1))))


def answers_of(out: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for said in read_answers(out):
        found.setdefault(said["id"], {}).update(said["answers"])
    return found


GROUPS: dict[str, Callable[[Row], str]] = {
    "": lambda row: "all",
    "system": lambda row: row.query.system,
    "engine": lambda row: row.query.engine,
    "model": lambda row: row.query.model.rpartition("/")[2],
    "clients": lambda row: next((f"up to {most}" for most in (4, 16, 64, 256) if row.users <= most), "more than 256"),
}


def print_tables(rows: list[Row], out: Path, names: list[str]) -> None:
    """Print a table of each metric, over the pairs that all of `names` answer, and how many others leave out."""
    found = answers_of(out)
    headings = [HEADINGS[PREDICTORS.index(name)] for name in names]
    for metric, title in enumerate(("TTFT", "TPOT")):
        print(f"| {title} | pairs | {' | '.join(headings)} |\n|---|---|{'---|' * len(names)}")
        for group, key in GROUPS.items():
            for value in sorted({key(row) for row in rows}, key=lambda text: (len(text), text)):
                lists = errors([row for row in rows if key(row) == value], found, names, metric)
                if count := len(lists[names[0]]):
                    cells = [_cell(lists[name]) for name in names]
                    print(f"| {value if not group else f'{group}: {value}'} | {count:,} | {' | '.join(cells)} |")
        print()
    asked = [row for row in rows if row.id in found]
    left_out = {name: sum(not isinstance(found[row.id].get(name), list) for row in asked) for name in names}
    print(f"of {len(asked):,} pairs, without an answer: " + ", ".join(f"{name} {count:,}" for name, count in left_out.items()))
    reasons = Counter(said for row in asked if isinstance(said := found[row.id].get(names[0]), str))
    print(*(f"{count:>6} {said[:120]}" for said, count in reasons.most_common()), sep="\n")
    if "predicted" in names:
        print_worse(rows, found, names[0])


def print_worse(rows: list[Row], found: dict[str, dict[str, Any]], name: str) -> None:
    """Print the groups of 50 pairs and more in which AIConfigurator itself has the smaller median error, in whole per cent."""
    for metric, title in enumerate(("TTFT", "TPOT")):
        for group, key in GROUPS.items():
            for value in sorted({key(row) for row in rows}):
                lists = errors([row for row in rows if key(row) == value], found, [name, "predicted"], metric)
                ours, theirs = (round(100 * float(np.median(np.abs(each)))) if each else 0 for each in lists.values())
                if len(lists[name]) >= LEAST_GROUP and ours > theirs:
                    print(f"worse than AIConfigurator: {title}, {group} {value}: {ours} % to {theirs} % of {len(lists[name])}")


def _cell(values: list[float]) -> str:
    """Return median and 90th percentile of the absolute error, and how many are within 10 % and within 25 %."""
    sizes = np.abs(values)
    within = [f"{np.mean(sizes <= share):.0%}" for share in (0.1, 0.25)]
    return f"{np.median(sizes):.0%} {np.quantile(sizes, 0.9):.0%} {within[0]} {within[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each answer")
    parser.add_argument("--sample", type=int, default=0, help="so many rows, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--rounds", type=int, default=10, help="requests of each user")
    parser.add_argument("--of", nargs="+", choices=PREDICTORS, default=list(PREDICTORS))
    parser.add_argument("--table", action="store_true", help="compute nothing")
    parser.add_argument("--told", action="store_true", help="the pairs alone to which nothing is fitted")
    parser.add_argument("--overheads", action="store_true", help="compute nothing; fit overheads on half of it")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    files = silicon_model_files()
    if not files:
        sys.exit("this needs the measured pairs of aiconfigurator-core: pip install 'maitred[silicon]'")
    rows = read_rows(next(iter(files.values())).parents[1] / "systems" / "silicon_sample.csv")
    if options.sample:
        rows = Random(options.seed).sample(rows, options.sample)
    if options.overheads:
        print_overheads(rows, options.out)
        return
    if options.told:
        rows = [row for row in rows if not is_fitted(row.query)]
    if not options.table:
        run(rows, options.out, options.of, options.rounds)
    print_tables(rows, options.out, options.of)


if __name__ == "__main__":
    main()
