"""The live table and the summary, as text."""

import io
import re

from rich.console import Console

from maitred.cli.demo import live_table, print_summary
from maitred.core.request import PriorityClass
from maitred.emulator.clients import ClassOutcomes, ClientOutcome, ClientStats
from maitred.emulator.demo import DemoSummary


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
