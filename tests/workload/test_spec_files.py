"""Specification files: BLIS's keys, the jobs that they give, the errors of wrong files, and what docs/workloads.md says of
them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.workload import ARRIVALS, LENGTHS, Workload
from maitred.workload.spec import (
    Arrival,
    Client,
    Cohort,
    Diurnal,
    Drain,
    GoodputTargets,
    Lifecycle,
    MultiTurn,
    Reasoning,
    Spike,
    Window,
)
from maitred.workload.synthetic import PRESETS

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "workloads").glob("*.yaml"))

BLIS = """\
version: "2"
seed: 7
category: language
aggregate_rate: 50.0
num_requests: 400
goodput_slo_targets:
  critical: {ttft_ms: 500, itl_ms: 50, e2e_ms: 10000}
clients:
  - id: "batch"
    tenant_id: "tenant-A"
    slo_class: "batch"
    model: "m"
    adapter: "lora-1"
    rate_fraction: 0.7
    streaming: false
    timeout: 5000000
    slo_target_us: 250000
    arrival:
      process: gamma
      cv: 3.5
    input_distribution:
      type: pareto_lognormal
      params: {alpha: 1.5, xm: 50, mu: 5.5, sigma: 1.2, mix_weight: 0.3}
    output_distribution:
      type: empirical
      params:
        128: 0.25
        256: 0.75
    prefix_group: "system"
cohorts:
  - id: "people"
    population: 3
    slo_class: "critical"
    rate_fraction: 0.3
    arrival: {process: poisson}
    prefix_group: "own"
    prefix_length: 64
    prefix_sharing: per_member
    input_distribution: {type: gaussian, params: {mean: 128, std_dev: 50, min: 10, max: 2048}}
    output_distribution: {type: exponential, params: {mean: 64}}
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "w.yaml"
        path.write_text(text)
        return path

    return write


def test_a_file_of_blis_is_read_as_it_is(written: Callable[[str], Path]) -> None:
    workload = Workload.from_yaml(written(BLIS))
    jobs = list(workload.jobs())
    batch = [job for job in jobs if job.request.client_id == "batch"]
    people = [job for job in jobs if job.request.client_id.startswith("people-")]
    assert len(jobs) == 400
    assert len(batch) + len(people) == 400
    request = batch[0].request
    assert (request.tenant, request.model, request.routing_key, request.stream) == ("tenant-A", "m", "lora-1", False)
    assert (request.slo_class, request.priority_class, request.slo_target) == ("batch", PriorityClass.BULK, 250_000)
    assert request.deadline == request.arrival + 5_000_000
    assert {job.output_tokens for job in batch} == {128, 256}
    assert {job.request.priority_class for job in people} == {PriorityClass.INTERACTIVE}
    assert workload.goodput_slo_targets["critical"].itl_ms == 50


