"""What a run with measured kernels says of its overheads, its error and its range, with tables in place of the package."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import maitred
from maitred import Candidate, Load, capacity
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import find_hardware, find_model, published_latency_error, silicon_accuracy
from maitred.instance.latency import AIConfiguratorLatency, Deployment, Grid, SiliconTable
from maitred.report import VerdictKind
from maitred.sim import ClusterConfig
from maitred.sim.fleet_config import InstanceGroup
from maitred.sim.instance_groups import resolve_fleet

FLAT = Grid(((1.0, 2.0), (0.0, 1000.0)), (4000.0,) * 4)
TABLE = SiliconTable(
    shared=((0.0, 5000.0), (1000.0, 20000.0)),
    prompts=Grid(((1.0, 2.0), (0.0, 1000.0), (0.0, 1000.0)), (0.0,) * 8),
    decode=FLAT,
    beside=FLAT,
    source="AIConfigurator",
)


def kernels(engine: str, hardware: str, stated: AIConfiguratorLatency | None = None) -> AIConfiguratorLatency:
    """Return the latency model as the catalogue resolves it."""
    on = Deployment(model=find_model("llama-3.1-8b"), hardware=find_hardware(hardware))
    known = replace(stated or AIConfiguratorLatency(), engine=engine, deployment=on, table=TABLE)  # type: ignore[arg-type]
    return silicon_accuracy.with_overheads(known, engine, on.hardware.aiconfigurator)


def run_of(instance: InstanceConfig) -> str:
    return maitred.simulate(maitred.synthetic(rate=1, num_requests=3), None, instance).assess().simulated


def run(latency: AIConfiguratorLatency, prompt: int = 100, output: int = 4) -> maitred.Assessment:
    instance = InstanceConfig(model="llama-3.1-8b", latency=latency, total_kv_blocks=20_000, max_model_len=300_000)
    return maitred.simulate(
        maitred.synthetic(rate=1, num_requests=3, input_tokens=prompt, output_tokens=output), None, instance
    ).assess()


@pytest.mark.parametrize(
    ("engine", "hardware", "words"),
    [
        (
            "vllm",
            "B200",
            "with 1,500 µs per step, 25 µs per sequence of a step and 44 ms per request, fitted on half of 875 pairs, median "
            "error TTFT 18 %, TPOT 8 % ",
        ),
        (
            "vllm",
            "H100",
            "with 1,500 µs per step, 25 µs per sequence of a step and 0 ms per request, fitted on half of 875 pairs, median "
            "error TTFT 11 %, TPOT 5 % ",
        ),
        (
            "sglang",
            "H200",
            "with 800 µs per step, 25 µs per sequence of a step and 184 ms per request, fitted on half of 603 pairs, median "
            "error TTFT 21 %, ",
        ),
        (
            "trtllm",
            "H100",
            "(AIConfigurator) with 300 µs per step and 0 ms per request, fitted on half of 965 pairs, median error TTFT 29 %, "
            "TPOT 6 % on 305 measured pairs of h100_sxm under trtllm; ",
        ),
        ("vllm", "A100", "TPOT 8 % on 350 measured pairs of other systems under vllm, as a100_sxm has too few; "),
    ],
)
def test_the_line_says_overheads_and_the_error_on_the_nearest_pairs(engine: str, hardware: str, words: str) -> None:
    assert words in run(kernels(engine, hardware)).simulated


def test_zeros_turn_overheads_off_and_nothing_is_known_of_the_error() -> None:
    off = kernels("vllm", "B200", AIConfiguratorLatency(step_overhead=0, sequence_overhead=0, alpha=(0, 0, 0)))
    assert off.compiled().overheads.queueing_delay(100) == 0
    assert "with 0 µs per step and 0 ms per request as given, error unknown" in run(off).simulated


def test_the_error_that_is_drawn_is_that_of_the_nearest_pairs() -> None:
    """Half of all normal errors are below 0.6745 standard deviations, and half of those of TPOT on H100 below 5 %."""
    instance = InstanceConfig(model="llama-3.1-8b", latency=kernels("vllm", "H100"), total_kv_blocks=20_000, latency_error=None)
    error = published_latency_error(instance)
    assert error == pytest.approx(0.05 / 0.6745, abs=1e-4)
    drawn = run_of(replace(instance, latency_error=error))
    assert "error drawn with a standard deviation of 7.4%, for a median error TTFT 11 %, TPOT 5 % on 47 measured" in drawn
    assert "error 7.0% as configured" in run_of(replace(instance, latency_error=0.07))


@pytest.mark.parametrize("stated", [AIConfiguratorLatency(step_overhead=0), AIConfiguratorLatency(alpha=(1, 0, 0))])
def test_no_error_is_known_of_other_overheads(stated: AIConfiguratorLatency) -> None:
    instance = InstanceConfig(model="llama-3.1-8b", latency=kernels("vllm", "B200", stated), total_kv_blocks=20_000)
    assert published_latency_error(instance) is None


def test_capacity_counts_the_error_of_measured_kernels() -> None:
    instance = InstanceConfig(model="llama-3.1-8b", latency=kernels("vllm", "H100"), total_kv_blocks=20_000)
    load = Load(rate=5, num_requests=40, input_tokens=100, output_tokens=10)
    found = capacity(Candidate(instance=instance), num_instances=1, workload=load, slo=maitred.Slo(ttft_ms=500), seeds=1)
    assert [option.model_error for option in found.options] == [pytest.approx(0.0741)]


def test_a_mix_beyond_the_measured_kernels_says_so() -> None:
    def said(prompt: int, output: int = 4) -> str:
        verdicts = run(kernels("vllm", "H100"), prompt, output).verdicts
        return " ".join(verdict.text for verdict in verdicts if verdict.kind is VerdictKind.UNMEASURED)

    assert said(16_384) == ""
    found = said(200_000)
    assert "prompts of up to 200,000 tokens (measured up to 16,384)" in found
    assert "decodes over up to 200,004 tokens (measured up to 131,072)" in found


def test_groups_that_differ_in_a_fitted_overhead_of_requests_have_none() -> None:
    """An L40S with a roofline has no such overhead, and a stated one still has to agree."""
    base = InstanceConfig(model="llama-3.1-8b")
    measured = InstanceGroup(hardware="B200", latency=kernels("vllm", "B200"))
    roofline = InstanceGroup(hardware="L40S", latency="roofline")
    cluster, _ = resolve_fleet(ClusterConfig(groups=[measured, roofline]), replace(base, total_kv_blocks=5000))
    first = cluster.groups[0].latency
    assert isinstance(first, AIConfiguratorLatency)
    assert (first.step_overhead, first.alpha) == (1500.0, (0.0, 0.0, 0.0))
    own = InstanceGroup(hardware="B200", latency=kernels("vllm", "B200", AIConfiguratorLatency(alpha=(9, 0, 0))))
    with pytest.raises(maitred.ConfigError, match="overheads of a request"):
        resolve_fleet(ClusterConfig(groups=[own, roofline]), replace(base, total_kv_blocks=5000))
