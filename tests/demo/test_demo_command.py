"""`maitred demo`: its results in this process, and what becomes of its child processes when it is stopped or killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maitred.workload import sample_jobs, scale_time


def demo(*arguments, **options):
    command = [sys.executable, "-m", "maitred", "demo", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_children(process, number):
    """Wait, at most 20 s, until the process has `number` children, and return their ids."""
    for _ in range(400):
        if len(found := children_of(process.pid)) == number or process.poll() is not None:
            return found
        time.sleep(0.05)
    return found


def gone(pids):
    """Return whether no process with these ids exists."""
    return [pid for pid in pids if not Path(f"/proc/{pid}").exists()] == list(pids)


def ended(pid):
    """Return whether the process has ended. An orphan stays a zombie in a container whose first process reaps none."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_short_run_accounts_for_every_request_and_chats_do_not_notice_the_flood(maitred, monkeypatch):
    """Four seconds of the demo, run three times as fast: arrivals, steps and durations take a third of their time."""
    monkeypatch.setattr("maitred.emulator.demo.LATENCY", "linear:4666,2.7,167")
    monkeypatch.setattr("maitred.emulator.demo.SAMPLE_PERIOD", 20_000_000)
    monkeypatch.setattr("maitred.emulator.demo.sample_jobs", lambda name: scale_time(sample_jobs(name), 1 / 3))
    result = maitred("demo", "--seconds", "1.33", "--quiet", env={"MAITRED_GATEWAY__SLOTS_PER_BACKEND": "nonsense"})
    assert (result.code, result.err) == (0, "")
    summary = json.loads(result.out)
    assert summary["seconds"] == pytest.approx(1.33, abs=0.5)
    assert summary["leaked_slots"] == 0
    classes = summary["classes"]
    assert list(classes) == ["interactive", "bulk"]
    ends = ("completed", "rejected", "preempted", "failed", "cancelled")
    assert sum(of[end] for of in classes.values() for end in ends) == summary["arrivals"] > 50
    assert classes["bulk"]["completed"] > 30
    assert classes["interactive"]["failed"] == classes["bulk"]["failed"] == 0
    # This is the order that admission imposes. How long anything takes is not asserted.
    assert classes["interactive"]["ttft_p50_ms"] < classes["bulk"]["ttft_p50_ms"] / 2


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see child processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_load_begins_leaves_nothing_behind(number):
    process = demo("--quiet")
    children = wait_for_children(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")
    assert len(children) == 2
    assert gone(children)


def test_a_signal_ends_the_show_early_with_a_summary():
    with demo() as process:
        while (line := process.stdout.readline()) and "listens on" not in line:
            pass
        time.sleep(1.5)  # let chats and the first bulk requests be on their way
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()  # not communicate(): readline() has buffered what follows
    assert (process.returncode, err) == (0, "")
    assert "curl -N http://127.0.0.1:" in out
    assert "extra_headers" in out
    assert "Slots leaked: 0" in out


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see child processes")
def test_a_child_that_dies_ends_the_demo_with_one_line():
    process = demo("--seconds", "30", "--quiet")
    children = wait_for_children(process, 3)
    assert len(children) == 3
    os.kill(children[0], signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert err == "maitred: error: the first engine was ended by signal 9\n"
    assert gone(children)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see child processes")
def test_a_demo_that_is_killed_leaves_nothing_behind():
    process = demo("--quiet")
    children = wait_for_children(process, 3)
    assert len(children) == 3
    process.kill()
    process.communicate(timeout=30)
    try:
        for _ in range(200):
            if all(ended(child) for child in children):
                break
            time.sleep(0.05)
        assert all(ended(child) for child in children)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_run_of_no_length_is_refused(seconds, maitred):
    result = maitred("demo", f"--seconds={seconds}")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"maitred: error: --seconds: {seconds} cannot be used (a number above 0)\n"
