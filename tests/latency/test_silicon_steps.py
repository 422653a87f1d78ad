"""Steps put together from tables of measured kernels, on tables small enough to compute by hand."""

from __future__ import annotations

import pytest

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import ConfigError
from maitred.instance.latency import AIConfiguratorLatency, Grid, SiliconTable, parse_latency
from maitred.instance.latency.step_table import Curve

SHARED: Curve = ((0.0, 5000.0), (1000.0, 20000.0))  # 15 µs for each token
PROMPTS = Grid(((1.0, 2.0), (0.0, 1000.0), (0.0, 1000.0)), (0.0, 0.0, 1000.0, 3000.0, 0.0, 0.0, 2000.0, 6000.0))
DECODE = Grid(((1.0, 9.0), (0.0, 1000.0, 2000.0)), (4000.0, 4100.0, 4300.0, 4800.0, 5700.0, 7500.0))
BESIDE = Grid(((1.0, 11.0), (0.0, 1000.0)), (0.0, 25.0, 0.0, 275.0))
TABLE = SiliconTable(shared=SHARED, prompts=PROMPTS, decode=DECODE, beside=BESIDE)


def step_us(batch: BatchShape, ranks: int = 1) -> int:
    table = SiliconTable(shared=SHARED, prompts=PROMPTS, decode=DECODE, beside=BESIDE, ranks=ranks)
    return AIConfiguratorLatency(table=table).compiled().step_time(batch)


def prompts(*chunks: tuple[int, int], decodes: int = 0, context: int = 0) -> BatchShape:
    shapes = tuple(ChunkShape(tokens, start, tokens + start) for tokens, start in chunks)
    return BatchShape(decodes, decodes * context, sum(tokens for tokens, _ in chunks), shapes)


def test_a_step_that_prefills_adds_its_parts() -> None:
    assert step_us(prompts((500, 0))) == 5000 + 500 * 15 + 500
    assert step_us(prompts((500, 500))) == 5000 + 500 * 15 + 1000
    assert step_us(prompts((500, 0), decodes=10, context=1000)) == 5000 + 510 * 15 + 500 + 250


def test_unequal_chunks_count_as_equal_ones_over_as_many_pairs() -> None:
    """600 and 200 tokens have 200,000 pairs, two chunks of 400 have 160,000: 50 tokens before each make up for the rest."""
    assert step_us(prompts((600, 0), (200, 0))) == 5000 + 800 * 15 + 800 + 80


def test_a_run_takes_what_its_steps_take() -> None:
    model = AIConfiguratorLatency(table=TABLE).compiled()
    batch = BatchShape(5, 5 * 990)
    steps = [model.step_time(BatchShape(5, 5 * 990 + 5 * step)) for step in range(300)]

    assert steps[0] == pytest.approx(4400 + 500 * 0.99, abs=1)
    assert model.run_time(batch, 300) == sum(steps)
    assert model.steps_within(batch, sum(steps[:123]), 300) == 123


def test_the_slowest_rank_counts() -> None:
    """Of 10 sequences on 2 ranks each has 5; of two prompts each rank has one."""
    assert step_us(BatchShape(10, 0), ranks=2) == step_us(BatchShape(5, 0))
    assert step_us(prompts((600, 0), (200, 0)), ranks=2) == step_us(prompts((600, 0)))


def test_overheads_are_added_to_steps_and_to_the_way_in() -> None:
    """Once for a step, whatever the ranks; scaled with it. α delays no step."""
    batches = [prompts((500, 0), decodes=10, context=1000), BatchShape(5, 5 * 990)]
    for ranks in (1, 2):
        table = SiliconTable(shared=SHARED, prompts=PROMPTS, decode=DECODE, beside=BESIDE, ranks=ranks)
        bare = AIConfiguratorLatency(table=table).compiled(2.0)
        with_both = AIConfiguratorLatency(table=table, step_overhead=1500, alpha=(60_000, 0, 0)).compiled(2.0)
        for batch in batches:
            assert with_both.step_time(batch) == bare.step_time(batch) + 3000
            assert bare.overheads.queueing_delay(100) == 0
            assert with_both.overheads.queueing_delay(100) == 60_000


def test_an_overhead_of_sequences_counts_those_of_the_slowest_rank() -> None:
    """10 sequences and a chunk: 11 on one rank; on two, 5 each, and the chunk on the first. A run takes what its steps take."""
    batch, run = prompts((500, 0), decodes=10, context=1000), BatchShape(5, 5 * 990)
    for ranks, mixed, alone in ((1, 11, 5), (2, 6, 3)):
        table = SiliconTable(shared=SHARED, prompts=PROMPTS, decode=DECODE, beside=BESIDE, ranks=ranks)
        bare, added = (AIConfiguratorLatency(table=table, sequence_overhead=each).compiled(2.0) for each in (None, 30.0))
        assert added.step_time(batch) == bare.step_time(batch) + 60 * mixed
        assert added.step_time(run) == bare.step_time(run) + 60 * alone
        assert added.run_time(run, 100) == bare.run_time(run, 100) + 6000 * alone


@pytest.mark.parametrize("wrong", ["sequence_overhead=-1", "step_overhead=-1", "alpha=[-1, 0, 0]", "step_overhead=1e12"])
def test_an_overhead_that_cannot_be(wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong.partition("=")[0]):
        parse_latency(f"aiconfigurator({wrong})")


def test_it_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="aiconfigurator needs a model"):
        AIConfiguratorLatency().compiled()


def test_it_is_written_as_every_policy_is() -> None:
    assert parse_latency("aiconfigurator(engine=sglang, precision=fp8)") == AIConfiguratorLatency("sglang", "fp8")
    with pytest.raises(ConfigError, match="engine"):
        parse_latency("aiconfigurator(engine=tgi)")


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"decode": PROMPTS}, {"beside": Grid(((1.0,), (1.0,)), (-1.0,))}])
def test_a_table_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"ranks must|decode has 2 axes|at least 0"):
        SiliconTable(**{"shared": SHARED, "prompts": PROMPTS, "decode": DECODE, "beside": BESIDE, **wrong})  # type: ignore[arg-type]