def test_prompts_of_one_group_begin_alike_and_end_each_for_itself(written: Callable[[str], Path]) -> None:
    """`system` has the default of 50 tokens: 3 blocks of 16. The members of the cohort have a prefix each: 4 blocks."""
    jobs = list(Workload.from_yaml(written(BLIS)).jobs())
    keys = {job.request.id: job.request.prefix.block_keys(16) for job in jobs if job.request.prefix is not None}
    assert len(keys) == 400
    starts: dict[str, set[tuple[int, ...]]] = {}
    for job in jobs:
        starts.setdefault(job.request.client_id, set()).add(
            tuple(keys[job.request.id][: 3 if job.request.client_id == "batch" else 4])
        )
    assert {client: len(begun) for client, begun in starts.items()} == {"batch": 1, "people-0": 1, "people-1": 1, "people-2": 1}
    assert len(set.union(*starts.values())) == 4
    beyond = [key for job in jobs for key in keys[job.request.id][4:]]
    assert len(beyond) == len(set(beyond))
    assert all(len(keys[job.request.id]) == job.request.prompt_tokens // 16 for job in jobs)


def test_changing_the_answers_of_one_client_changes_nothing_else(written: Callable[[str], Path]) -> None:
    def facts(text: str) -> list[tuple[int, int, str]]:
        jobs = Workload.from_yaml(written(text)).jobs()
        return [(job.request.arrival, job.request.prompt_tokens, job.request.client_id) for job in jobs]

    assert facts(BLIS) == facts(BLIS.replace("{mean: 64}", "{mean: 640}"))
    assert facts(BLIS) != facts(BLIS.replace("seed: 7", "seed: 8"))


def test_a_client_with_a_rate_of_its_own_changes_no_other_client() -> None:
    one = Client(id="one", rate=5, input_distribution="normal:100,50", output_distribution="normal:100,50")
    two = Client(id="two", rate=3, input_distribution="normal:100,50", output_distribution="normal:100,50")
    alone = list(Workload(horizon=60_000_000, clients=[one]).jobs())
    both = [job for job in Workload(horizon=60_000_000, clients=[two, one]).jobs() if job.request.client_id == "one"]

    def facts(jobs: list[object]) -> list[tuple[int, int, int]]:
        return [(job.request.arrival, job.request.prompt_tokens, job.output_tokens) for job in jobs]  # type: ignore[attr-defined]

    assert facts(list(alone)) == facts(list(both))


def test_it_is_the_same_in_every_process(written: Callable[[str], Path]) -> None:
    path = written(BLIS)
    code = (
        "from maitred.workload import Workload; import sys\n"
        "print([(j.request.arrival, j.request.prompt_tokens, j.output_tokens, list(j.request.prefix.block_keys(16)))"
        " for j in Workload.from_yaml(sys.argv[1]).jobs()])"
    )

    def said(hash_seed: str) -> bytes:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", code, path], env=env, capture_output=True, check=True).stdout

    assert said("1") == said("2") != b""


def test_known_jobs_stay_what_they_are(written: Callable[[str], Path]) -> None:
    """The jobs were recorded once: a seed gives the same workload with every version of Python."""
    made = [
        (job.request.client_id, job.request.arrival, job.request.prompt_tokens, job.output_tokens)
        for job in Workload.from_yaml(written(BLIS)).jobs()
    ]
    people = [fact for fact in made if fact[0] != "batch"]
    batch = [fact for fact in made if fact[0] == "batch"]
    assert people[:2] + batch[10:13] == KNOWN


KNOWN = [
    ("people-1", 5583, 209, 29),
    ("people-0", 15996, 121, 70),
    ("batch", 330645, 109, 256),
    ("batch", 330645, 79, 256),
    ("batch", 330653, 182, 256),
]


def test_names_of_the_first_version_mean_what_they_meant() -> None:
    old = Client(id="c", rate=1, slo_class="realtime", input_distribution=1, output_distribution=1)
    (job,) = Workload(num_requests=1, version="1", clients=[old]).jobs()
    assert (job.request.slo_class, job.request.priority_class) == ("critical", PriorityClass.INTERACTIVE)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_workloads(path: Path) -> None:
    first = next(iter(Workload.from_yaml(path).jobs()))
    assert first.request.prompt_tokens > 0


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


CLIENT = "  - id: a\n    rate_fraction: 1\n    input_distribution: 5\n    output_distribution: 5\n"
GOOD = f"aggregate_rate: 1\nnum_requests: 1\nclients:\n{CLIENT}"
MISTAKES = [
    (
        "clients:\n  - id: a\n    rate_fractoin: 1\n",
        "w.yaml:3: unknown key 'clients[0].rate_fractoin' (did you mean 'rate_fraction'?)",
    ),
    (f"{GOOD}num_request: 5\n", "w.yaml:8: unknown key 'num_request' (did you mean 'num_requests'?)"),
    (
        f"{GOOD}    arrival: {{process: poison}}\n",
        "w.yaml:8: clients[0].arrival.process: 'poison' cannot be chosen (did you mean 'poisson'?)",
    ),
    (f"{GOOD}    arrival: {{process: gamma, cv: 100}}\n", "w.yaml:8: clients[0].arrival.cv must be from 0.01 to 10.4, not 100"),
    (
        f"{GOOD}    arrival: {{process: constant, cv: 2}}\n",
        "w.yaml:8: clients[0].arrival.cv means nothing to constant arrivals",
    ),
    (f"{GOOD}    arrival: {{process: gamma, scale: 2}}\n", "w.yaml:8: clients[0].arrival.scale needs a shape"),
    (f"{GOOD}    slo_class: critcal\n", "w.yaml:8: clients[0].slo_class 'critcal' is none: did you mean 'critical'?"),
    (f"{GOOD}    network: {{rtt_ms: 3}}\n", "w.yaml:8: clients[0].network is not simulated: leave it out"),
    (f"{GOOD}    multimodal: {{}}\n", "w.yaml:8: clients[0].multimodal requests are not simulated"),
    (f"{GOOD}    prefix_length: 5\n", "w.yaml:8: clients[0].prefix_length without a prefix_group is shared with no client"),
    (f"{GOOD}    closed_loop: true\n", "w.yaml:8: clients[0].closed_loop is for multi-turn clients"),
    (f"{GOOD}    timeout: -1\n", "w.yaml:8: clients[0].timeout must be from 0 to 1,000,000,000,000,000, not -1"),
    (f"{GOOD}    rate: 3\n", "w.yaml:8: clients[0].rate and rate_fraction are two ways to say how often: give one of them"),
    (f"{GOOD}    concurrency: 3\n", "clients[0].rate_fraction does not go with concurrency"),
    (f"{GOOD}    think_time_us: 3\n", "w.yaml:8: clients[0].think_time_us is for users: give a concurrency"),
    (
        f"{GOOD}    lifecycle: {{windows: []}}\n",
        "w.yaml:8: clients[0].lifecycle.windows are missing: a client without any never sends",
    ),
    (
        f"{GOOD}    lifecycle: {{windows: [{{start_us: 0, end_us: 9}}, {{start_us: 5, end_us: 9}}]}}\n",
        "w.yaml:8: clients[0].lifecycle.windows must follow one another: one begins before the one above it ends",
    ),
    (
        f"{GOOD}    lifecycle: {{windows: [{{start_us: 5, end_us: 5}}]}}\n",
        "clients[0].lifecycle.windows[0].end_us must be from 6 to",
    ),
    (
        f"{GOOD}    reasoning: {{multi_turn: {{max_rounds: 0}}}}\n",
        "clients[0].reasoning.multi_turn.max_rounds must be from 1 to 10,000, not 0",
    ),
    (f"num_requests: 1\nclients:\n{CLIENT}", "w.yaml:2: clients: 'a' has no rate, and there is no aggregate_rate"),
    (
        f"{GOOD}  - {{id: b, input_distribution: 1, output_distribution: 1}}\n",
        "clients: 'b' has neither rate_fraction, rate nor concurrency",
    ),
    (f"{GOOD}{CLIENT}", "w.yaml:3: clients: the id 'a' is given 2 times"),
    (f"{GOOD}cohorts:\n{CLIENT}    population: 2\n", "w.yaml:8: cohorts: the id 'a' is given 2 times"),
    (
        f"{GOOD}cohorts:\n{CLIENT.replace('id: a', 'id: a-1')}    population: 2\n"
        f"{CLIENT.replace('id: a', 'id: a-1-1')}    population: 1\n",
        "w.yaml:8: cohorts: the id 'a-1-1' is that of one of the 2 called 'a-1'",
    ),
    (
        f"{GOOD.replace('id: a', 'id: a-1')}cohorts:\n{CLIENT}    population: 2\n",
        "w.yaml:3: clients: the id 'a-1' is that of one of the 2 called 'a'",
    ),
    (f"{GOOD.replace('rate_fraction: 1', 'rate: 1e-9')}", "clients[0].rate must be from 1e-06 to 1e+09, not 1e-09"),
    (
        f"{GOOD.replace('rate_fraction: 1', 'rate: 1')}    arrival: {{process: gamma, shape: 2, scale: 1000}}\n",
        "clients[0].rate and arrival.scale are two ways to say how often: give one of them",
    ),
    (
        f"{GOOD}    arrival: {{process: gamma, shape: 2, scale: 1.0e-9}}\n",
        "clients[0].arrival.scale must make from 1e-06 to 1e+09 requests per second, not 5e+14",
    ),
    (
        f"{GOOD}    arrival: {{process: normalized}}\n",
        "w.yaml:3: clients: 'a' has normalized arrivals, which need an end: a horizon, or windows",
    ),
    (f"aggregate_rate: 1\nclients:\n{CLIENT}", "num_requests or horizon is missing: it would never end"),
    (
        GOOD.replace("input_distribution: 5", "input_distribution: norml:5,6"),
        "w.yaml:6: clients[0].input_distribution: unknown length",
    ),
    (GOOD.replace("input_distribution: 5", "input_distribution: {type: gaussian}"), "also need mean, std_dev, min, max"),
    (GOOD.replace("    input_distribution: 5\n", ""), "w.yaml:4: clients[0]: the key 'input_distribution' is missing"),
    (GOOD.replace("aggregate_rate: 1", "aggregate_rate: lots"), "w.yaml:1: aggregate_rate: expected a number, found 'lots'"),
    (GOOD.replace("aggregate_rate: 1", "aggregate_rate: -1"), "w.yaml:1: aggregate_rate must be from 1e-06 to 1e+09, not -1"),
    (f"version: 3\n{GOOD}", "w.yaml:1: version must be 2, not 3"),
    (
        f"{GOOD}servegen_data: {{path: x}}\n",
        "w.yaml:8: servegen_data is not read: convert it into clients first (blis convert)",
    ),
    (f"{GOOD}inference_perf: {{}}\n", "w.yaml:8: inference_perf is not read"),
    ("num_requests: 5\n", "clients are missing: no request would come"),
    ("", "w.yaml: there should be keys with values, and there is nothing"),
    ("[1]", "w.yaml: there should be keys with values, and there is something else"),
    ("a: [", "not YAML"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_one_line_with_its_place(written: Callable[[str], Path], text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Workload.from_yaml(written(text))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "w.yaml" in str(raised.value)


def test_an_id_with_a_number_beyond_the_members_is_valid() -> None:
    client = Client(id="a-2", rate=1, input_distribution=1, output_distribution=1)
    cohort = Cohort(id="a", population=2, rate=1, input_distribution=1, output_distribution=1)
    users = Client(id="a-01", concurrency=2, input_distribution=1, output_distribution=1)
    assert len(list(Workload(num_requests=9, clients=[client, users], cohorts=[cohort]).jobs())) == 9


def test_nothing_arrives_after_thirty_years() -> None:
    """The horizon is 10⁹ s: 1,000 requests, one in 10⁶ s, of which the last one arrives at the horizon."""
    rare = Client(id="a", rate=1e-6, arrival=Arrival(process="constant"), input_distribution=1, output_distribution=1)
    assert [job.request.arrival for job in Workload(num_requests=2_000, clients=[rare]).jobs()][998:] == [
        999 * 10**12,
        1_000 * 10**12,
    ]


def test_shapes_are_one_for_each_cohort() -> None:
    from maitred.workload.spec import Drain, Spike

    with pytest.raises(ValueError, match="drain and spike in one cohort: make a cohort for each"):
        Cohort(
            id="c",
            population=1,
            rate=1,
            input_distribution=1,
            output_distribution=1,
            spike=Spike(start_time_us=0, duration_us=1),
            drain=Drain(start_time_us=0, ramp_duration_us=1),
        )


DOC = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
STRUCTS = [Arrival, Client, Cohort, Diurnal, Drain, GoodputTargets, Lifecycle, MultiTurn, Reasoning, Spike, Window, Workload]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_is_documented(struct: type[msgspec.Struct]) -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", DOC))))
    assert set(struct.__struct_fields__) <= words


def test_every_name_is_documented() -> None:
    for name in {*ARRIVALS, *LENGTHS, *PRESETS, "empirical"}:
        assert re.search(rf"`{name}\b", DOC), name


def test_the_file_that_is_shown_is_a_workload(tmp_path: Path) -> None:
    shown = [text for text in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL) if "clients:" in text]
    for text in shown:
        (tmp_path / "w.yaml").write_text(text, encoding="utf-8")
        assert next(iter(Workload.from_yaml(tmp_path / "w.yaml").jobs())).request.id == 0
    assert shown
