"""Logs that were written once, and that a core must go on to write byte for byte: no decision changes unnoticed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from log_writer import KINDS, World

from maitred.core.decisions import DecisionLog
from maitred.replay import replay

WRITTEN = Path(__file__).parents[1] / "vectors" / "admission_log.jsonl.gz"


def logs() -> list[list[bytes]]:
    """Return the logs in the file, one for each core."""
    found: list[list[bytes]] = []
    for line in gzip.decompress(WRITTEN.read_bytes()).splitlines(keepends=True):
        if b'"input":"open"' in line:
            found.append([])
        found[-1].append(line)
    return found


def test_a_written_log_is_written_again_byte_for_byte() -> None:
    written = logs()
    assert len(written) == 2 * len(KINDS)
    for lines in written:
        again: list[bytes] = []
        replay(lines, DecisionLog(again.append))
        assert again[1:] == lines  # Version 1 has no version line.


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_random_inputs_leave_nothing_to_settle_and_run_again(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
        world.core.check()
    again: list[bytes] = []
    replay(world.lines, DecisionLog(again.append))
    assert again == world.lines
