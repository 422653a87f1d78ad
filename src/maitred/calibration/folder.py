"""A folder of a measured run: the configuration of the engine, its layer profile, and what became of the requests.

    meta.json      engine arguments, configuration of the model, the links of the cluster, KV blocks where recorded
    profile/       see `layers`
    requests.csv   see `timelines`

as the `bench` examples of LLMServingSim have them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from maitred.calibration.compiling import STEP_OVERHEAD_US, Serving, compiled
from maitred.calibration.layers import read_profile
from maitred.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.latency import TableLatency

_GIB = 1 << 30
_BLOCK = 16
_PLENTY = 0.85
"""Of the memory, what weights and KV share: the rest is what vLLM leaves free and its activations take."""


class Folder(msgspec.Struct, frozen=True):
    """What `meta.json` says."""

    path: Path
    engine: dict[str, Any]
    model: dict[str, Any]
    cluster: dict[str, Any]
    kv_blocks: int | None

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def requests(self) -> Path:
        return self.path / "requests.csv"

    @property
    def serving(self) -> Serving:
        engine, model = self.engine, self.model
        return Serving(
            layers=model["num_hidden_layers"],
            hidden_size=model["hidden_size"],
            num_experts=model.get("num_experts", 0),
            experts_per_token=model.get("num_experts_per_tok", 0),
            tensor_parallel_size=engine["tensor_parallel_size"],
            data_parallel_size=engine["data_parallel_size"],
            max_num_seqs=engine["max_num_seqs"],
            link_bytes_per_us=self.cluster["link_bw"] * _GIB / 1e6,
            link_latency_us=self.cluster["link_latency"] / 1e3,
        )

    def instance(self, overhead_us: float = STEP_OVERHEAD_US) -> InstanceConfig:
        """The engine as an instance; several ranks are one with as many times the room. Raises ConfigError."""
        engine, serving = self.engine, self.serving
        profile = read_profile(self.path / "profile", serving.tensor_parallel_size)
        ranks, budget = serving.data_parallel_size, engine["max_num_batched_tokens"]
        table = compiled(profile, serving, overhead_us=overhead_us, source=self.name)
        return InstanceConfig(
            max_num_seqs=ranks * serving.max_num_seqs,
            max_num_batched_tokens=ranks * budget,
            long_prefill_token_threshold=budget if ranks > 1 else 0,
            total_kv_blocks=ranks * (self._free_blocks() if self.kv_blocks is None else self.kv_blocks - 1),
            block_size_in_tokens=_BLOCK,
            enable_prefix_caching=True,
            async_scheduling=True,
            max_model_len=engine.get("max_model_len"),
            latency=TableLatency(table=table),
        )

    def _free_blocks(self) -> int:
        """KV blocks of one rank, where nobody has recorded them: what memory has left beside the weights."""
        model, gpus = self.model, self.engine["tensor_parallel_size"]
        memory = self.cluster["nodes"][0]["instances"][0]["npu_mem"]["mem_size"] * _GIB
        head = model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]
        kv_heads = max(1, model["num_key_value_heads"] // gpus)
        token = model["num_hidden_layers"] * 2 * kv_heads * head * 2
        weights = _parameters(model, head, self.engine["data_parallel_size"]) * 2 / gpus
        return max(1, int((memory * _PLENTY - weights) / (token * _BLOCK)))


def read_folder(path: Path) -> Folder:
    """Raises ConfigError for what is missing."""
    file = path / "meta.json"
    try:
        meta = msgspec.json.decode(file.read_bytes())
        blocks = (meta.get("kv_cache") or {}).get("num_gpu_blocks")
        folder = Folder(path, meta["engine_kwargs"], meta["model_config"], meta["cluster"], blocks)
        _ = folder.serving
    except OSError as error:
        hint = "a folder with meta.json, requests.csv and profile/"
        raise ConfigError(f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(file), hint=hint) from error
    except (msgspec.DecodeError, AttributeError, TypeError) as error:
        raise ConfigError(f"not what a meta.json holds: {error}", where=str(file)) from error
    except KeyError as error:
        raise ConfigError(f"there is no key {error}", where=str(file)) from error
    return folder


def _parameters(model: dict[str, Any], head: int, ranks: int) -> float:
    hidden, heads, kv_heads = model["hidden_size"], model["num_attention_heads"], model["num_key_value_heads"]
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    if model.get("num_experts"):
        mlp = 3 * hidden * model["moe_intermediate_size"] * model["num_experts"] / ranks
    else:
        mlp = 3 * hidden * model["intermediate_size"]
    return float(model["num_hidden_layers"] * (attention + mlp) + 2 * model["vocab_size"] * hidden)
