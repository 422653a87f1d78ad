"""The analytic models against their formulas as BLIS's documentation has them, term by term."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_shapes import H100, LATENT, LLAMA, MIXTRAL, ON_H100, decode, prefill
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import ConfigError
from maitred.instance.latency import Deployment, ModelSpec, RooflineLatency, TrainedPhysicsLatency

SHARED = replace(MIXTRAL, expert_intermediate_size=2048, shared_intermediate_size=3072, first_dense_layers=3)
EIGHT_BITS = [replace(LLAMA, weight_bytes=1.0), replace(SHARED, weight_bytes=1.0)]
MODELS = [LLAMA, MIXTRAL, SHARED, *EIGHT_BITS, replace(MIXTRAL, interleave_moe_layer_step=1)]
BETA = (0.9, 0.8, 1.1, 0.7, 30.0, 4.0, 120.0, 480.0, 0.6, 1.9, 0.5)


@st.composite
def batches(draw: st.DrawFn) -> BatchShape:
    chunks = []
    for prompt in draw(st.lists(st.integers(1, 5000), max_size=3)):
        start = draw(st.integers(0, prompt - 1))
        chunks.append(ChunkShape(draw(st.integers(1, prompt - start)), start, prompt))
    decodes = draw(st.integers(0 if chunks else 1, 200))
    context = decodes * draw(st.integers(1, 4000))
    return BatchShape(decodes, context, sum(chunk.num_tokens for chunk in chunks), tuple(chunks))


def roofline(on: Deployment, batch: BatchShape) -> float:
    m, h, t = on.model, on.hardware, on.tensor_parallel_size
    layers, d, heads, kv_heads, dh, b = m.num_layers, m.hidden_size, m.num_heads, m.num_kv_heads, m.head_width, 2
    peak = (h.peak_tflops_fp8 if m.weight_width == 1 else h.peak_tflops) * 1e12
    fe, k, n = m.expert_width, m.experts_per_token, m.num_experts

    def flops(seq: int, new: int) -> float:
        eff = seq + (new - 1) / 2 if new > 1 else seq
        attention = layers * (2 * new * (d * d + 2 * d * kv_heads * dh) + 2 * new * d * d + 4 * heads * new * eff * dh)
        dense = 2 * new * 2 * d * m.intermediate_size * m.dense_layers
        experts = 2 * new * 2 * d * (fe * k + m.shared_intermediate_size) * m.moe_layers
        return attention + dense + experts + layers * (5 * heads * new * eff + 2 * new * d)

    def moved(seq: int, new: int) -> float:
        return (2 * layers * kv_heads * dh * b * new + 2 * layers * kv_heads * dh * b * seq + layers * d * b * new) / t

    share = batch.context_tokens / max(1, batch.num_decodes)
    new = batch.prefill_tokens + batch.num_decodes
    seconds = sum(flops(c.num_computed_tokens, c.num_tokens) for c in batch.chunks) / t / (peak * h.mfu_prefill)
    seconds += batch.num_decodes * flops(share, 1) / t / (peak * h.mfu_decode)
    dynamic = sum(moved(c.num_computed_tokens, c.num_tokens) for c in batch.chunks) + batch.num_decodes * moved(share, 1)
    active = n * (1 - ((n - k) / n) ** new) if n else 0
    ffn = m.dense_layers * 2 * d * m.intermediate_size + m.moe_layers * 2 * d * (fe * active + m.shared_intermediate_size)
    weights = ((d * (d + 2 * kv_heads * dh) + d * d) * layers + ffn) * m.weight_width / t
    return max(seconds, (weights + dynamic) / (h.bandwidth_tb_s * 1e12)) * 1e6


def physics(on: Deployment, beta: tuple[float, ...], all_to_all: bool, batch: BatchShape) -> float:
    m, h, tp, dp = on.model, on.hardware, on.tensor_parallel_size, on.data_parallel_size
    layers, d, heads, dkv, dh, w = m.num_layers, m.hidden_size, m.num_heads, m.num_kv_heads * m.head_width, m.head_width, 2
    flops = (h.peak_tflops_fp8 if m.weight_width == 1 else h.peak_tflops) * 1e6
    bw, u, hg = h.bandwidth_tb_s * 1e6, tp * dp, heads / tp
    tokens, n, c = batch.prefill_tokens, batch.num_decodes, batch.context_tokens

    def feed_forward(count: float) -> float:
        dense = m.dense_layers * count * 6 * d * m.intermediate_size / u
        routed = m.moe_layers * count * m.experts_per_token / u * 6 * d * m.expert_width
        return dense + routed + m.moe_layers * count * 6 * d * m.shared_intermediate_size / u

    a = sum(4 * hg * x.num_tokens * (x.total_tokens + x.num_tokens / 2) * dh for x in batch.chunks)
    tpc = (2 * layers * tokens * d * (2 * d + 2 * dkv) / u + layers * a / dp + feed_forward(tokens)) / flops
    tpk = 2 * layers * (dkv / u) * tokens * 2 / bw
    tdc = (2 * layers * n * d * (2 * d + 2 * dkv) / u + 4 * layers * hg * c * dh / dp + feed_forward(n)) / flops
    tdk = 2 * layers * (dkv / u) * 2 * (c + n) / bw
    stored = (layers * d * (2 * d + 2 * dkv) + m.dense_layers * 3 * d * m.intermediate_size) / tp
    stored += m.moe_layers * 3 * d * (m.num_experts / u * m.expert_width + m.shared_intermediate_size / tp)
    tw = stored * m.weight_width / bw

    def all_reduce(units: float) -> float:
        return units * (tokens + n) * d * w * 2 * ((tp - 1) / tp) / bw

    reduced = all_reduce(layers) / dp + all_reduce(m.dense_layers) / dp + (all_reduce(m.moe_layers) if dp == 1 else 0)
    td = m.moe_layers * (tokens + n) / dp * (u - 1) / u * 2 * d * w / bw if dp > 1 else 0
    td *= m.experts_per_token if all_to_all else 1
    b1, b2, b3, b4, b5, b6, b7, b8, b1b, b2b, bep = (*beta, *[0.0] * (10 - len(beta)), beta[3])[:11]
    p = b1 * tpc + b1b * tpk if len(beta) >= 9 else b1 * max(tpc, tpk)
    dec = b2 * tdc + b2b * tdk if len(beta) >= 10 else b2 * max(tdc, tdk)
    interleaved = m.moe_layers if m.interleave_moe_layer_step else 0
    fixed = b3 * tw + b4 * reduced + bep * td + b5 * layers + b6 * (n + len(batch.chunks)) + b7 + b8 * interleaved
    return p + dec + fixed


def close(found: int, exact: float) -> bool:
    """Truncated; where the exact time is a whole µs, rounding decides."""
    return found in (int(exact - 1e-6), int(exact + 1e-6))


@given(batches(), st.sampled_from(MODELS), st.sampled_from([1, 2, 4]))
def test_roofline(batch: BatchShape, model: ModelSpec, tp: int) -> None:
    on = Deployment(model=model, hardware=H100, tensor_parallel_size=tp)

    assert close(RooflineLatency(on).compiled().step_time(batch), roofline(on, batch))


@given(
    batches(), st.sampled_from(MODELS), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.integers(7, 11), st.booleans()
)
def test_trained_physics(batch: BatchShape, model: ModelSpec, tp: int, dp: int, betas: int, all_to_all: bool) -> None:
    on = Deployment(model=model, hardware=H100, tensor_parallel_size=tp, data_parallel_size=dp)
    config = TrainedPhysicsLatency((0, 0, 0), BETA[:betas], "all-to-all" if all_to_all else "all-gather", on)

    assert close(config.compiled().step_time(batch), physics(on, BETA[:betas], all_to_all, batch))


@given(batches(), st.integers(1, 80), st.sampled_from(MODELS), st.sampled_from([8, 10]))
def test_a_run_is_the_sum_of_its_steps(batch: BatchShape, steps: int, model: ModelSpec, betas: int) -> None:
    on = Deployment(model=model, hardware=H100)
    n = max(1, batch.num_decodes)
    for latency in (RooflineLatency(on).compiled(), TrainedPhysicsLatency(beta=BETA[:betas], deployment=on).compiled()):
        run = decode(n, batch.context_tokens)
        times = [latency.step_time(decode(n, batch.context_tokens + n * j)) for j in range(steps + 2)]
        alone = times[:-2]

        assert latency.run_time(run, steps) == sum(alone)
        assert latency.steps_within(run, sum(alone), 99) == steps
        for more in (0, 1, 2):
            assert latency.run_time(run, steps + more) == sum(times[: steps + more])
        assert latency.steps_within(decode(n, batch.context_tokens), sum(alone), 99) == steps
        assert latency.steps_within(decode(n, batch.context_tokens), sum(alone) - 1, 99) == steps - 1


def test_a_chunk_without_tokens_is_no_request() -> None:
    latency = TrainedPhysicsLatency(beta=(0, 0, 0, 0, 0, 50, 5000), deployment=ON_H100).compiled()
    cached = ChunkShape(0, 64, 64)

    assert latency.step_time(BatchShape(0, 0, 0, (cached,))) == 1
    assert latency.step_time(BatchShape(2, 40, 9, (cached, ChunkShape(9, 0, 9)))) == 5150


@pytest.mark.parametrize("config", [RooflineLatency(ON_H100), TrainedPhysicsLatency(deployment=ON_H100)])
def test_a_scale_makes_every_step_longer(config: RooflineLatency | TrainedPhysicsLatency) -> None:
    usual, twice = config.compiled(), config.compiled(2.0)

    for batch in (prefill(700), decode(9, 9000), BatchShape(3, 900, 100, (ChunkShape(100, 0, 100),))):
        assert twice.step_time(batch) in (2 * usual.step_time(batch), 2 * usual.step_time(batch) + 1)
    assert twice.overheads == usual.overheads


def test_a_scale_holds_for_what_goes_to_the_experts_too() -> None:
    on = Deployment(model=MIXTRAL, hardware=H100, data_parallel_size=2)
    config = TrainedPhysicsLatency(beta=(0,) * 10 + (1000.0,), deployment=on)
    once, twice = config.compiled().step_time(prefill(700)), config.compiled(2.0).step_time(prefill(700))

    assert once > 1000
    assert twice in (2 * once, 2 * once + 1)


def test_the_8_bit_rate_counts_where_weights_have_one_byte_and_the_gpu_has_it() -> None:
    def rate(weight_bytes: float, peak_tflops_fp8: float = 1979) -> float:
        hardware = replace(H100, peak_tflops_fp8=peak_tflops_fp8)
        return Deployment(model=replace(LLAMA, weight_bytes=weight_bytes), hardware=hardware).flops_per_us

    assert [rate(0.0), rate(2.0), rate(0.5), rate(1.0)] == [989.5e6, 989.5e6, 989.5e6, 1979e6]
    assert rate(1.0, peak_tflops_fp8=0) == 989.5e6


def test_layers_with_experts_that_are_interleaved() -> None:
    """Every one in memory (Llama 4 Scout); one of two in the formulas, as BLIS counts."""
    scout = replace(MIXTRAL, num_layers=48, interleave_moe_layer_step=1)

    assert (scout.expert_layers, scout.moe_layers, scout.dense_layers) == (48, 24, 24)
    assert replace(scout, interleave_moe_layer_step=2).expert_layers == 24


def test_weights_counted_by_hand() -> None:
    shape = {"num_layers": 3, "hidden_size": 8, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 10, "vocab_size": 100}
    experts = {"num_experts": 6, "experts_per_token": 2, "expert_intermediate_size": 5, "shared_intermediate_size": 7}
    model = ModelSpec(name="tiny", **shape, **experts, first_dense_layers=1)

    attention, norms = 8 * 8 + 2 * 8 * 4 + 8 * 8, 2 * 8
    moe = 3 * 8 * (6 * 5 + 7) + 8 * 6  # experts, the shared one, and the router
    assert model.params == 2 * 100 * 8 + 3 * (attention + norms) + 3 * 8 * 10 + 2 * moe + 8
    assert replace(model, tied_embeddings=True).params == model.params - 100 * 8


def test_compressed_keys_and_values_are_read_once_for_all_heads() -> None:
    assert LATENT.kv_width == 64 + 16
    assert LATENT.head_width == (32 + 16 + 32) // 2
    queries = 96 * (512 + 8 * 48)
    assert LATENT.attention_params == queries + 512 * 80 + 64 * 8 * 64 + 8 * 32 * 512
    beta = (0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0)
    alone, sharded = (
        TrainedPhysicsLatency(beta=beta, deployment=Deployment(model=LATENT, hardware=H100, tensor_parallel_size=tp)).compiled()
        for tp in (1, 4)
    )

    read = 4 * 80 * 2 * (10_000_000 + 1) / 3.35e6

    assert alone.step_time(decode(1, 10_000_000)) == sharded.step_time(decode(1, 10_000_000)) == int(read)


@pytest.mark.parametrize(("model", "tp", "wide"), [(LATENT, 4, 80), (LLAMA, 8, 256), (LLAMA, 16, 256), (LLAMA, 32, 256)])
def test_how_much_kv_a_gpu_reads(model: ModelSpec, tp: int, wide: int) -> None:
    """Elements per token and layer: all that is compressed, or a head's keys and values, of which there are 8."""
    on = Deployment(model=model, hardware=H100, tensor_parallel_size=tp)
    beta = (0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0)
    much, more = decode(1, 10_000_000), decode(1, 20_000_000)
    read = model.num_layers * wide * 2 * 10_000_000 / 3.35e6

    physics = TrainedPhysicsLatency(beta=beta, deployment=on).compiled()
    assert physics.step_time(more) - physics.step_time(much) == pytest.approx(read, abs=1)
    slow = RooflineLatency(replace(on, hardware=replace(H100, mfu_decode=1e3))).compiled()  # so that memory is what counts
    assert slow.step_time(more) - slow.step_time(much) == pytest.approx(read, abs=1)


