"""`maitred demo` as its users run it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def demo(*arguments, **options):
    command = [sys.executable, "-m", "maitred", "demo", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_children(process, number):
    """Until it has so many, at most 20 s."""
    for _ in range(400):
        if len(found := children_of(process.pid)) == number or process.poll() is not None:
            return found
        time.sleep(0.05)
    return found


def gone(pids):
    return [pid for pid in pids if not Path(f"/proc/{pid}").exists()] == list(pids)


def ended(pid):
    """Whether it has; an orphan stays a zombie where the first process of a container reaps none."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_short_run_accounts_for_every_request_and_chats_do_not_notice_the_flood():
    process = demo("--seconds", "4", "--quiet", env={**os.environ, "MAITRED_GATEWAY__SLOTS_PER_BACKEND": "nonsense"})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    summary = json.loads(out)
    assert summary["seconds"] == pytest.approx(4, abs=0.5)
    assert summary["leaked_slots"] == 0
    classes = summary["classes"]
    assert list(classes) == ["interactive", "bulk"]
    ends = ("completed", "rejected", "preempted", "failed", "cancelled")
    assert sum(of[end] for of in classes.values() for end in ends) == summary["arrivals"] > 50
    assert classes["bulk"]["completed"] > 30
    assert classes["interactive"]["failed"] == classes["bulk"]["failed"] == 0
    # the order that admission imposes, and not how long anything takes
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
def test_a_run_of_no_length_is_refused(seconds):
    process = demo(f"--seconds={seconds}")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert err == f"maitred: error: --seconds: {seconds} cannot be used (a number above 0)\n"
