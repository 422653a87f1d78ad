"""A small burst of agent programs on emulated engines; bench/programs_burst.py is the large one."""

from __future__ import annotations

import bench_script


def test_every_program_of_a_burst_finishes_and_its_recording_is_simulated() -> None:
    done = bench_script.run("programs_burst.py", "--programs", "12", "--turns", "2", "--speed", "8")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every program has finished, and nothing is left\n")
    assert "| smaller half | " in done.stdout
    assert "| mean, simulated | " in done.stdout


def test_every_program_finishes_although_an_engine_and_the_gateway_are_killed() -> None:
    done = bench_script.run("programs_burst.py", "--programs", "12", "--turns", "3", "--speed", "4", "--kill")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every program has finished, and nothing is left\n")
    assert done.stdout.count(" was killed when ") == 2
