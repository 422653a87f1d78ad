"""Logs that were written once, and that a core must go on to write byte for byte: no decision changes unnoticed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from log_writer import KINDS, World

from maitred.admission import AdmissionConfig
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
        assert list(map(as_written, again[1:], lines)) == lines  # Version 1 has no version line.


def as_written(line: bytes, then: bytes) -> bytes:
    """Return a line with a configuration without the keys that there were not when `then` was written, which
    have their defaults; any other line as it is."""
    entry = json.loads(line)
    if "config" not in entry:
        return line
    written, rules = json.loads(then)["config"], entry["config"]
    for key in rules.keys() - written.keys():
        assert rules[key] == json.loads(msgspec.json.encode(getattr(AdmissionConfig(), key))), key
    entry["config"] = {key: value for key, value in rules.items() if key in written}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_random_inputs_leave_nothing_to_settle_and_run_again(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
        world.core.check()
    again: list[bytes] = []
    replay(world.lines, DecisionLog(again.append))
    assert again == world.lines
