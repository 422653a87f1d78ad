"""A request that decodes and is left out of a step has waited: its next gap is longer, and its latency counts the wait."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from maitred.compat.instance_rules import new_instance
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.step_meter import ItlLog, StepMeter

PLUGIN = """
from maitred.batching import CapacityScheduler

class InTurn(CapacityScheduler):
    def __init__(self, max_num_requests, kv_cache_manager): pass
    def schedule_request(self, active_requests):
        return [min(active_requests, key=lambda request: request.num_generated_tokens)], []
"""


def test_the_gap_of_a_request_that_is_left_out_lasts_to_its_next_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of 10 µs serves one of two requests: their tokens come at 10, 30 and 50, and at 20, 40 and 60."""
    (tmp_path / "fair_schedulers.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fair_schedulers", raising=False)
    config = InstanceConfig(batching="fair_schedulers:InTurn", latency=LinearLatency((10, 0, 0)))
    instance, log = new_instance(config, Random(0)), ItlLog()
    instance.observe(StepMeter(config.latency_model(), log), log)
    for number in (0, 1):
        instance.enqueue(Request(id=number, arrival=0, prompt_tokens=4, max_output_tokens=3), 3, 0)
    ends = []
    while (due := instance.next_event()) is not None:
        ends += [(e.at, e.seq.request.id, e.seq.stall_time) for e in instance.advance(due) if e.kind.name == "FINISHED"]
    assert ends == [(50, 0, 0), (60, 1, 0)]
    assert sorted(zip(log.single_gap_request_ids, log.single_gaps, strict=True)) == [(0, 20), (0, 20), (1, 20), (1, 20)]
