"""Recorded traffic under other rules: what is replayed is what would have been."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.admission.terms.config import ClassConfig, ClassesConfig
from maitred.config import Config
from maitred.core.errors import ConfigError
from maitred.gateway.config import GatewayConfig
from maitred.programs import ProgramsConfig
from maitred.sim import Results, simulate
from maitred.study.candidate import Candidate
from maitred.study.what_if.engines import find_engines, sequences_at_once
from maitred.study.what_if.figures import figures
from maitred.study.what_if.recorded import RecordedRequest, read_recorded, with_causes
from maitred.study.what_if.world import ReplayedRun, ReplayWorld, replay_all
from maitred.workload import Job
from maitred.workload.load import Load

sys.path.append(str(Path(__file__).parent))
from recorded_runs import CLUSTER, INSTANCE, NO_LIMITS, candidate, mixed_jobs, write_run

TRUE_ENGINE = {"latency": "linear:5000,17.5,60"}
OTHER = AdmissionConfig(
    mode="priority",
    default_max_class="system",
    classes=ClassesConfig(bulk=ClassConfig(queue_size=40), interactive=ClassConfig(reserved_floor=3)),
)


def world_of(folder: Path, jobs: Iterable[Job], rules: Candidate, stated: dict[str, Any] | None = None) -> ReplayWorld:
    log, record = write_run(folder, jobs, rules)
    return ReplayWorld.calibrated(read_recorded([log], [record]), stated)


def truth(jobs: Iterable[Job], rules: Candidate, world: ReplayWorld) -> ReplayedRun:
    """Return what the same clients see under `rules`."""
    sections = (rules.cluster, rules.instance, rules.routing, rules.admission, rules.programs)
    return ReplayedRun.of(simulate(jobs, *sections), world.recorded.requests)


def same(first: ReplayedRun, second: ReplayedRun) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True) for name in ("ttft", "e2e"))


@pytest.mark.parametrize("rules", [NO_LIMITS, OTHER])
def test_with_the_true_engines_a_replay_is_what_comes_of_these_rules(tmp_path: Path, rules: AdmissionConfig) -> None:
    world = world_of(tmp_path, mixed_jobs(), candidate(), TRUE_ENGINE)
    assert same(world.truth, world.replay(world.in_force))
    config = Config(gateway=GatewayConfig(slots_per_backend=3), admission=rules)
    found = world.replay(world.candidate(config))
    assert same(truth(mixed_jobs(), candidate(rules, capacity=6), world), found)
    assert not same(world.truth, found)


def test_step_times_fitted_to_the_record_tell_other_rules_within_five_percent(tmp_path: Path) -> None:
    world = world_of(tmp_path, mixed_jobs(), candidate())
    found = world.replay(world.candidate(Config(gateway=GatewayConfig(slots_per_backend=3), admission=OTHER)))
    names = [f"{group}.{name}_{q}_ms" for group in ("interactive", "bulk") for name in ("ttft", "e2e") for q in ("p50", "p90")]
    was = figures(truth(mixed_jobs(), candidate(OTHER, capacity=6), world), world, names)
    for name, value in figures(found, world, names).items():
        assert value == pytest.approx(was[name], rel=0.05), name


def test_a_stream_whose_tokens_came_at_once_is_no_error_of_the_engines(tmp_path: Path) -> None:
    log, record = write_run(tmp_path, mixed_jobs(), candidate())
    recorded = read_recorded([log], [record])
    late = [replace(each, ttft=each.e2e - 200) if index % 50 == 7 else each for index, each in enumerate(recorded.requests)]
    before, after = (find_engines(each, 4).instance.latency_error for each in (recorded, replace(recorded, requests=late)))
    assert before is not None
    assert after is not None
    assert before < after < 0.1


TURNS = """arrival_secs,class,prompt_tokens,output_tokens,program,think_secs,model
0.0,default,100,40,a,,m
0.0,bulk,700,90,b,,m
0.1,bulk,300,400,,,m
0.4,default,200,30,a,0.2,m
0.6,bulk,500,60,b,0.1,m
0.9,default,300,20,a,0.3,m
"""


def test_the_next_turn_of_a_program_comes_its_think_time_after_the_answer(tmp_path: Path) -> None:
    (tmp_path / "turns.csv").write_text(TURNS)
    load = Load(trace=f"maitred:{tmp_path / 'turns.csv'}", session_mode="closed-loop")

    def run(rules: Candidate) -> Results:
        with load.jobs(1) as jobs:
            return rules.simulate(jobs)

    with load.jobs(1) as jobs:
        log, record = write_run(tmp_path, jobs, candidate(num_instances=1))
    world = ReplayWorld.calibrated(read_recorded([log], [record]), TRUE_ENGINE)
    found = world.replay(world.candidate(Config(gateway=GatewayConfig(slots_per_backend=1), admission=NO_LIMITS)))
    live = run(candidate(num_instances=1, capacity=1))
    assert sorted(found.arrival.tolist()) == sorted(live.arrival.tolist())
    assert sorted(found.ended.tolist()) == sorted(live.finished.tolist())
    assert max(found.ended) > max(world.truth.ended)


def request(arrival: int, e2e: int, program: str = "p", parent: str = "") -> RecordedRequest:
    return RecordedRequest(
        arrival=arrival,
        e2e=e2e,
        program=program,
        parent_program=parent,
        tenant="",
        model="m",
        asked=1,
        given=1,
        prompt_tokens=9,
        output_tokens=9,
        max_output_tokens=None,
        stream=True,
        continues=None,
        outcome="completed",
        cached_tokens=0,
        backend=0,
        sent=0,
        ttft=1,
        client_left=False,
    )


def test_a_request_follows_all_answers_that_its_program_had_before_it() -> None:
    a, b, c, d = request(0, 2), request(3, 2), request(3, 3), request(8, 1)
    sub, alone = request(9, 1, "sub", "p"), request(9, 1, "")
    found = with_causes([a, b, c, d, sub, alone])
    assert [each.follows for each in found] == [(), (0,), (0,), (1, 2), (3,), ()]
    assert [each.think for each in found] == [0, 1, 1, 2, 0, 0]


def test_classes_are_those_that_clients_asked_for_as_far_as_the_rules_let_them(tmp_path: Path) -> None:
    world = world_of(tmp_path, mixed_jobs(30), candidate(), TRUE_ENGINE)
    capped = replace(NO_LIMITS, default_max_class="bulk")
    assert {*world.replay(world.candidate(Config(admission=capped))).priority_class.tolist()} == {0}
    assert {*world.replay(world.in_force).priority_class.tolist()} == {0, 2}


def test_several_processes_give_the_runs_of_one(tmp_path: Path) -> None:
    world = world_of(tmp_path, mixed_jobs(60), candidate())
    wanted = [(world.in_force, 0), (world.candidate(Config(admission=OTHER)), 7)]
    for one, other in zip(replay_all(world, wanted), replay_all(world, wanted, jobs=2), strict=True):
        assert same(one, other)


def test_a_record_of_another_run_and_files_that_are_something_else_are_named(tmp_path: Path) -> None:
    log, record = write_run(tmp_path, mixed_jobs(30), candidate())
    other = tmp_path / "other.csv"
    other.write_text(re.sub(r",r(\d+)$", r",x\1", record.read_text(), flags=re.MULTILINE))
    with pytest.raises(ConfigError, match="of another run: the log knows 0 of its 30 requests"):
        read_recorded([log], [other])
    with pytest.raises(ConfigError, match="it is no record of maitred serve"):
        read_recorded([log], [log])
    with pytest.raises(ConfigError, match="it is no decision log"):
        read_recorded([record], [record])
    with pytest.raises(ConfigError, match="are the same file, or part of a log"):
        read_recorded([log], [record, record.parent / "." / record.name])
    log, record = write_run(tmp_path, mixed_jobs(9), candidate())
    with pytest.raises(ConfigError, match="9 streamed answers are too few"):
        ReplayWorld.calibrated(read_recorded([log], [record]))


def test_rooms_may_number_a_request_differently_and_slots_may_be_fewer_than_requests_at_an_engine(tmp_path: Path) -> None:
    """As behind `serve --workers`: programs and admission have numbers of their own. Two engines of four sequences are sent up
    to eight, as places of programs go by memory, and those that wait in the engine are no sign of a larger one."""
    rules = Candidate(cluster=CLUSTER, instance=INSTANCE, admission=NO_LIMITS, programs=ProgramsConfig(mode="tr"))
    log, record = write_run(tmp_path, mixed_jobs(300), rules)
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    for line in lines:
        if line["room"] == "programs" and "request" in line and "decision" not in line:
            line["request"]["id"] += 1000
    log.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    recorded = read_recorded([log], [record])
    assert len(recorded.requests) == 300
    assert recorded.rules.num_others == 0
    assert sequences_at_once(recorded)[0] == 4 < sequences_at_once(recorded)[1]
    assert ReplayWorld.calibrated(recorded).engines.instance.max_num_seqs == 4


def test_models_of_different_engines_are_replayed_one_by_one(tmp_path: Path) -> None:
    log, record = write_run(tmp_path, mixed_jobs(60), candidate())
    header, *rows = record.read_text().splitlines()
    changed = [row.replace(",m,", ",n,", 1) if "engine-1" in row else row for row in rows]
    record.write_text("\n".join([header, *changed]) + "\n")
    with pytest.raises(ConfigError, match="different engines served its models"):
        read_recorded([log], [record])
    found = read_recorded([log], [record], "n")
    assert found.backends == ("http://engine-1",)
    assert {each.backend for each in found.requests} == {0}
    with pytest.raises(ConfigError, match="--model: no request is for the model 'k'"):
        read_recorded([log], [record], "k")
