"""Sweeps of a grid or a search, the choice of the best candidate, and workers in processes: every task completes once,
whichever worker is lost.
"""

from __future__ import annotations

import gzip
import os
import signal
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sweep_samples import GRID

from maitred import Candidate, ClusterConfig, ConfigError, InstanceConfig, Load, compare, sweep
from maitred.study.sweep.result import CandidateResult, SweepResult, write_sweep
from maitred.study.workers import LostWorkersError, ProcessWorkers, make_workers

SEARCH: dict[str, Any] = {
    "workload": {"rate": 40, "num_requests": 60},
    "search": {
        "parameters": {
            "cluster.num_instances": {"low": 1, "high": 6},
            "instance.max_num_seqs": [4, 64],
            "cluster.routing_latency_ms": {"low": 0.1, "high": 10.0, "scale": "log"},
        },
        "trials": 12,
        "batch": 4,
    },
    "constraints": ["ttft_p99_ms <= 60"],
}


def test_a_grid_is_every_combination_and_each_figure_that_of_its_own_simulation() -> None:
    swept = sweep(GRID)
    assert [tuple(each.values.values()) for each in swept.candidates] == [
        (1, "fcfs"),
        (1, "sjf"),
        (2, "fcfs"),
        (2, "sjf"),
        (4, "fcfs"),
        (4, "sjf"),
    ]
    sides = [
        Candidate(
            cluster=ClusterConfig(num_instances=each.values["cluster.num_instances"]), instance=InstanceConfig(scheduler=name)
        )
        for each in swept.candidates
        if (name := each.values["instance.scheduler"])
    ]
    same = compare(*sides, workload=Load(**GRID["workload"]), seeds=2, metrics=["ttft_mean_ms"])
    means = [sum(run["ttft_mean_ms"] or 0 for run in side) / 2 for side in same.figures]
    assert [each.figures["ttft_mean_ms"] for each in swept.candidates] == pytest.approx(means)
    assert [each.figures["cost"] for each in swept.candidates] == [1, 1, 2, 2, 4, 4]


def figures(cost: float, ttft: float | None) -> dict[str, float | None]:
    return {"cost": cost, "gpus": cost, "ttft_p99_ms": ttft, "completed_share": 1.0}


def judged(*found: tuple[float, float | None], limit: float = 500) -> SweepResult:
    """Return candidates with these costs and TTFTs, of which those within the limit meet the constraint."""
    empty = sweep({**GRID, "grid": {"cluster.num_instances": [1]}, "constraints": [f"ttft_p99_ms <= {limit}"]})
    tried = [
        CandidateResult(
            index=number,
            values={"n": number},
            problem="",
            figures=figures(cost, ttft),
            meets_constraints=empty.criteria.are_met(figures(cost, ttft)),
            num_seeds_met=0,
            num_seeds=1,
        )
        for number, (cost, ttft) in enumerate(found)
    ]
    return msgspec.structs.replace(empty, candidates=tuple(tried), runs=())


def test_the_best_is_the_cheapest_that_meets_the_constraints() -> None:
    swept = judged((1, 900.0), (2, 480.0), (2, 400.0), (3, 100.0), (1, None))
    assert swept.best is swept.candidates[2]  # of two that cost the same, the faster one
    assert [each.index for each in swept.pareto_front] == [0, 2, 3]
    assert judged((1, 900.0), (2, 700.0)).best is None
    assert "None meets them" in str(judged((1, 900.0), (2, 700.0)))


def test_who_costs_more_and_is_no_faster_is_not_on_the_front() -> None:
    swept = judged((1, 300.0), (2, 300.0), (3, 299.0), (2, 310.0))
    assert [each.index for each in swept.pareto_front] == [0, 2]


@pytest.mark.parametrize(
    ("prices", "costs"),
    [
        ({}, [2, 4]),
        ({"price_per_hour": 3}, [6, 6]),
        ({"price_per_gpu_hour": 2.5}, [5, 10]),
        ({"price_per_gpu_hour": {"h100": 2, "A100": 1}}, [4, 8]),
    ],
)
def test_what_two_instances_cost(prices: dict[str, Any], costs: list[float]) -> None:
    base = {"cluster": {"num_instances": 2}, "instance": {"model": "meta-llama/llama-3.1-8b-instruct"}}
    grid = {"instance.tensor_parallel_size": [1, 2]}
    swept = sweep({"base": base, "workload": {"rate": 5, "num_requests": 5}, "grid": grid, **prices})
    assert [each.figures["cost"] for each in swept.candidates] == costs


