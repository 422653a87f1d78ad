"""Tables of measured kernels: built from what a stand-in for the package answers, and from the package itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import installed_version, resolve_instance
from maitred.instance.catalogue.refining import refine
from maitred.instance.catalogue.silicon import (
    IncompletePackageError,
    SiliconQuery,
    build_table,
    in_graphs,
    silicon_blocks,
    silicon_table,
)
from maitred.instance.latency import AIConfiguratorLatency, RooflineLatency

LLAMA = "meta-llama/llama-3.1-8b-instruct"
IN_TILES = 128


class Kernels:
    """Kernels with products in tiles, and attention by pairs, in ms: what an `EngineHandle` of the package answers."""

    def mixed_step_breakdown_per_op(self, tokens: int, decodes: int, prompt: int, output: int) -> list[list[tuple[str, float]]]:
        return [[("context_gemm", 5 + 0.02 * -(-(tokens + decodes) // IN_TILES)), ("context_mla_block", 100.0)]]

    def predict_prefill_latency(self, chunks: int, prompt: int, cached: int) -> float:
        new = prompt - cached
        products = self.mixed_step_breakdown_per_op(chunks * new, 0, new, 1)[0][0][1]
        return products + 0.5 + 1e-6 * chunks * new * (cached + new / 2)

    def decode_step_latency(self, sequences: int, context: int, output: int) -> float:
        return sum(ms for _, ms in self.decode_step_per_op(sequences, context, output))

    def decode_step_per_op(self, sequences: int, context: int, output: int) -> list[tuple[str, float]]:
        return [("generation_gemm", 4 + 0.01 * sequences), ("generation_attention", 0.1 + 1e-5 * sequences * context)]


def worst_errors(handle: Kernels, seed: int = 1, count: int = 400) -> tuple[list[float], list[float]]:
    """Return the errors of steps that only decode, and of steps that only prefill, in order."""
    model = AIConfiguratorLatency(table=build_table(handle, 1, "kernels")).compiled()
    draw = Random(seed)
    decodes, prefills = [], []
    for _ in range(count):
        sequences, context = round(2 ** draw.uniform(0, 9)), round(2 ** draw.uniform(4, 15))
        step = model.step_time(BatchShape(sequences, sequences * context))
        decodes.append(abs(step / 1000 / handle.decode_step_latency(sequences, context, 1) - 1))
        chunks, tokens, before = draw.choice([1, 1, 2, 3, 8]), round(2 ** draw.uniform(4, 13)), draw.choice([0, 100, 5000])
        shape = (ChunkShape(tokens, before, before + tokens),) * chunks
        step = model.step_time(BatchShape(0, 0, chunks * tokens, shape))
        prefills.append(abs(step / 1000 / handle.predict_prefill_latency(chunks, before + tokens, before) - 1))
    return sorted(decodes), sorted(prefills)


def test_interpolated_steps_are_close_to_direct_calls() -> None:
    decodes, prefills = worst_errors(Kernels())

    assert decodes[-1] < 0.01
    assert prefills[-1] < 0.01


def test_a_straight_line_needs_no_points_and_a_bend_a_few() -> None:
    assert refine((0, 1024), lambda x: [(3.0 * x, 0.01)]) == (0.0, 1024.0)
    bent = refine((0, 1024), lambda x: [(float(max(x, 300)), 4.0)])
    assert 3 < len(bent) < 12


def test_the_missing_package_is_said() -> None:
    if installed_version():
        pytest.skip("aiconfigurator-core is installed")
    with pytest.raises(ConfigError, match=r"needs the package aiconfigurator-core \(pip install 'maitred\[silicon\]'"):
        resolve_instance(InstanceConfig(model=LLAMA, latency="aiconfigurator"))
    assert isinstance(resolve_instance(InstanceConfig(model=LLAMA)).latency, RooflineLatency)


BLOCKS = '{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}'


@pytest.mark.parametrize(
    ("engine", "precision", "config", "asked"),
    [
        ("vllm", "", BLOCKS, ("fp8", "fp8_block")),
        ("vllm", "fp8_block", "{}", ("fp8", "fp8_block")),
        ("sglang", "", BLOCKS, ("", "")),
        ("vllm", "", "{}", ("", "")),
        ("vllm", "nvfp4", BLOCKS, ("nvfp4", "")),
        ("trtllm", "fp8_static", "{}", ("fp8_static", "fp8")),
    ],
)
def test_precisions_are_those_whose_kernels_were_timed_as_the_engine_runs_them(
    engine: str, precision: str, config: str, asked: tuple[str, str]
) -> None:
    """vLLM's products with scales of blocks were timed with their launch, which its CUDA graphs do not have."""
    files = (("config.json", config),)
    query = in_graphs(SiliconQuery(model="mine", files=files, system="b200_sxm", engine=engine, precision=precision))

    assert (query.precision, query.expert_precision) == asked
    assert in_graphs(query) == query


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiconfigurator_core", reason="needs aiconfigurator-core: pip install 'maitred[silicon]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("ask", [silicon_table, lambda query: silicon_blocks(query, 16, 8192, 256, 0.9)])
def test_a_package_that_lacks_what_it_needs_says_what_to_install(
    ask: Callable[[SiliconQuery], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is only a name: everything in it is missing. Nothing of that is kept for when it is whole."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("aiconfigurator_core.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", ModuleType("aiconfigurator_core"))
    monkeypatch.setattr("maitred.instance.catalogue.silicon.installed_version", lambda: "0.0")
    for _ in range(2):
        with pytest.raises(IncompletePackageError, match=r"No module named 'aiconfigurator_core.sdk'.* \(pip install --force"):
            ask(SiliconQuery(model=LLAMA, system="none", engine="vllm"))


@pytest.mark.usefixtures("package")
def test_measured_kernels_are_the_default_where_they_are_known() -> None:
    found = resolve_instance(InstanceConfig(model=LLAMA))

    assert isinstance(found.latency, AIConfiguratorLatency)
    step = found.latency_model().step_time(BatchShape(0, 0, 8000, (ChunkShape(8000, 0, 8000),)))
    assert (found.latency.step_overhead, found.latency.alpha) == (1500.0, (0.0, 0.0, 0.0))
    assert step - 1500 == pytest.approx(194_000, rel=0.01)
    assert found.total_kv_blocks == pytest.approx(27_326, rel=0.01)
    assert resolve_instance(found) == found
    assert isinstance(resolve_instance(InstanceConfig(model=LLAMA, hardware="RTX4090")).latency, RooflineLatency)
    with pytest.raises(ConfigError, match="AIConfigurator knows no RTX4090"):
        resolve_instance(InstanceConfig(model=LLAMA, hardware="RTX4090", latency="aiconfigurator"))


@pytest.mark.usefixtures("package")
def test_interpolated_steps_are_within_a_percent_of_the_package() -> None:
    from aiconfigurator_core.sdk.engine import EngineHandle

    decodes, prefills = worst_errors(EngineHandle.compile("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm"))

    assert decodes[len(decodes) * 99 // 100] < 0.01
    assert prefills[len(prefills) * 99 // 100] < 0.01


@pytest.mark.usefixtures("package")
def test_a_folder_with_a_configuration_has_measured_kernels_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "config.json"
    file.parent.mkdir()
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096}
    whole_prompt, times = BatchShape(0, 0, 2000, (ChunkShape(2000, 0, 2000),)), []
    for layers in (8, 16):  # The second one is not taken for the first, which is in the cache.
        file.write_text(json.dumps({**shape, **heads, "num_hidden_layers": layers, "torch_dtype": "bfloat16"}))
        for path in (file.parent, file):
            found = resolve_instance(InstanceConfig(model="mine", model_config_folder=str(path)))
            assert isinstance(found.latency, AIConfiguratorLatency)
            times.append(found.latency_model().step_time(whole_prompt))
    assert times[0] == times[1]
    assert times[2] == times[3] > 1.5 * times[0]
