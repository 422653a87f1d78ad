"""The measured pairs of bench/silicon.py: the rows of `systems/silicon_sample.csv` in aiconfigurator-core, and what ran there.

Two of the exports that the file was made of (`db-dump/2026-04-27` and `2026-04-06.csv`) write the parallelism of experts wrong,
and `parallelism` puts it right. InferenceX says `tp: 8, ep: 8` of the GPUs of one node (.github/configs/nvidia-master.yaml); so
do the ids of these rows (`tp8_ep8`), but their columns say 64 GPUs. 89 measurements stand in the file both ways, with equal
figures; put right, all descriptions of one measurement agree.

    tp=64 dp=1  moe_tp=8 moe_ep=8     is TP 8, EP 8
    tp=1  dp=64 moe_tp=8 moe_ep=8     is DP 8, EP 8
    tp=4  dp=4  moe_tp=1 moe_ep=16    is TP 4, EP 4: vLLM's commands are `--tensor-parallel-size=$TP --enable-expert-parallel`,
                                      without data parallelism (minimaxm2.5_fp8_b200.sh, minimaxm2.5_fp8_h100.sh,
                                      kimik2.5_fp4_b200.sh)

`dsr1` in an id is InferenceX's name of DeepSeek-R1, of which one export says DeepSeek-V3. A measurement that the file has more
than once is one pair.

The precision is that of the checkpoint that was served (`model:` in nvidia-master.yaml), as AIConfigurator itself reads it from
the checkpoint, where it has its configuration; the columns say `fp8` of weights whose scales are of blocks (DeepSeek-R1,
MiniMax-M2.5, Qwen3-235B-A22B-FP8) or static (nvidia/Llama-3.3-70B-Instruct-FP8), which other kernels compute. Where the package
has no kernels for that, it is asked with the precision of the columns.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from maitred.instance.catalogue.measured import find_silicon_name
from maitred.instance.catalogue.silicon import SiliconQuery

SERVED = {
    ("deepseek-ai/DeepSeek-R1", "fp8"): "deepseek-ai/DeepSeek-R1",
    (
        "deepseek-ai/DeepSeek-R1",
        "fp4",
    ): "nvidia/DeepSeek-V3.1-NVFP4",  # as nvidia/DeepSeek-R1-0528-FP4-V2, which the package lacks
    ("meta-llama/Meta-Llama-3.1-70B", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",  # with Llama-3.3-70B-Instruct-FP8
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "fp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("Qwen/Qwen3.5-397B-A17B", "fp4"): "nvidia/Qwen3.5-397B-A17B-NVFP4",
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
}
"""The checkpoint that was served, by model and precision of a row, as the package names it."""


@dataclass(frozen=True)
class Row:
    """One measured pair and its deployment."""

    id: str
    query: SiliconQuery
    """With the precision of the columns."""
    users: int
    prompt: int
    output: int
    varies: bool
    precision: str
    ttft_ms: float
    tpot_ms: float

    @property
    def measurement(self) -> tuple[object, ...]:
        """What two descriptions of one run have in common."""
        query = self.query
        return query.model, query.system, query.engine, self.users, self.prompt, self.output, self.ttft_ms, self.tpot_ms


def served(query: SiliconQuery, precision: str) -> SiliconQuery:
    """Return the deployment with the precision of the checkpoint that was served, where that is known."""
    checkpoint = SERVED.get((query.model, precision))
    return replace(query, model=checkpoint, precision="", expert_precision="") if checkpoint else query


def read_rows(path: Path) -> list[Row]:
    """Return the pairs of aggregated deployments, each measurement once."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [_row(row) for row in csv.DictReader(file) if row["mode"] == "agg"]
    return list({row.measurement: row for row in reversed(rows)}.values())[::-1]


def _row(row: dict[str, str]) -> Row:
    stated = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    listed = int(row["attention_dp_size"] or 1) or 1
    tensor, ranks, experts = parallelism(
        int(row["tp_size"]), listed, int(row["moe_tp_size"] or 1), int(row["moe_ep_size"] or 1) or 1
    )
    model = "deepseek-ai/DeepSeek-R1" if row["id"].startswith("dsr1_") else row["model_path"]
    found = find_silicon_name(model)
    return Row(
        id=row["id"],
        query=SiliconQuery(
            model=found[0] if found else model,
            system=row["system"],
            engine=row["backend"],
            tensor_parallel_size=tensor,
            pipeline_parallel_size=int(row["pp_size"] or 1),
            data_parallel_size=ranks,
            expert_parallel_size=experts,
            precision=row["gemm_quant_mode"],
            expert_precision=row["moe_quant_mode"],
        ),
        users=int(stated[1]) if stated else int(row["batch_size"]) * listed,
        prompt=int(row["isl"]),
        output=int(row["osl"]),
        varies=not row["silicon_data_source"].startswith(_OWN),
        precision=row["precision"],
        ttft_ms=float(row["silicon_ttft_ms"]),
        tpot_ms=float(row["silicon_tpot_ms"]),
    )


def parallelism(tensor: int, ranks: int, expert_shares: int, experts: int) -> tuple[int, int, int]:
    """Return TP, ranks of data parallelism and EP as they were, from what the columns of a row say."""
    if expert_shares == experts > 1:
        return (experts, 1, experts) if ranks == 1 else (1, experts, experts)
    if tensor == ranks > 1 and experts == tensor * ranks:
        return tensor, 1, tensor
    return tensor, ranks, experts


_OWN = "source_file=/"
"""Begins the source of the pairs that AIConfigurator's authors measured themselves; the others are InferenceX's."""