def test_a_model_that_does_not_fit_is_said_and_the_others_are_tried() -> None:
    base = {"instance": {"model": "meta-llama/llama-3.1-70b-instruct"}}
    grid = {"instance.tensor_parallel_size": [1, 4]}
    swept = sweep({"base": base, "workload": {"rate": 1, "num_requests": 5}, "grid": grid})
    assert [bool(each.problem) for each in swept.candidates] == [True, False]
    assert swept.best is swept.candidates[1]
    assert "1 cannot be simulated; the first: hardware: " in " ".join(str(swept).split())
    with pytest.raises(ConfigError, match="none of the 1 candidates can be"):
        sweep({"base": base, "workload": {"rate": 1, "num_requests": 5}, "grid": {"instance.tensor_parallel_size": [1]}})


def test_a_figure_that_no_run_has_is_said() -> None:
    base = {"instance": {"total_kv_blocks": 10}}  # too few for any prompt
    grid = {"cluster.num_instances": [1, 2]}
    swept = sweep({"base": base, "workload": {"rate": 5, "num_requests": 5}, "grid": grid, "constraints": ["ttft_p99_ms <= 9"]})
    assert swept.best is None
    said = " ".join(str(swept).split())
    assert "No run has a figure for ttft_p99_ms: no request got so far. maitred simulate says why." in said


POOLS = "cluster.disaggregation.prefill_instances, cluster.disaggregation.decode_instances, cluster.num_instances"
SPLITS: dict[str, Any] = {
    "base": {"cluster": {"disaggregation": {"kv_bytes_per_token": 100_000}}},
    "workload": {"rate": 6, "num_requests": 30},
}


def test_that_the_best_answers_fewer_requests_than_others_is_said() -> None:
    """A latency is of what was answered: the one that refuses most has the best."""
    of_refusals: dict[str, Any] = {
        "base": {"instance": {"latency": "linear:7000,4,90"}},
        "workload": {"rate": 10, "num_requests": 100, "input_tokens": "uniform:10,500"},
        "grid": {"instance.total_kv_blocks": [20, 2000]},
        "objective": "ttft_mean_ms",
        "pareto": ["ttft_mean_ms", "e2e_p99_ms"],
    }
    misled = sweep(of_refusals | {"workload": of_refusals["workload"] | {"output_tokens": 4}})
    assert misled.best is not None
    assert misled.best.values == {"instance.total_kv_blocks": 20}
    assert "Others answer more requests than the best one" in " ".join(str(misled).split())
    assert "answered" in str(misled)

    asked = sweep(of_refusals | {"constraints": ["completed_share >= 0.99"]})
    assert asked.best is not None
    assert asked.best.values == {"instance.total_kv_blocks": 2000}
    assert "Others answer" not in str(asked)


def test_keys_that_change_together_are_one_column_of_the_grid() -> None:
    swept = sweep({**SPLITS, "grid": {POOLS: [[1, 2, 3], [2, 1, 3]], "instance.max_num_seqs": [8, 16]}})
    assert [tuple(each.values.values()) for each in swept.candidates] == [
        (1, 2, 3, 8),
        (1, 2, 3, 16),
        (2, 1, 3, 8),
        (2, 1, 3, 16),
    ]
    assert list(swept.candidates[0].values)[:2] == [key.strip() for key in POOLS.split(",")[:2]]
    assert not any(each.problem for each in swept.candidates)


def test_a_search_takes_keys_that_change_together() -> None:
    search = {"parameters": {POOLS: [[1, 2, 3], [2, 1, 3]]}, "trials": 4, "batch": 2}
    swept = sweep({**SPLITS, "search": search})
    assert {tuple(each.values.values()) for each in swept.candidates} == {(1, 2, 3), (2, 1, 3)}


def test_values_of_keys_that_change_together_are_one_for_each() -> None:
    with pytest.raises(ConfigError, match=r"takes lists of 3 values, one for each key, not \[1, 2\]"):
        sweep({**SPLITS, "grid": {POOLS: [[1, 2, 3], [1, 2]]}})


def test_a_workload_may_be_swept_too() -> None:
    swept = sweep({"workload": {"num_requests": 30}, "grid": {"workload.rate": [1, 50]}, "metrics": ["responses_per_sec"]})
    slow, fast = (each.figures["responses_per_sec"] or 0 for each in swept.candidates)
    assert slow < 2 < fast


