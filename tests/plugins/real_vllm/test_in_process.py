"""A whole vLLM with a tiny model in this process, with our waiting queue: the schedule, the cache and the answers are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make vllm-test")

from vllm_engines import InProcessEngine, prompt

from maitred.plugins.vllm.__main__ import compare_steps

EngineMaker = Callable[..., InProcessEngine]
LENGTHS = (300, 20, 150, 80, 400, 10, 220, 60)


@pytest.fixture
def made_engine() -> Iterator[EngineMaker]:
    """Make engines, one after the other."""
    engines: list[InProcessEngine] = []

    def make(maitred: dict[str, Any] | None = None, **settings: Any) -> InProcessEngine:
        if engines:
            engines.pop().close()
        engines.append(InProcessEngine(maitred, **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def behind_a_blocker(engine: InProcessEngine) -> None:
    engine.add("blocker", prompt(200), 10)
    engine.step()
    for number, length in enumerate(LENGTHS):
        engine.add(str(length), prompt(length, 1 + number), 4)
    engine.run()


def test_the_order_changes_and_the_answers_do_not(made_engine: EngineMaker) -> None:
    """The model is deterministic, so a prompt has the same answer wherever it stands in the queue."""
    orders, answers = {}, {}
    for policy in (None, "fcfs", "sjf"):
        engine = made_engine(None if policy is None else {"scheduler": policy}, max_num_seqs=1)
        behind_a_blocker(engine)
        orders[policy], answers[policy] = [*engine.answers][1:], dict(sorted(engine.answers.items()))

    arrival = [str(length) for length in LENGTHS]
    assert orders == {None: arrival, "fcfs": arrival, "sjf": [str(length) for length in sorted(LENGTHS)]}
    assert answers[None] == answers["fcfs"] == answers["sjf"]
    assert all(len(answer) == 4 for name, answer in answers[None].items() if name != "blocker")


def test_with_lpm_the_counter_of_prefix_hits_rises(made_engine: EngineMaker) -> None:
    hits = {}
    for policy in ("fcfs", "lpm"):
        engine = made_engine({"scheduler": policy}, max_num_seqs=1, num_gpu_blocks_override=16, max_model_len=400)
        for number in range(24):
            engine.add(f"r{number}", prompt(330, number, shared=320, group=number % 4), 2)
        engine.run()
        assert engine.counter("vllm:prefix_cache_queries") == 24 * 330
        hits[policy] = engine.counter("vllm:prefix_cache_hits")

    assert hits == {"fcfs": 0, "lpm": 20 * 320}


def test_the_simulator_makes_the_same_steps(made_engine: EngineMaker, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    engine = made_engine(
        {"scheduler": "bounded(lpm, max_wait=0.05)", "record_steps": str(path)},
        max_num_seqs=4,
        num_gpu_blocks_override=24,
        max_num_batched_tokens=256,
        max_model_len=512,
    )
    for number in range(40):
        engine.add(f"r{number}", prompt(20 + 37 * number % 300, number, shared=16, group=number % 3), 1 + 13 * number % 40)
        engine.step()
    engine.run()
    pairs = compare_steps(path)

    assert len(engine.answers) == 40
    assert [pair for pair in pairs if pair.vllm != pair.simulator] == []
