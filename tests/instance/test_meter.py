"""How busy an instance was, and the gaps between tokens: by hand, and the same with and without skipping."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.batching import StepPlan
from maitred.core.contracts import BatchShape, LatencyModel, Overheads
from maitred.core.histogram import QuantileSketch, bucket_end, bucket_index
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.instance.latency.affine import AffineCost, MaxOfLinesModel
from maitred.instance.step_meter import StepMeter
from maitred.instance.step_run import StepRun

LINEAR = LinearLatency((100, 1, 10), (0, 0, 5))


class Growing(msgspec.Struct, frozen=True):
    """Steps that get longer with the context: 100 µs and a tenth of a µs for each token."""

    overheads: Overheads = Overheads()

    def step_time(self, batch: BatchShape) -> Micros:
        return 100 + batch.prefill_tokens + batch.context_tokens // 10

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return sum(
            self.step_time(BatchShape(batch.num_decodes, batch.context_tokens + step * batch.num_decodes))
            for step in range(steps)
        )

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return next(steps for steps in range(limit, -1, -1) if self.run_time(batch, steps) <= span)


class OnLine(MaxOfLinesModel):
    """Steps that get longer with the context along one line: 1 µs and `slope` µs for each token, with an overhead of 5 µs."""

    def __init__(self, slope: float) -> None:
        super().__init__(Overheads(per_output_token=5))
        self._slope = slope

    def decode_lines(self, decodes: int) -> list[AffineCost]:
        return [AffineCost(1 + decodes / 3, self._slope)]

    def prefill_step_time(self, batch: BatchShape) -> float:
        return 100 + batch.prefill_tokens + self._slope * batch.context_tokens


def metered(jobs: list[tuple[int, int, int]], config: InstanceConfig) -> StepMeter:
    """Jobs are (arrival, prompt, output)."""
    instance = Instance(config, Random(0))
    meter = StepMeter(config.latency_model())
    instance.observe(meter)
    for number, (arrival, prompt, output) in enumerate(jobs):
        instance.enqueue(Request(id=number, arrival=arrival, prompt_tokens=prompt), output, arrival)
        instance.commit_ended_steps(arrival)
    while (due := instance.next_event()) is not None:
        instance.advance(due)
    return meter


def test_every_token_but_the_first_has_a_gap() -> None:
    # prefill to 150; decode to 260; beside the prefill of the second to 420 (160); both to 540 (120), then one alone for 110
    meter = metered([(0, 50, 4), (200, 50, 3)], InstanceConfig(latency=LINEAR))
    assert meter.busy_time == 150 + 110 + 160 + 120 + 110
    expected = QuantileSketch()
    for gap, times in ((110, 1), (160, 1), (120, 2), (110, 1)):
        expected.add(gap + 5, times)
    assert meter.itl_sketch == expected


def test_a_pause_counts_as_the_gap_that_it_is() -> None:
    """Two sequences of 32 tokens each in 5 blocks of 16: the second is preempted, comes back when the first has ended."""
    config = InstanceConfig(latency=LINEAR, total_kv_blocks=5)
    meter = metered([(0, 32, 16), (0, 32, 3)], config)
    # both prompts to 164. One block is left, of two that are needed: 1 is preempted. 0 decodes 15 times, to 1814; then 1
    # computes 33 tokens and emits its second one at 1947, its third at 2057
    assert meter.itl_sketch.count == 15 + 2
    assert meter.itl_sketch.maximum == 1947 - 164 + 5
    assert meter.itl_sketch.total == 15 * 115 + 1788 + 115


@given(
    jobs=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 60), st.integers(1, 200)), min_size=1, max_size=8),
    blocks=st.sampled_from([18, 40, 1000]),
    model=st.sampled_from([LINEAR.compiled(), Growing(), OnLine(0.0), OnLine(0.37), OnLine(1.6)]),
)
def test_skipping_measures_the_same(jobs: list[tuple[int, int, int]], blocks: int, model: LatencyModel) -> None:
    class Config(InstanceConfig, frozen=True, kw_only=True):
        def latency_model(self) -> LatencyModel:
            return model

    skipping = metered(sorted(jobs), Config(total_kv_blocks=blocks))
    stepping = metered(sorted(jobs), Config(total_kv_blocks=blocks, step_by_step=True))
    assert (skipping.busy_time, skipping.itl_sketch) == (stepping.busy_time, stepping.itl_sketch)


def test_a_long_run_passes_through_many_buckets() -> None:
    meter = StepMeter(Growing())
    run = StepRun(Growing())
    run.begin(0, StepPlan(1000), 3, 500, BatchShape(3, 500))
    meter.add_run(run, 1000, run.ends_at)
    assert len(meter.itl_sketch.bucket_counts) > 50
    assert sum(meter.itl_sketch.bucket_counts.values()) == meter.itl_sketch.count == 3000


@pytest.mark.parametrize("context", [65_489, 65_490, 65_491, 65_492, 65_529, 65_530, 65_540])
def test_steps_are_counted_alike_where_the_table_of_buckets_ends(context: int) -> None:
    """Gaps below 65,536 µs are looked up in a table, longer ones are not. Each step takes 1 µs more than the one before."""
    model, steps = OnLine(1.0), 40
    run = StepRun(model)
    run.begin(0, StepPlan(steps), 1, context, BatchShape(1, context))
    meter, expected = StepMeter(model), QuantileSketch()
    meter.add_run(run, steps, run.time_of(steps))
    gaps = [run.time_of_step(step) + 5 for step in range(steps)]
    assert run.growth > 0
    assert (gaps[0], gaps[-1]) == (context + 6, context + 45)
    for gap in gaps:
        expected.add(gap)
    assert meter.itl_sketch == expected
    assert meter.busy_time == sum(gaps) - 5 * steps


@given(st.integers(-1, 3000))
def test_a_bucket_ends_where_the_next_one_begins(index: int) -> None:
    end = bucket_end(index)
    assert bucket_index(end) > index
    assert end == 1 or bucket_index(end - 1) <= index


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.integers(0, 100))
def test_a_sketch_is_within_half_a_percent(values: list[int], percent: int) -> None:
    one, many, merged = QuantileSketch(), QuantileSketch(), QuantileSketch()
    for value in values:
        one.add(value)
    many.add_all(np.array(values))
    merged.add_all(np.array(values[::2]))
    merged.merge(one)
    exact = float(np.percentile(values, percent))
    assert one.percentile(percent) == pytest.approx(exact, rel=0.005001)
    assert many.percentile(percent) == pytest.approx(exact, rel=0.005001)
    assert (one.count, one.total, one.minimum, one.maximum) == (len(values), sum(values), min(values), max(values))
    assert (many.count, many.total, many.mean) == (one.count, one.total, one.mean)
    assert merged.count == len(values) + len(values[::2])


def test_a_sketch_of_nothing() -> None:
    sketch = QuantileSketch()
    sketch.add_all(np.array([], dtype=np.int64))
    sketch.merge(QuantileSketch())
    assert sketch == QuantileSketch()
    assert repr(sketch) == "QuantileSketch(0 values, 0..0)"
    with pytest.raises(ValueError, match="of no values"):
        sketch.percentile(50)


def test_small_values_have_buckets_of_their_own() -> None:
    assert len({bucket_index(value) for value in (0, *range(1, 100))}) == 100
