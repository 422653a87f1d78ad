"""KV nearly exhausted, as in BLIS's hypothesis H8: there is a cliff, and behind it no livelock and no lost request.

The scene is that of bench/kv_pressure.py, whose table is in docs/evidence.md: its load needs 2,200 blocks and no more.
"""

from __future__ import annotations

import sys
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from maitred.report import summarise
from maitred.sim import Outcome, Results

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import kv_pressure

Flavour = Literal["blis"] | None
ENOUGH, NEARLY, HALF, LEAST = 2_200, 2_100, 1_000, 100


@cache
def run(blocks: int, flavour: Flavour = None) -> Results:
    return kv_pressure.run(blocks, 42, flavour)


@pytest.mark.parametrize("blocks", [NEARLY, HALF, LEAST])
@pytest.mark.parametrize("flavour", [None, "blis"])
def test_every_request_is_served_however_little_there_is(blocks: int, flavour: Flavour) -> None:
    results = run(blocks, flavour)
    assert set(results.outcome.tolist()) == {Outcome.COMPLETED}
    assert results.output_tokens.sum() == run(ENOUGH).output_tokens.sum()


@pytest.mark.parametrize("flavour", [None, "blis"])
def test_the_cliff_is_between_2200_and_2100(flavour: Flavour) -> None:
    preempted = [int(run(blocks, flavour).preemptions.sum()) for blocks in (5_000, ENOUGH, NEARLY, 2_000, 1_500)]
    assert preempted[:2] == [0, 0]
    assert 0 < preempted[2] < preempted[3] < preempted[4]


def test_by_blis_rules_first_tokens_come_again_and_so_their_tail_jumps() -> None:
    enough, nearly, less = (kv_pressure.pressed([run(blocks, "blis")]) for blocks in (ENOUGH, NEARLY, 2_000))
    assert enough.ttft_p99 < nearly.ttft_p99 < less.ttft_p99
    assert less.ttft_p99 > 3 * enough.ttft_p99


def test_no_livelock() -> None:
    """Even if an instance holds little more than one request, most steps produce a token: there are fewer steps than tokens."""
    results = run(LEAST)
    assert results.instances[0].steps < results.output_tokens[results.instance == 0].sum()
    assert results.preemptions.max() < 10


def test_memory_does_not_grow_with_preemptions() -> None:
    peaks = []
    for blocks in (ENOUGH, LEAST):
        tracemalloc.start()
        kv_pressure.run(blocks, 42, None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


def test_thrashing_is_reported_and_only_that() -> None:
    assert not summarise(run(ENOUGH), by=()).warnings
    assert not summarise(run(NEARLY), by=()).warnings  # 2 % computed twice is no thrashing
    (warning,) = summarise(run(HALF), by=()).warnings
    assert warning.startswith("KV thrashing: ")
