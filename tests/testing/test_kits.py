"""Every plug-in that comes with maitred keeps the contract of its kind: the kits are those that others use for theirs.

Those of queue policies are driven by Hypothesis, and with composed policies, in tests/queueing.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from maitred.admission import POLICIES
from maitred.autoscaling import AUTOSCALERS
from maitred.batching import LlmRequest, LlmRequestState, RequestScheduler, SchedulerOutput
from maitred.core.registry import Registry, parameters
from maitred.instance import InstanceConfig
from maitred.instance.catalogue.resolving import find_deployment
from maitred.instance.latency import (
    LATENCY_MODELS,
    AIConfiguratorLatency,
    Grid,
    LatencySpec,
    RooflineLatency,
    SiliconTable,
    StepTable,
    TableLatency,
    TrainedPhysicsLatency,
)
from maitred.programs import ACTING_ESTIMATORS
from maitred.queueing import PRIORITIES, SCHEDULERS
from maitred.queueing.srpt import LENGTH_PREDICTORS
from maitred.routing import ROUTERS, SCORERS
from maitred.testing import (
    check_acting_estimator,
    check_admission_policy,
    check_autoscaler,
    check_batch_scheduler,
    check_latency_model,
    check_length_predictor,
    check_priority_policy,
    check_queue_policy,
    check_router,
    check_scorer,
    check_trace_format,
)
from maitred.workload import FORMATS

SAMPLES = Path(__file__).parents[1] / "samples"
VECTORS = Path(__file__).parents[1] / "vectors"
ON = find_deployment(InstanceConfig(model="qwen3-8b"))
TABLE = StepTable(
    tokens=((1.0, 100.0), (512.0, 4_000.0)), decode=Grid(((1.0, 64.0), (0.0, 4096.0)), (50.0, 300.0, 90.0, 900.0))
)
STEPS = Grid(((1.0, 64.0), (0.0, 4096.0)), (5_000.0, 5_300.0, 6_000.0, 9_000.0))
KERNELS = SiliconTable(
    shared=((1.0, 4_000.0), (512.0, 9_000.0)),
    prompts=Grid(((1.0, 8.0), (1.0, 512.0), (0.0, 4096.0)), (100.0, 500.0, 200.0, 900.0, 400.0, 800.0, 700.0, 2_000.0)),
    decode=STEPS,
    beside=STEPS,
)
COMPLETE: dict[str, LatencySpec] = {
    "aiconfigurator": AIConfiguratorLatency(table=KERNELS),
    "roofline": RooflineLatency(ON),
    "trained-physics": TrainedPhysicsLatency(deployment=ON),
    "table": TableLatency(table=TABLE),
}
"""With what the catalogue fills in."""


def names(registry: Registry[Any]) -> list[str]:
    """The names of a kind that can be written without parameters; the others have a test of their own."""
    written = {name: parameters(registry.find(name), registry.defaults).values() for name in registry}
    return [name for name, each in written.items() if all(one.default is not one.empty for one in each)]


@pytest.mark.parametrize("name", names(SCHEDULERS))
def test_queue_policies(name: str) -> None:
    check_queue_policy(name, seeds=5)


@pytest.mark.parametrize("name", names(PRIORITIES))
def test_priority_policies(name: str) -> None:
    check_priority_policy(name)


@pytest.mark.parametrize("name", names(AUTOSCALERS))
def test_autoscaling_policies(name: str) -> None:
    check_autoscaler(name)


@pytest.mark.parametrize("name", [*names(ACTING_ESTIMATORS), "fixed(weight=0.3)", "decay(half_life_secs=0.01)"])
def test_acting_estimators(name: str) -> None:
    check_acting_estimator(name)


@pytest.mark.parametrize("name", names(LENGTH_PREDICTORS))
def test_length_predictors(name: str) -> None:
    check_length_predictor(name)


@pytest.mark.parametrize("name", [*names(ROUTERS), "session-affinity(power-of-two)", "least-loaded(load=effective)"])
def test_routers(name: str) -> None:
    check_router(name)


@pytest.mark.parametrize("name", names(SCORERS))
def test_scorers(name: str) -> None:
    check_scorer(name)


@pytest.mark.parametrize("name", names(POLICIES))
def test_admission_policies(name: str) -> None:
    check_admission_policy(name)


@pytest.mark.parametrize("name", names(LATENCY_MODELS))
def test_latency_models(name: str) -> None:
    check_latency_model((lambda: COMPLETE[name]) if name in COMPLETE else name)


def rows_of(name: str) -> list[str]:
    """The lines of a small file of the format."""
    match name:
        case "agentic":
            return (SAMPLES / "agentic_one_session.jsonl").read_text().splitlines()
        case "azure":
            return (SAMPLES / "azure_tiny.csv").read_text().splitlines()
        case "mooncake":
            return (SAMPLES / "mooncake_tiny.jsonl").read_text().splitlines()
        case "blis":
            return gzip.decompress((VECTORS / "blis" / "traces" / "tie24.csv.gz").read_bytes()).decode().splitlines()
    return ROWS[name].strip().splitlines()


ROWS = {
    "maitred": """
arrival_secs,class,prompt_tokens,output_tokens
0.5,interactive,20,3
1.5,bulk,400,90
""",
    "burstgpt": """
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,API log
""",
    "bailian": """
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 9, "hash_ids": [1, 2]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 9.5, "input_length": 40, "output_length": 9, "hash_ids": [1, 2, 3]}
""",
    "aiperf": """
{"session_id": "s1", "timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}
{"session_id": "s2", "timestamp": 5, "input_length": 300, "output_length": 5, "hash_ids": [0]}
""",
    "timed_trace": """
{"timestamp": 0.5, "input_length": 40, "output_length": 52, "hash_ids": [7, 8, 9]}
{"timestamp": 1.5, "input_length": 16, "output_length": 2, "hash_ids": [7]}
""",
}


@pytest.mark.parametrize("name", [name for name in FORMATS if name in ROWS or name in ("agentic", "azure", "mooncake", "blis")])
def test_trace_formats(name: str) -> None:
    """A format that is not here has its rows in a test of its own."""
    check_trace_format(name, rows_of(name))


class ShortestAlone(RequestScheduler):
    """Serves the request with the fewest tokens to come, alone, so that each newcomer may change its answer."""

    def schedule_request(self, active_requests: list[LlmRequest], inflight_request_ids: set[int]) -> SchedulerOutput:
        served = [each for each in active_requests if each.state < LlmRequestState.GENERATION_TO_COMPLETE]
        served = [each for each in served if each.request_id not in inflight_request_ids]
        if not served:
            return SchedulerOutput([], [], [], [], 0, [])
        first = min(served, key=lambda each: (each.max_new_tokens - each.num_generated_tokens, each.request_id))
        if first.state != LlmRequestState.CONTEXT_INIT:
            return SchedulerOutput([], [first], [], [], 1, [])
        first.context_chunk_size = min(16, first.context_remaining_length)
        return SchedulerOutput([first], [], [], [], 1, [])


class RepeatsInWords(ShortestAlone):
    """Says of its answer what is not so."""

    repeats_its_answer = True


def test_a_batch_scheduler_that_does_not_repeat_its_answer_must_not_say_so() -> None:
    check_batch_scheduler(f"{__name__}:ShortestAlone")
    with pytest.raises(AssertionError, match="repeats_its_answer is True, and its answer changes"):
        check_batch_scheduler(f"{__name__}:RepeatsInWords")
