"""How far are simulated TTFT and TPOT from measured pairs of prefill and decode instances? The table of docs/accuracy.md.

    python bench/silicon_disaggregated.py --out split.jsonl [--clients 512]
    python bench/silicon_disaggregated.py --out split.jsonl --table

Of the 1,602 rows of disaggregated deployments 274 say how many prefill and decode instances there were; in the others the
columns `prefill_num_workers`, `decode_num_workers`, `prefill_batch_size` and `decode_batch_size` are empty. Each is a
closed loop of as many clients, with measured kernels and the overheads that were fitted to aggregated deployments; nothing is
fitted here. SGLang is left out: its batching does not take over KV. KV goes from instance to instance at 50 GB/s (400 Gb/s).
What the file does not say is left at its default: how prompts are cut, and whether a row was measured with several tokens in a
step.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from maitred import ClusterConfig, InstanceConfig
from maitred.core.errors import ConfigError
from maitred.instance.catalogue.measured import find_silicon_name
from maitred.instance.catalogue.silicon import SiliconQuery, silicon_blocks, silicon_model_files, silicon_table
from maitred.instance.catalogue.silicon_accuracy import with_overheads
from maitred.instance.latency import AIConfiguratorLatency
from maitred.sim import simulate
from maitred.sim.config import DisaggregationConfig
from maitred.sim.fleet_config import InstanceGroup
from maitred.workload import closed_loop
from silicon import BLOCK, PLENTY, STEP_TOKENS, attempt
from silicon_pairs import served

KV_BYTES = {"deepseek": 576.0 * 61, "kimi": 576.0 * 61}
"""Bytes of KV per token of latent attention in FP8: 512 + 64 values in each of 61 layers."""
DENSE_BYTES = 2.0 * 2 * 8 * 128 * 64
"""The same of Qwen3-32B: keys and values in 16 bits, 8 heads of 128, 64 layers."""
LINK_GB_S = 50.0


@dataclass(frozen=True)
class Split:
    """One measured pair, and its two kinds of instances."""

    id: str
    prefill: SiliconQuery
    decode: SiliconQuery
    counts: tuple[int, int]
    users: int
    prompt: int
    output: int
    ttft_ms: float
    tpot_ms: float


def read_splits(path: Path) -> list[Split]:
    """Return the rows that say how many instances of each kind there were, each measurement once."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] == "disagg" and row["prefill_num_workers"]]
    return list({(row["silicon_ttft_ms"], row["silicon_tpot_ms"]): _split(row) for row in rows}.values())


def _split(row: dict[str, str]) -> Split:
    stated = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    counts = int(float(row["prefill_num_workers"])), int(float(row["decode_num_workers"]))
    return Split(
        id=row["id"],
        prefill=_query(row, "prefill"),
        decode=_query(row, "decode"),
        counts=counts,
        users=int(stated[1]) if stated else int(float(row["decode_batch_size"])) * counts[1],
        prompt=int(row["isl"]),
        output=int(row["osl"]),
        ttft_ms=float(row["silicon_ttft_ms"]),
        tpot_ms=float(row["silicon_tpot_ms"]),
    )


def _query(row: dict[str, str], kind: str) -> SiliconQuery:
    model = "deepseek-ai/DeepSeek-R1" if row["id"].startswith("dsr1_") else row["model_path"]
    found = find_silicon_name(model)
    tensor, ranks, experts = (
        int(float(row[f"{kind}_{name}"] or 1)) or 1 for name in ("tp_size", "attention_dp_size", "moe_ep_size")
    )
    query = SiliconQuery(
        model=found[0] if found else model,
        system=row["system"],
        engine=row["backend"],
        tensor_parallel_size=tensor,
        data_parallel_size=ranks,
        expert_parallel_size=experts,
        precision=row["gemm_quant_mode"],
        expert_precision=row["moe_quant_mode"],
    )
    return served(query, row["precision"])