def test_the_results_do_not_depend_on_how_many_processes_there_were(tmp_path: Path) -> None:
    for folder, jobs in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        write_sweep(sweep(GRID, jobs=jobs), tmp_path / folder)
    for name in ("results.jsonl", "results.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_search_finds_the_cheapest_that_holds_and_does_it_again_alike() -> None:
    first = sweep(SEARCH)
    assert first == sweep(SEARCH, jobs=2)
    assert first.best is not None
    assert first.best.meets_constraints
    feasible = [each.figures["cost"] or 0 for each in first.candidates if each.meets_constraints]
    assert first.best.figures["cost"] == min(feasible)
    assert {type(each.values["cluster.num_instances"]) for each in first.candidates} == {int}
    assert {each.values["instance.max_num_seqs"] for each in first.candidates} == {4, 64}


class StoppedError(Exception):
    """Stands for a machine that goes down."""


def stop_after(runs: int) -> Any:
    def progress(done: int, total: int) -> None:
        if done == runs:
            raise StoppedError

    return progress


@pytest.mark.parametrize("spec", [GRID, SEARCH], ids=["grid", "search"])
def test_a_stopped_sweep_goes_on_where_it_was(spec: dict[str, Any], tmp_path: Path) -> None:
    whole = sweep(spec)
    with pytest.raises(StoppedError):
        sweep(spec, out=tmp_path, progress=stop_after(5))
    journal = tmp_path / "runs.jsonl"
    kept = journal.read_bytes()
    assert kept.count(b"\n") == 5
    journal.write_bytes(kept + b'{"run":"0123')  # the line that was being written
    assert sweep(spec, out=tmp_path, resume=True) == whole
    assert journal.read_bytes().startswith(kept)
    before = journal.read_bytes()
    assert sweep(spec, out=tmp_path, resume=True) == whole
    assert journal.read_bytes() == before  # nothing was made again


def test_a_folder_is_not_taken_for_what_it_is_not(tmp_path: Path) -> None:
    sweep(GRID, out=tmp_path)
    with pytest.raises(ConfigError, match="holds a sweep already"):
        sweep(GRID, out=tmp_path)
    with pytest.raises(ConfigError, match="holds another sweep"):
        sweep({**GRID, "seeds": 3}, out=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="holds another sweep"):
        sweep(GRID, out=tmp_path, resume=True, env={"MAITRED_INSTANCE__MAX_NUM_SEQS": "7"})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        sweep(GRID, out=tmp_path / "file" / "below")
    rows = (tmp_path / "runs.jsonl").read_bytes()
    (tmp_path / "runs.jsonl").write_bytes(b"?\n" + rows)
    with pytest.raises(ConfigError, match=r"runs\.jsonl:1: this is not a run"):
        sweep(GRID, out=tmp_path, resume=True)


def test_a_sweep_does_not_go_on_with_another_trace(tmp_path: Path) -> None:
    trace, header, out = tmp_path / "t.csv", tmp_path / "t.yaml", tmp_path / "out"
    rows = gzip.decompress((Path(__file__).parents[1] / "vectors/blis/traces/tie24.csv.gz").read_bytes())
    trace.write_bytes(rows)
    spec = {**GRID, "workload": {"trace": f"blis:{trace}"}}
    whole = sweep(spec, out=out)
    trace.write_bytes(rows)  # Its time alone is another.
    assert sweep(spec, out=out, resume=True) == whole
    trace.write_bytes(rows.rstrip().rpartition(b"\n")[0] + b"\n")
    with pytest.raises(ConfigError, match=r"out: its runs have not read .*t\.csv as it is now"):
        sweep(spec, out=out, resume=True)
    trace.write_bytes(rows)
    header.write_text("trace_version: 2\n")
    with pytest.raises(ConfigError, match=r"t\.yaml as it is now"):
        sweep(spec, out=out, resume=True)


def test_runs_and_a_picture(tmp_path: Path) -> None:
    swept = sweep(GRID)
    frame = swept.to_frame()
    assert frame.height == 12
    assert frame.columns == [
        "point",
        "cluster.num_instances",
        "instance.scheduler",
        "seed",
        "latency_scale",
        "cost",
        "gpus",
        "ttft_mean_ms",
        "ttft_p99_ms",
        "completed_share",
    ]
    assert frame["instance.scheduler"].to_list()[:4] == ["fcfs", "fcfs", "sjf", "sjf"]
    assert frame["seed"].to_list()[:2] == [42, 43]
    swept.plot(tmp_path / "pareto.svg")
    swept.plot(tmp_path / "again.svg")
    assert (tmp_path / "pareto.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert max(map(len, str(swept).splitlines())) <= 80


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"grid": {"cluster.num_instnces": [1]}}, "unknown key 'cluster.num_instnces' (did you mean 'num_instances'?)"),
        ({"grid": {"cluster.num_instances": [0]}}, "num_instances must be from 1"),
        ({"grid": {"instance.scheduler": ["sjff"]}}, "instance.scheduler: unknown"),
        ({"grid": {}}, "grid is empty"),
        ({"grid": {"cluster.num_instances": []}}, "cluster.num_instances has no values"),
        ({"grid": {f"workload.{key}": [*range(100)] for key in "abc"}}, "1,000,000 combinations are too many"),
        ({"grid": None}, "grid is missing"),
        ({"search": SEARCH["search"]}, "search does not go with grid"),
        ({"gird": {}}, "unknown key 'gird' (did you mean 'grid'?)"),
        ({"metrics": ["ttft"]}, "there is no metric 'ttft'"),
        ({"objective": "costs"}, "there is no metric 'costs' (did you mean 'cost'?)"),
        ({"constraints": ["ttft_p99_ms < 500"]}, "cannot read 'ttft_p99_ms < 500'"),
        ({"constraints": ["ttft_p99 <= 500"]}, "there is no metric 'ttft_p99'"),
        ({"pareto": ["cost"]}, "pareto must be two metrics"),
        ({"workload": {"rate": 3}}, "workload.num_requests is missing"),
        ({"workload": {"rate": 3, "num_requests": 9, "input_tokens": "foo"}}, "'foo' is not a length"),
        ({"workload": {"rat": 3}}, "unknown key 'workload.rat' (did you mean 'rate'?)"),
        ({"workload": {"trace": "nowhere.csv"}}, "nowhere.csv: cannot be read"),
        ({"base": "nowhere.yaml"}, "nowhere.yaml: cannot be read"),
        ({"base": {"instance": {"max_num_seq": 3}}}, "unknown key 'instance.max_num_seq'"),
        ({"price_per_hour": 1, "price_per_gpu_hour": 1}, "price_per_gpu_hour does not go with price_per_hour"),
        ({"price_per_gpu_hour": {"A100": 1}}, "H100 has no price"),
        ({"seeds": 0}, "seeds must be from 1"),
        ({"seeds": [1, 1]}, "the seed 1 is given twice"),
        ({"grid": None, "search": {"parameters": {"cluster.num_instnces": [1, 2]}}}, "unknown key 'cluster.num_instnces'"),
        ({"grid": None, "search": {"parameters": {"cluster.num_instances": {"low": 0, "high": 4}}}}, "num_instances must be"),
        ({"grid": None, "search": {"parameters": {"cluster.num_instances": {"low": 4, "high": 4}}}}, "high must be above low"),
    ],
)
def test_a_mistake_is_said_before_anything_runs(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        sweep({**GRID, **change}, out=tmp_path / "out")
    assert said in str(error.value)
    assert not (tmp_path / "out").exists()


def upper(task: bytes) -> bytes:
    return task.upper()


def dies_once(task: bytes) -> bytes:
    """Kill this worker at the first attempt of a task that is the path of `victim`. The file records the attempt."""
    marker = Path(task.decode())
    if marker.name == "victim" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def dies(task: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def blocked(task: bytes) -> bytes:
    return b"blocked" if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()) else b"open"


def test_ctrl_c_never_reaches_a_worker_and_always_us() -> None:
    with ProcessWorkers(blocked, 1) as workers:
        assert [done.result for done in workers.run([b""])] == [b"blocked"]
        assert blocked(b"") == b"open"


def test_every_task_is_answered_once_and_workers_serve_again() -> None:
    with ProcessWorkers(upper, 2) as workers:
        for tasks in ([b"a", b"b", b"c", b"d", b"e"], [b"f"], []):
            answers = {done.index: done.result for done in workers.run(tasks)}
            assert [answers[index] for index in range(len(tasks))] == [task.upper() for task in tasks]


def test_the_task_of_a_killed_worker_is_done_by_another(tmp_path: Path) -> None:
    tasks = [str(tmp_path / name).encode() for name in ("one", "victim", "two", "three")]
    with ProcessWorkers(dies_once, 2) as workers:
        done = [*workers.run(tasks)]
    assert (tmp_path / "victim").exists()
    assert sorted((each.index, each.result) for each in done) == [*enumerate(tasks)]


def test_a_task_that_kills_its_workers_is_given_up() -> None:
    with ProcessWorkers(dies, 1) as workers, pytest.raises(LostWorkersError, match="lost its worker 3 times"):
        [*workers.run([b"x"])]


def test_no_worker_is_left_when_the_block_ends_early() -> None:
    with ProcessWorkers(upper, 2) as workers:
        next(workers.run([b"a", b"b", b"c"]))
        pids = [process.pid for process in active_children()]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


def test_no_processes_at_all_cannot_work() -> None:
    with pytest.raises(ConfigError, match="--jobs: 0 processes"):
        make_workers(upper, jobs=0)
