"""Four hundred clients at twice the capacity, for a few seconds; `make stress` is the same with ten thousand for a minute."""

from __future__ import annotations

import json

import bench_script


def test_every_request_of_four_hundred_clients_is_accounted_for() -> None:
    done = bench_script.run("stress.py", "--clients", "400", "--rate", "400", "--seconds", "2.4")

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["problems"] == []
    assert summary["clients"] == 400
    assert summary["arrivals"] == sum(sum(outcomes.values()) for outcomes in summary["outcomes"].values()) > 500
    assert summary["most_waiting"] > 0
