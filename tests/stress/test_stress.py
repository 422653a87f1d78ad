"""A thousand clients at twice the capacity, for a few seconds; `make stress` is the same with ten thousand for a minute."""

from __future__ import annotations

import json

import bench_script


def test_every_request_of_a_thousand_clients_is_accounted_for() -> None:
    done = bench_script.run("stress.py", "--clients", "1000", "--rate", "1000", "--seconds", "2.4")

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["problems"] == []
    assert summary["clients"] == 1000
    assert summary["arrivals"] == sum(sum(outcomes.values()) for outcomes in summary["outcomes"].values()) > 1000
    assert summary["most_waiting"] > 0
