"""The spread of the contexts of a batch: worked out for the latency models that ask for it, and for no other."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instance_timeline import request
from test_skipping import drive, workloads

from maitred.batching.limits import context_spread
from maitred.compat.instance_rules import new_instance
from maitred.core.contracts import UNIFORM_CONTEXTS, BatchShape, ContextSpread, LatencyModel, Overheads
from maitred.core.request import Request
from maitred.instance import Instance, InstanceConfig, LinearLatency, engine_core
from maitred.instance.latency import Grid, Skew, SpreadAwareModel, StepTable, TableLatency
from maitred.instance.latency.affine import AffineCost, Envelope, envelope
from maitred.sim import ClusterConfig, DisaggregationConfig, simulate
from maitred.workload import Job

UNEVEN = TableLatency(
    table=StepTable(
        tokens=((1.0, 20.0), (50.0, 130.0)),
        decode=Grid(((1.0, 2.0, 9.0), (1.0, 30.0, 100.0, 300.0)), (1, 3, 8, 40, 2, 7.5, 21, 90, 9, 44, 60, 333)),
        mixed=Grid(((1.0, 100.0), (0.0, 100.0), (0.0, 9.0), (0.0, 200.0)), tuple(float(7 * i) for i in range(16))),
        skew=Skew((2.0, 6.0), (0.3, 1.0), (40.0, 150.0), (0.9, 0.1, 0.5, 0.2, 1.0, 0.0, 0.3, 0.7)),
    )
)


class Asking(SpreadAwareModel):
    """A model in which every step takes 100 µs. It keeps the batches that it is shown."""

    def __init__(self) -> None:
        super().__init__(Overheads())
        self.seen: list[BatchShape] = []

    def compiled(self, _scale: float) -> LatencyModel:
        return self

    def envelope_within(self, decodes: int, spread: ContextSpread, first: int, last: int) -> Envelope:
        self.seen.append(BatchShape(decodes, first, context_spread=spread))
        return envelope((AffineCost(100),))

    def prefill_step_time(self, batch: BatchShape) -> float:
        self.seen.append(batch)
        return 100


def asked(engine: Instance, lengths: list[tuple[int, int]]) -> None:
    """Run requests of the given lengths (prompt, output) to their end."""
    for number, (prompt, output) in enumerate(lengths):
        engine.enqueue(request(number, prompt), output, 0)
    while (due := engine.next_event()) is not None:
        engine.advance(due)


@pytest.mark.parametrize(
    ("contexts", "above", "below", "deviation"),
    [
        ([7], 0, 0, 0),
        ([100, 200, 600], 300, 200, ((200**2 + 100**2 + 300**2) / 3) ** 0.5),
        ([5, 5, 5, 9], 3, 1, 3**0.5),
    ],
)
def test_distances_from_the_mean(contexts: list[int], above: float, below: float, deviation: float) -> None:
    assert context_spread(contexts) == ContextSpread(above, below, pytest.approx(deviation))


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=40), st.integers(1, 100_000))
def test_it_is_the_same_to_the_last_bit_all_through_a_run(contexts: list[int], steps: int) -> None:
    assert context_spread([context + steps for context in contexts]) == context_spread(contexts)


@pytest.mark.parametrize("flavour", [None, "blis"])
def test_a_batch_says_how_far_apart_its_contexts_lie(flavour: Any) -> None:
    model = Asking()
    engine = new_instance(msgspec.structs.replace(InstanceConfig(flavour=flavour), latency=model), Random(0))
    asked(engine, [(100, 30), (200, 30), (600, 11)])

    assert [(batch.num_decodes, batch.context_tokens, batch.context_spread) for batch in model.seen] == [
        (0, 0, UNIFORM_CONTEXTS),
        (3, 900, context_spread([100, 200, 600])),
        (2, 320, ContextSpread(50, 50, 50)),  # the last has gone
    ]


def test_who_comes_with_its_kv_counts_from_its_first_step() -> None:
    model = Asking()
    instance = msgspec.structs.replace(InstanceConfig(), latency=model)
    split = DisaggregationConfig(prefill_instances=1, decode_instances=1, kv_bytes_per_token=1)
    jobs = [Job(Request(id=n, arrival=0, prompt_tokens=prompt), 3) for n, prompt in enumerate((300, 100))]
    simulate(jobs, ClusterConfig(num_instances=2, disaggregation=split), instance)

    decoding = [batch for batch in model.seen if batch.num_decodes]
    assert [(batch.num_decodes, batch.context_tokens, batch.context_spread) for batch in decoding] == [
        (2, 400, ContextSpread(100, 100, 100))
    ]


def test_a_model_that_does_not_ask_pays_nothing() -> None:
    shapes: list[BatchShape] = []

    class Watching(LinearLatency, frozen=True, tag="watching"):
        def compiled(self, scale: float = 1.0) -> LatencyModel:
            return self

        def step_time(self, batch: BatchShape) -> int:
            return self.run_time(batch, 1)

        def run_time(self, batch: BatchShape, steps: int) -> int:
            shapes.append(batch)
            return 100 * steps

        def steps_within(self, batch: BatchShape, span: int, limit: int) -> int:
            return min(limit, span // 100)

    asked(Instance(InstanceConfig(latency=Watching()), Random(0)), [(100, 30), (600, 30)])

    assert shapes
    assert all(shape.context_spread is UNIFORM_CONTEXTS for shape in shapes)


@pytest.mark.parametrize(("flavour", "ahead"), [(None, False), (None, True), ("blis", False)])
@settings(max_examples=15, deadline=None)
@given(workload=workloads(), looks=st.sets(st.integers(0, 4000), max_size=5), ranks=st.sampled_from([1, 2]))
def test_skipping_changes_nothing(flavour: Any, ahead: bool, workload: Any, looks: set[int], ranks: int) -> None:
    config, jobs, aborts = workload
    if flavour == "blis":
        aborts, looks = [], set()  # BLIS knows neither
    assert UNEVEN.table is not None
    table = msgspec.structs.replace(UNEVEN.table, data_parallel_size=ranks)
    config |= {"latency": TableLatency(table=table), "flavour": flavour, "async_scheduling": ahead}
    skipping = drive(InstanceConfig(**config), jobs, aborts, looks)

    assert skipping == drive(InstanceConfig(**config, step_by_step=True), jobs, aborts, set())


@given(
    jobs=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 150), st.integers(1, 150)), min_size=1, max_size=12),
    seqs=st.sampled_from([2, 5, 16]),
)
def test_gaps_between_tokens_are_counted_alike(jobs: list[tuple[int, int, int]], seqs: int) -> None:
    requests = [
        Job(Request(id=n, arrival=at, prompt_tokens=prompt), output) for n, (at, prompt, output) in enumerate(sorted(jobs))
    ]
    config = InstanceConfig(latency=UNEVEN, max_num_seqs=seqs)
    skipping, singly = (
        simulate(requests, instance=each) for each in (config, msgspec.structs.replace(config, step_by_step=True))
    )

    assert skipping.finished.tolist() == singly.finished.tolist()
    assert skipping.instances[0].itl == singly.instances[0].itl


def test_who_stands_still_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By BLIS's rules a sequence may decode and stand still in a step. The contexts that the model is shown are those of the
    sequences whose tokens the step makes."""
    looked: list[list[int]] = []
    stood_still = 0

    class Comparing(Asking):
        def run_time(self, batch: BatchShape, steps: int) -> int:
            if batch.num_decodes > 1:
                assert (len(looked[-1]), sum(looked[-1])) == (batch.num_decodes, batch.context_tokens)
            return super().run_time(batch, steps)

    def noted(contexts: list[int]) -> ContextSpread:
        looked.append(contexts)
        return context_spread(contexts)

    monkeypatch.setattr(engine_core, "context_spread", noted)
    for seed in range(40):
        random = Random(seed)
        config = InstanceConfig(
            flavour="blis",
            latency=Comparing(),
            total_kv_blocks=30,
            block_size_in_tokens=4,
            preemption_policy="priority",
            max_model_len=100,
        )
        instance = new_instance(config, Random(0))
        for number in range(10):
            instance.enqueue(
                request(number, random.randint(4, 20), priority=float(random.randint(0, 5))), random.randint(5, 60), 0
            )
        while (due := instance.next_event()) is not None:
            stood_still += sum(event.seq.stall_time > 0 for event in instance.advance(due))
    assert stood_still
