"""`bench/batching_table.py` on a few requests of a sample trace."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from instance_driver import config, request

from maitred import ClusterConfig, Job
from maitred.sim import simulate

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import batching_table


def test_it_has_a_row_for_each_way_at_each_load() -> None:
    options = Namespace(trace="sample:mixed", max_requests=30, limits=["answer"], tensor_parallel_size=2, max_model_len=4096)
    rows = [line.split(" | ") for line in batching_table.table(options) if line.startswith("| ") and "%" in line]
    ways = [row for row in rows if len(row) > len(batching_table.HEADS) + 1]
    assert [row[:2] for row in ways] == [
        [f"| {load:.0%}", name] for load in batching_table.LOADS for name in batching_table.ROWS
    ]
    assert all(float(row[2].replace(",", "")) > 0 for row in ways)
    assert [row[0] for row in rows if row not in ways] == [f"| {load:.0%}" for load in batching_table.LOADS]


def test_a_figure_is_compared_with_the_best_of_the_others() -> None:
    mine, first, second = (
        batching_table.Figures(throughput, (1.0, ttft), (1.0, 1.0), latency, 0, 0)
        for throughput, ttft, latency in [(90.0, 3.0, 6.0), (100.0, 2.0, 6.0), (60.0, 4.0, 4.0)]
    )
    assert mine.beside([first, second]) == ["0.90", "1.00", "1.50", "1.00", "1.00", "1.50"]


def test_a_prompt_that_is_cut_is_generated_again() -> None:
    """Two requests of 40 tokens for 20 outgrow 10 blocks at 110. With all its 50 tokens the second one comes back when the
    first has ended, and has 10 to emit. With 20 of them it finds room at once, and has 40 to generate."""
    jobs = [Job(request(number, 0, 40, 20), 20) for number in range(2)]
    first, second = (
        list(simulate(jobs, ClusterConfig(), config(batching, total_kv_blocks=10)).finished)
        for batching in ("max-utilization", "batching_table:CutPrompts(max_input_len=20)")
    )
    assert second[0] == first[0] == 200
    assert first[1] == 200 + 9 * 10
    assert second[1] == 120 + 40 * 10