def simulated(split: Split, rounds: int) -> tuple[float, float]:
    """Return the mean TTFT and TPOT in ms."""
    queries = (split.prefill, split.decode)
    groups = [_group(query, count, split) for query, count in zip(queries, split.counts, strict=True)]
    kv_bytes = next((each for name, each in KV_BYTES.items() if name in split.decode.model.lower()), DENSE_BYTES)
    network = DisaggregationConfig(
        prefill_instances=split.counts[0],
        decode_instances=split.counts[1],
        transfer_bandwidth_gb_s=LINK_GB_S,
        kv_bytes_per_token=kv_bytes,
    )
    cluster = ClusterConfig(num_instances=sum(split.counts), groups=groups, disaggregation=network)
    instance = InstanceConfig(
        flavour=split.decode.engine,  # type: ignore[arg-type]
        max_model_len=split.prompt + split.output,
        enable_prefix_caching=False,
    )
    prompt, output = (f"uniform:{length * 4 // 5},{length}" for length in (split.prompt, split.output))
    jobs = closed_loop(split.users, split.users * rounds, input_tokens=prompt, output_tokens=output)
    results = simulate(jobs, cluster, instance)
    ttft = (results.first_token - results.arrival) / 1000
    tpot = (results.finished - results.first_token) / 1000 / np.maximum(results.output_tokens - 1, 1)
    return float(ttft.mean()), float(tpot.mean())


def _group(query: SiliconQuery, count: int, split: Split) -> InstanceGroup:
    latency = AIConfiguratorLatency(engine=query.engine, table=silicon_table(query))  # type: ignore[arg-type]
    try:
        blocks = silicon_blocks(query, BLOCK, STEP_TOKENS, 256, 0.9) * query.data_parallel_size
    except ConfigError:
        blocks = PLENTY
    return InstanceGroup(
        num_instances=count,
        latency=with_overheads(latency, query.engine, query.system),
        total_kv_blocks=blocks,
        max_num_seqs=split.users,
        max_num_batched_tokens=STEP_TOKENS * query.data_parallel_size,
    )


def print_table(splits: list[Split], found: dict[str, list[float] | str]) -> None:
    """Print median and 90th percentile of the absolute error, how many are within 10 % and 25 %, and the median error."""
    print("| pairs | | TTFT | TPOT |\n|---|---|---|---|")
    for name in ("", "vllm", "sglang", "trtllm", *sorted({each.decode.system for each in splits})):
        said = [(each, found.get(each.id)) for each in splits if name in ("", each.decode.engine, each.decode.system)]
        known = [(each, pair) for each, pair in said if isinstance(pair, list)]
        if known:
            ttft = [pair[0] / each.ttft_ms - 1 for each, pair in known]
            tpot = [pair[1] / each.tpot_ms - 1 for each, pair in known]
            print(f"| {name or 'all'} | {len(known)} | {_cell(ttft)} | {_cell(tpot)} |")


def _cell(errors: list[float]) -> str:
    sizes = np.abs(errors)
    within = ", ".join(f"{np.mean(sizes <= share):.0%}" for share in (0.1, 0.25))
    return f"{np.median(sizes):.0%}, {np.quantile(sizes, 0.9):.0%}; {within} ({np.median(errors):+.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=512, help="most clients of a row that is simulated")
    parser.add_argument("--rounds", type=int, default=5, help="requests of each client")
    parser.add_argument("--table", action="store_true", help="compute nothing")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    splits = read_splits(next(iter(silicon_model_files().values())).parents[1] / "systems" / "silicon_sample.csv")
    said = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    found = dict(json.loads(line) for line in said)
    chosen = sorted((each for each in splits if each.users <= options.clients), key=lambda each: (str(each.prefill), each.id))
    if not options.table:
        with options.out.open("a", encoding="utf-8") as file:
            for each in chosen:
                if each.id not in found:
                    found[each.id] = attempt(partial(simulated, each, options.rounds))
                    file.write(json.dumps([each.id, found[each.id]]) + "\n")
                    file.flush()
    print(f"{len(splits)} measurements, {len(chosen)} with at most {options.clients} clients")
    print_table(chosen, found)


if __name__ == "__main__":
    main()
