"""The effect of classes, by orders of magnitude: figures are for bench/class_effect.py."""

from __future__ import annotations

import json

import bench_script


def test_interactive_requests_pass_a_flood_of_bulk() -> None:
    done = bench_script.run("class_effect.py", "--rounds", "1", "--bulk", "80", "--idle-secs", "0.2", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    effects = json.loads(done.stdout)
    assert [effect["refused"] for effect in effects.values()] == [0, 0, 0]
    assert effects["priority"]["interactive_p50"] * 3 < effects["legacy"]["interactive_p50"]
