"""`maitred demo`: the command, its table, and its child processes, which start, say why if they do not, and never survive the
`async with` block.
"""

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop
from rich.console import Console

from maitred.cli.demo import live_table, print_summary
from maitred.core.request import PriorityClass
from maitred.emulator.clients import ClassOutcomes, ClientOutcome, ClientStats
from maitred.emulator.demo import DemoProcessError, DemoProcesses, DemoSummary, _get
from maitred.wire.client import UpstreamClient
from maitred.wire.origin import Origin
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
def test_a_signal_before_the_load_begins_leaves_nothing_behind():
    process = demo("--quiet")
    children = wait_for_children(process, 2)
    process.send_signal(signal.SIGTERM)
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


def rows(table):
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    lines = [re.split(r"\s{2,}", line.strip()) for line in out.getvalue().splitlines()]
    return [line for line in lines if line[0] in ("interactive", "bulk")]


def test_a_row_per_class_shows_waiting_requests_and_times_of_the_others():
    stats = ClientStats((PriorityClass.INTERACTIVE, PriorityClass.BULK))
    for ttft in (0.2, 1.5):
        sent = stats.on_send(PriorityClass.INTERACTIVE, 0.0)
        sent.on_token(ttft)
        sent.on_end(ClientOutcome.COMPLETED, 2.0)
    stats.on_send(PriorityClass.BULK, 0.0)
    stats.on_send(PriorityClass.BULK, 0.0).on_token(1.0)
    stats.on_send(PriorityClass.BULK, 0.0).on_end(ClientOutcome.REJECTED, 1.0)
    chats, bulk = rows(live_table(stats, 3.0))
    assert chats == ["interactive", "0", "0", "200 ms", "1.5 s", "2", "0"]
    assert bulk == ["bulk", "1", "1", "–", "–", "0", "1"]


def test_the_summary_fits_a_terminal_and_names_the_slots_that_leaked(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    counts = {"completed": 123, "rejected": 4, "preempted": 7, "failed": 5, "cancelled": 6}
    of = ClassOutcomes(**counts, ttft_p50_ms=31.2, ttft_p99_ms=48.0, e2e_p50_ms=10_500.0)
    print_summary(DemoSummary(seconds=4.0, arrivals=145, classes={"interactive": of}, leaked_slots=3))
    printed = capsys.readouterr().out
    assert "145 requests in 4 s" in printed
    (row,) = [line.split() for line in printed.splitlines() if "interactive" in line]
    assert row == ["interactive", "123", "4", "7", "5", "6", "31", "ms", "48", "ms", "10.5", "s"]
    assert max(map(len, printed.splitlines())) <= 80
    assert "Slots leaked: 3" in printed


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_no_child_survives_the_block_even_when_it_fails():
    async def scenario():
        async with DemoProcesses() as processes:
            child = await processes.start("engine", "engine", "--port", "0")
            url = await child.wait_until_listening()
            pids.append(child.pid)
            urls.append(url)
            raise LookupError

    pids, urls = [], []
    with pytest.raises(LookupError):
        asyncio.run(scenario())
    assert urls[0].startswith("http://127.0.0.1:")
    assert not is_alive(pids[0])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see child processes")
@pytest.mark.parametrize("turns", range(4))
def test_a_start_that_is_cancelled_leaves_nothing_behind(turns):
    async def scenario():
        async with DemoProcesses() as processes:
            starting = asyncio.create_task(processes.start("engine", "engine", "--port", "0"))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait({starting})
        assert starting.cancelled()

    before = children()
    uvloop.run(scenario())
    assert children() == before


def test_a_child_that_does_not_come_up_is_quoted():
    async def scenario():
        async with DemoProcesses() as processes:
            child = await processes.start("first engine", "engine", "--port", "0", "--scheduler", "sfj")
            await child.wait_until_listening()

    with pytest.raises(
        DemoProcessError, match=r"^the first engine ended with exit code 2: maitred: error: .*did you mean 'sjf'\?"
    ):
        asyncio.run(scenario())


def test_a_child_that_dies_early_is_noticed():
    async def scenario():
        async with DemoProcesses() as processes:
            children = [await processes.start(name, "engine", "--port", "0") for name in ("first engine", "second engine")]
            for child in children:
                await child.wait_until_listening()
            os.kill(children[1].pid, signal.SIGKILL)
            return str(await processes.wait_for_exit())

    assert (
        asyncio.run(scenario()) == "the second engine was ended by signal 9"
    )  # its last line names the URL, which explains nothing


def test_an_answer_that_is_none_is_said_and_its_connection_used_again():
    async def scenario():
        async with DemoProcesses() as processes:
            server = Origin.parse(await (await processes.start("engine", "engine", "--port", "0")).wait_until_listening())
            client = UpstreamClient()
            with pytest.raises(DemoProcessError, match="answered /ready with the status 404"):
                await _get(client, server, "/ready")
            connections = client.pool(server).num_open
            await client.close()
            return connections

    assert asyncio.run(scenario()) == 1
