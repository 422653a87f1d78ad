"""Latency models as plug-ins: found by name, as module:Class, with parameters, from flags as from files."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maitred
from maitred.cli.shared_flags import InstanceFlags, latency_of_flags
from maitred.config import load
from maitred.core.contracts import BatchShape
from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue.resolving import resolve_instance
from maitred.instance.latency import (
    LATENCY_MODELS,
    AnyLatency,
    RooflineLatency,
    StepTimes,
    TableLatency,
    TrainedPhysicsLatency,
    parse_latency,
)


class Staircase(StepTimes):
    """A step takes longer with every `stair` tokens of context."""

    def __init__(self, stair: int = 100, micros: float = 50.0) -> None:
        if stair < 1:
            raise ValueError(f"stair must be at least 1, not {stair}")
        self.stair, self.each = stair, micros

    def micros(self, batch: BatchShape) -> float:
        return 100.4 + 2.0 * batch.prefill_tokens + self.each * (batch.context_tokens // self.stair)


MINE = "test_latency_plugins:Staircase(stair=40)"


def test_all_models_have_keys_in_files_and_are_listed() -> None:
    structs = {LinearLatency, RooflineLatency, TrainedPhysicsLatency, TableLatency}
    assert {str, *structs} <= set(get_args(AnyLatency))
    assert {"blackbox", "linear", "roofline", "table", "trained-physics"} <= set(LATENCY_MODELS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("linear(beta=[1, 2, 3])", LinearLatency((1, 2, 3))),
        ("blackbox([1, 2, 3], [4, 5, 6])", LinearLatency((1, 2, 3), (4, 5, 6))),
        ("table('the steps.json')", TableLatency("the steps.json")),
        ("trained-physics(moe_communication=all-to-all)", TrainedPhysicsLatency(moe_communication="all-to-all")),
        (MINE, MINE),
    ],
)
def test_a_model_is_written_as_policies_are(text: str, found: object, tmp_path: Path) -> None:
    assert parse_latency(text) == found
    assert InstanceConfig(latency=text).latency == found
    assert latency_of_flags(InstanceFlags(latency_model=text)) == found
    path = tmp_path / "maitred.yaml"
    path.write_text(f'instance: {{latency: "{text}"}}')
    assert load(path).instance.latency == found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("linaer([1, 2, 3])", r"unknown latency model 'linaer' \(did you mean 'linear'\?\)"),
        ("linear([1, 2])", r"beta is '\[1, 2\]': expected a list of length 3"),
        ("linear([1, 2, -3])", "'linear': beta must be three numbers from 0"),
        ("linear(betta=[1, 2, 3])", r"has no parameter 'betta' \(did you mean 'beta'\?\)"),
        ("table(x, y=1)", r"has no parameter 'y' \(valid: alpha, file\)"),
        ("test_latency_plugins:Staircase(stair=0)", "stair must be at least 1, not 0"),
        ("test_latency_plugins:MINE", r"is no latency model \(a class with compiled\(\)\)"),
        ("no_such_module:Staircase", "cannot load latency model 'no_such_module:Staircase'"),
    ],
)
def test_what_is_wrong_is_said_at_its_line(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text(f'instance:\n  latency: "{text}"\n')
    with pytest.raises(ConfigError, match=rf"maitred.yaml:2: instance\.latency: .*{complaint}"):
        load(path)
    with pytest.raises(ConfigError, match=rf"^--latency-model: .*{complaint}"):
        latency_of_flags(InstanceFlags(latency_model=text))


@given(
    decodes=st.integers(1, 300),
    context=st.integers(0, 100_000),
    steps=st.integers(1, 40),
    scale=st.sampled_from([1.0, 0.001, 2.5]),
    span=st.integers(0, 10_000),
)
def test_runs_are_the_sum_of_their_steps(decodes: int, context: int, steps: int, scale: float, span: int) -> None:
    model = Staircase(stair=40).compiled(scale)
    times = [model.step_time(BatchShape(decodes, context + decodes * step)) for step in range(steps)]
    batch = BatchShape(decodes, context)
    assert times[0] == max(1, int((100.4 + 50.0 * (context // 40)) * scale))
    assert model.run_time(batch, steps) == sum(times)
    within = model.steps_within(batch, span, steps)
    assert sum(times[:within]) <= span
    assert within == steps or sum(times[: within + 1]) > span


def test_it_simulates_alike_with_and_without_skipping() -> None:
    jobs = list(maitred.synthetic(rate=2000, num_requests=60, input_tokens=40, output_tokens="normal:30,20"))
    runs = [
        maitred.simulate(jobs, instance=InstanceConfig(latency=MINE, step_by_step=stepping)).summary().total
        for stepping in (False, True)
    ]
    assert runs[0].e2e.p99 == runs[1].e2e.p99 > 0


def test_the_catalogue_leaves_it_alone() -> None:
    assert resolve_instance(InstanceConfig(latency=MINE)).latency == MINE
    assert resolve_instance(InstanceConfig(latency=MINE, model="qwen3-8b")).latency == MINE
