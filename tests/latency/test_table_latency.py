"""Step times from tables: by hand, and runs against one step after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_shapes import decode, prefill

from maitred.core.contracts import BatchShape, ChunkShape, ContextSpread, LatencyModel
from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import resolve_instance
from maitred.instance.catalogue.resolving import encode_step_table, read_step_table
from maitred.instance.latency import Grid, Skew, StepTable, TableLatency, parse_latency

DECODE = Grid(((1.0, 4.0), (100.0, 200.0)), (10.0, 35.0, 40.0, 100.0))
MIXED = Grid(((10.0, 20.0), (0.0, 100.0), (0.0, 2.0), (50.0, 150.0)), tuple(float(100 * i) for i in range(16)))
TABLE = StepTable(
    tokens=((1.0, 1000.0), (8.0, 1000.0), (9.0, 1500.0), (16.0, 1500.0)),
    sequences=((0.0, 0.0), (10.0, 50.0)),
    decode=DECODE,
    mixed=MIXED,
)


def model(table: StepTable = TABLE, scale: float = 1.0) -> LatencyModel:
    return TableLatency(table=table).compiled(scale)


def test_at_a_measured_point() -> None:
    assert model().step_time(decode(1, 100)) == 1000 + 5 + 10
    assert model().step_time(decode(4, 4 * 200)) == 1000 + 20 + 100


def test_between_measured_points() -> None:
    assert model().step_time(decode(2, 2 * 150)) == 1000 + 10 + int(22.5 + (70 - 22.5) / 3)  # a third of the way from 1 to 4


def test_before_the_first_point_and_after_the_last() -> None:
    assert model().step_time(decode(1, 3)) == 1000 + 5 + 10
    assert model().step_time(decode(1, 400)) == 1000 + 5 + 85  # straight on: 25 µs for 100 tokens


def test_a_curve_may_have_stairs() -> None:
    time = model().step_time

    assert time(decode(9, 9 * 100)) - time(decode(8, 8 * 100)) == 500 + 5 + 10


def test_a_step_that_prefills() -> None:
    shape = BatchShape(2, 2 * 150, 20, (ChunkShape(20, 100, 200),))

    assert model().step_time(shape) == 1500 + 15 + 1500  # the last of the sixteen points


def test_several_chunks_count_as_one_with_as_many_pairs() -> None:
    two = BatchShape(0, 0, 20, (ChunkShape(10, 50, 60), ChunkShape(10, 60, 70)))
    one = BatchShape(0, 0, 20, (ChunkShape(20, 50, 70),))  # 10·55 + 10·65 pairs = 20·60

    assert model().step_time(two) == model().step_time(one) + 5  # and a sequence more


def test_every_step_may_take_longer() -> None:
    assert model(scale=2.0).step_time(decode(1, 100)) == 2030


def test_the_slowest_of_two_ranks_counts_and_what_all_do() -> None:
    table = StepTable(
        tokens=((0.0, 0.0), (100.0, 1000.0)), all_tokens=((0.0, 0.0), (100.0, 500.0)), decode=DECODE, data_parallel_size=2
    )
    time = model(table).step_time

    assert time(decode(3, 300)) == 20 + 15 + 20  # two of them on one rank: 10 and a third of 30
    assert time(prefill(60, 40)) == 600 + 500  # one chunk each
    assert time(BatchShape(2, 200, 60, (ChunkShape(60, 0, 60),))) == 610 + 310


def test_the_slowest_rank_has_more_context_than_the_mean() -> None:
    """Two ranks of four sequences: the larger of two normal numbers is 0.589 deviations above the mean, so with lengths that
    deviate by 75 tokens, the larger mean of four is 0.589 · 75 / √4 = 22.1 tokens above that of all."""
    time = model(StepTable(decode=DECODE, data_parallel_size=2)).step_time

    assert time(BatchShape(8, 8 * 150, context_spread=ContextSpread(90, 90, 75))) == int(40 + 60 * (150 + 22.1 - 100) / 100)
    assert time(decode(8, 8 * 150)) == 70


@pytest.mark.parametrize(
    ("context", "spread", "us"),
    [
        (150, ContextSpread(30, 20, 25), 70 + 0.5 * 18),  # the longest has 180: 88 µs, and the mean is 0.4 of the way
        (150, ContextSpread(20, 30, 25), 70 + 0.1 * 12),  # 0.6 of the way
        (150, ContextSpread(60, 40, 50), 70 + 0.25 * 36),  # the longest is beyond 180, at 210
        (150, ContextSpread(0, 0, 0), 70),
        (90, ContextSpread(30, 20, 25), 40 + 0.5 * 12),  # before the first point the mean costs what it costs there
    ],
)
def test_unequal_lengths_cost_a_share_of_what_the_longest_would(context: int, spread: ContextSpread, us: float) -> None:
    table = StepTable(decode=DECODE, skew=Skew((4.0,), (0.4, 1.0), (180.0, 999.0), (0.5, 0.25, 0.1, 0.1)))

    assert model(table).step_time(BatchShape(4, 4 * context, context_spread=spread)) == int(us)


def test_where_a_bucket_ends_a_step_gets_no_shorter() -> None:
    table = StepTable(decode=DECODE, skew=Skew((4.0,), (1.0,), (180.0, 999.0), (0.5, 0.0)))
    times = [
        model(table).step_time(BatchShape(4, 4 * each, context_spread=ContextSpread(30, 20, 25)))
        for each in (150, 151, 170, 180)
    ]

    assert times == [79, 79, 82, 88]


def test_a_rank_with_one_sequence_has_no_lengths_to_compare() -> None:
    table = StepTable(decode=DECODE, skew=Skew((4.0,), (1.0,), (999.0,), (1.0,)), data_parallel_size=2)

    assert model(table).step_time(BatchShape(2, 2 * 150, context_spread=ContextSpread(50, 50, 0))) == 22


def test_no_rank_has_a_longest_sequence_that_is_shorter_than_its_mean() -> None:
    """One short sequence among long ones: the larger mean of four is 22.1 tokens above that of all, the longest only 10."""
    table = StepTable(decode=DECODE, skew=Skew((4.0,), (1.0,), (999.0,), (1.0,)), data_parallel_size=2)

    assert model(table).step_time(BatchShape(8, 8 * 150, context_spread=ContextSpread(10, 200, 75))) == int(40 + 60 * 0.721)


def test_a_rank_that_only_decodes_beside_one_that_prefills_has_unequal_lengths_too() -> None:
    """Two of four sequences each, of 150 tokens on average; the longest has 200: 35 µs for one, 100 for four."""
    table = StepTable(decode=DECODE, skew=Skew((4.0,), (1.0,), (999.0,), (1.0,)), data_parallel_size=2)
    batch = BatchShape(4, 4 * 150, 10, (ChunkShape(10, 0, 10),), context_spread=ContextSpread(50, 50, 50))

    assert model(table).step_time(batch) == int(35 + 65 / 3)


def test_a_slope_is_not_rounded_over_the_next_point() -> None:
    almost, nearer = 4 - 2**-47, 4 - 2**-48  # times are kept in units of 2^-48 µs: a third of one for each token
    time = model(StepTable(decode=Grid(((1.0,), (0.0, 3.0)), (almost, nearer)))).step_time

    assert [time(decode(1, context)) for context in range(4)] == [3, 3, 3, 3]


@given(
    us=st.lists(st.floats(0, 5_000), min_size=6, max_size=6),
    decodes=st.integers(1, 40),
    each=st.integers(0, 900),
    steps=st.integers(1, 300),
    ranks=st.sampled_from([1, 2, 3]),
    spread=st.builds(ContextSpread, st.floats(0, 900), st.floats(0, 900), st.floats(0, 900)),
    alphas=st.none() | st.lists(st.floats(0, 1), min_size=8, max_size=8),
)
def test_a_run_takes_what_its_steps_take(
    us: list[float], decodes: int, each: int, steps: int, ranks: int, spread: ContextSpread, alphas: list[float] | None
) -> None:
    skew = None if alphas is None else Skew((8.0, 20.0), (0.3, 1.0), (200.0, 650.0), tuple(alphas))
    table = StepTable(
        tokens=((0.0, 0.3), (9.0, 77.7)),
        decode=Grid(((1.0, 16.0), (16.0, 100.5, 700.0)), tuple(us)),
        data_parallel_size=ranks,
        skew=skew,
    )
    timing, batches = model(table), [BatchShape(decodes, decodes * (each + j), context_spread=spread) for j in range(steps)]
    singly = [timing.step_time(batch) for batch in batches]

    assert timing.run_time(batches[0], steps) == sum(singly)
    half = sum(singly[: steps // 2])
    assert timing.steps_within(batches[0], half, steps) == steps // 2
    assert [timing.step_time(batch) for batch in batches] == singly  # now that the whole run has been looked up
    assert singly == sorted(singly)  # more context never takes less


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tokens": ((2.0, 1.0), (1.0, 1.0))}, "increasing order"),
        ({"tokens": ()}, "increasing order"),
        ({"sequences": ((0.0, -1.0),)}, "at least 0"),
        ({"sequences": ((0.0, float("nan")),)}, "at least 0"),
        ({"decode": MIXED}, "decode has 2 axes"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
    ],
)
def test_tables_that_cannot_be(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        StepTable(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (((), (1.0,), (1.0,), ()), "increasing order"),
        (((1.0,), (1.0, 0.5), (1.0,), (0.0, 0.0)), "increasing order"),
        (((1.0,), (1.0,), (1.0, 2.0), (0.0,)), "1 by 1 by 2 buckets have 1 values"),
        (((1.0,), (1.0,), (1.0,), (1.1,)), "from 0 to 1"),
        (((1.0,), (1.0,), (1.0,), (float("nan"),)), "from 0 to 1"),
    ],
)
def test_skews_that_cannot_be(wrong: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Skew(*wrong)


def test_a_grid_has_a_value_for_every_point() -> None:
    with pytest.raises(ValueError, match="2 by 2 points have 3 values"):
        Grid(((0.0, 1.0), (0.0, 1.0)), (1.0, 2.0, 3.0))


def test_tables_are_files(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    table = msgspec.structs.replace(TABLE, skew=Skew((4.0,), (0.4, 1.0), (180.0,), (0.5, 0.0125)))
    path.write_bytes(encode_step_table(table))

    assert read_step_table(path) == table
    assert resolve_instance(InstanceConfig(latency=parse_latency(f"table:{path}"))).latency == TableLatency(str(path), table)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text('{"tokens": [[2, 1], [1, 1]]}')

    with pytest.raises(ConfigError, match=r"no.json: no step table: .*increasing order"):
        read_step_table(tmp_path / "no.json")
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"empty.json: no step table: no step in it takes any time"):
        read_step_table(tmp_path / "empty.json")
    with pytest.raises(ConfigError, match=r"absent.json: cannot be read"):
        read_step_table(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="needs a table"):
        TableLatency().compiled()
    with pytest.raises(ConfigError, match="needs a file"):
        parse_latency("table")