def test_a_step_takes_a_microsecond_at_least() -> None:
    nothing = TrainedPhysicsLatency(beta=(0,) * 7, deployment=ON_H100).compiled()

    assert nothing.step_time(prefill(700)) == nothing.step_time(decode(9, 9000)) == 1


@pytest.mark.parametrize(
    ("say", "wrong"),
    [
        (lambda: TrainedPhysicsLatency(beta=(5000, 17.5, 60)), "from 7 to 11"),
        (lambda: TrainedPhysicsLatency(beta=(1.0,) * 9 + (-1.0,)), "at least 0"),
        (lambda: TrainedPhysicsLatency(alpha=(1.0, float("nan"), 0.0)), "at least 0"),
        (lambda: Deployment(model=LLAMA, hardware=H100, tensor_parallel_size=3), "divide the 32 heads"),
        (lambda: replace(MIXTRAL, experts_per_token=9), "from 1 to num_experts 8"),
        (lambda: replace(LLAMA, num_heads=30), "say head_dim"),
        (lambda: replace(H100, bandwidth_tb_s=0.0), "above 0"),
    ],
)
def test_what_cannot_be_is_refused(say: object, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        say()  # type: ignore[operator]


@pytest.mark.parametrize("config", [RooflineLatency(), TrainedPhysicsLatency()])
def test_without_a_model_there_is_nothing_to_compute(config: RooflineLatency | TrainedPhysicsLatency) -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        config.compiled()
