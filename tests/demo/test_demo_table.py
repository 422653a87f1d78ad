"""The live table and the summary, as text."""

import io

from rich.console import Console

from maitred.cli.demo_show import live_table, print_summary
from maitred.emulator.demo import DemoSummary
from maitred.emulator.tally import Outcome, Tally
from maitred.request import PriorityClass


def rows(table):
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    return [line.strip(" │").split("│") for line in out.getvalue().splitlines() if line.startswith("│")]


def test_a_row_per_class_says_who_waits_and_how_long_the_others_waited():
    tally = Tally((PriorityClass.INTERACTIVE, PriorityClass.BULK))
    for ttft in (0.2, 1.5):
        flight = tally.send(PriorityClass.INTERACTIVE, 0.0)
        flight.token(ttft)
        flight.end(Outcome.COMPLETED, 2.0)
    tally.send(PriorityClass.BULK, 0.0)
    tally.send(PriorityClass.BULK, 0.0).token(1.0)
    tally.send(PriorityClass.BULK, 0.0).end(Outcome.REJECTED, 1.0)
    chats, bulk = [[cell.strip() for cell in row] for row in rows(live_table(tally, 3.0))]
    assert chats == ["interactive", "0", "0", "200 ms", "1.5 s", "2", "0"]
    assert bulk == ["bulk", "1", "1", "–", "–", "0", "1"]


def test_the_summary_names_the_slots_that_leaked(capsys):
    print_summary(DemoSummary(seconds=4.0, arrivals=0, classes={}, leaked_slots=3))
    said = capsys.readouterr().out
    assert "0 requests in 4 s" in said
    assert "Slots leaked: 3" in said
