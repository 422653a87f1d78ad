"""The same runs on a Ray cluster: two nodes on this machine, with one CPU each."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sweep_samples import GRID

from maitred import ConfigError, sweep
from maitred.study import workers
from maitred.study.tune import tune
from maitred.study.workers import LostWorkersError, RayWorkers

sys.path.append(str(Path(__file__).parent / "what_if"))
from recorded_runs import candidate, mixed_jobs, write_run

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'maitred[ray]'"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
MEMORY = 80 * 2**20  # of a node's object store, in bytes: near the least that Ray takes


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()


def test_a_sweep_on_two_nodes_says_what_one_process_does(address: str) -> None:
    assert sweep(GRID, ray=address) == sweep(GRID)


def test_a_tuning_on_two_nodes_says_what_one_process_does(address: str, tmp_path: Path) -> None:
    log, record = write_run(tmp_path, mixed_jobs(350), candidate())
    named: dict[str, Any] = {"varied": ["admission.reserve"], "budget": 1, "seeds": 1}
    slo = ["interactive.ttft_p90_ms <= 200"]
    assert tune([log], [record], slo, ray=address, **named) == tune([log], [record], slo, **named)


def test_the_run_of_a_lost_worker_is_made_by_another(address: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"

    def dies_once(task: bytes) -> bytes:
        if task == b"victim" and not victim.exists():
            victim.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task.upper()

    tasks = [b"one", b"victim", b"two", b"three"]
    with RayWorkers(dies_once, address) as nodes:
        done = {each.index: each.result for each in nodes.run(tasks)}
    assert victim.exists()
    assert done == {0: b"ONE", 1: b"VICTIM", 2: b"TWO", 3: b"THREE"}


def test_a_run_that_kills_its_workers_is_given_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_ATTEMPTS", 2)  # each takes the start of a worker

    def dies(task: bytes) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return task

    with RayWorkers(dies, address) as dying, pytest.raises(LostWorkersError):
        [*dying.run([b"x"])]


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConfigError, match=f"there is no Ray cluster at 127.0.0.1:{port}: .*refused"):
        sweep(GRID, ray=f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="'nowhere' is no address of a Ray cluster"):
        sweep(GRID, ray="nowhere")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ConfigError, match="this machine is in no Ray cluster"):
        sweep(GRID, ray="auto")
