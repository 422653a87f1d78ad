"""`bench/batching_table.py` on a few requests of a sample trace."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import batching_table


def test_it_has_a_row_for_each_way_at_each_load() -> None:
    options = Namespace(trace="sample:mixed", max_requests=30, limits=["answer"], tensor_parallel_size=2, max_model_len=4096)
    rows = [line.split(" | ") for line in batching_table.table(options) if line.startswith("| ") and "%" in line]
    assert [row[:2] for row in rows] == [
        [f"| {load:.0%}", name] for load in batching_table.LOADS for name in batching_table.ROWS
    ]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)
