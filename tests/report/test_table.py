"""The table for the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from maitred.report import Slo, print_summary, summarise
from maitred.report.table import print_table, print_to_text
from maitred.sim import Results


def printed(results: Results, slo: Slo | None = None, width: int = 80) -> str:
    text = io.StringIO()
    print_summary(summarise(results, slo), Console(file=text, width=width))
    return text.getvalue()


def cells(text: str, *start: str) -> list[str]:
    """Return the cells of the line that begins with `start`."""
    lines = [line.split() for line in text.splitlines()]
    return next(line[len(start) :] for line in lines if tuple(line[: len(start)]) == start)


def test_latencies_of_every_class_and_of_all(five: Results) -> None:
    text = printed(five)
    assert cells(text, "latency") == ["class", "mean", "sd", "p50", "p90", "p99", "p99.9"]
    assert cells(text, "TTFT", "ms") == ["interactive", "150.0", "50.0", "150.0", "190.0", "199.0", "199.9"]
    assert cells(text, "E2E", "ms") == ["interactive", "350.0", "150.0", "350.0", "470.0", "497.0", "499.7"]
    assert ["bulk", "1,400", "0.00", *["1,400"] * 4] in [line.split() for line in text.splitlines()]


def test_counts_of_every_class_and_of_all(five: Results) -> None:
    text = printed(five, Slo(ttft_ms=200))
    assert cells(text, "requests") == ["interactive", "bulk", "all"]
    assert cells(text, "arrived") == ["2", "3", "5"]
    assert cells(text, "completed") == ["2", "1", "3"]
    assert cells(text, "rejected") == ["0", "1", "1"]
    assert cells(text, "unfinished") == ["0", "1", "1"]
    assert cells(text, "completed/s") == ["1.00", "0.50", "1.50"]
    assert cells(text, "output", "tokens/s") == ["3.00", "7.00", "10.0"]
    assert cells(text, "total", "tokens/s") == ["18.0", "47.0", "65.0"]
    assert cells(text, "most", "in", "flight") == ["–", "–", "4"]
    assert cells(text, "goodput/s") == ["1.00", "0.00", "1.00"]
    assert cells(text, "within", "SLO") == ["100.0%", "0.0%", "40.0%"]
    assert text.endswith("2.0 s simulated; SLO: TTFT ≤ 200 ms\n")


def test_what_happened_to_no_request_and_an_slo_that_was_not_given_take_no_room(five: Results) -> None:
    text = printed(five)
    assert "timed out" not in text
    assert "refused" not in text
    assert "goodput" not in text
    assert text.endswith("2.0 s simulated\n")


def test_requests_whose_slots_were_taken_back_and_those_tried_again(preempting: Results, five: Results) -> None:
    text = printed(preempting)
    assert cells(text, "preempted") == ["0", "1", "1"]
    assert cells(text, "retries") == ["0", "1", "1"]
    assert cells(text, "KV", "preemptions") == ["0", "3", "3"]
    assert "retries" not in printed(five)
    assert "preempted" not in printed(five)


def test_one_class_alone_is_not_shown_twice(make: Callable[..., Results], five_rows: Any) -> None:
    text = printed(make(five_rows[:2], 2_000_000))
    assert "interactive" not in text
    assert cells(text, "arrived") == ["2"]


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_and_is_plain_text_when_piped(five: Results, width: int) -> None:
    text = printed(five, Slo(ttft_ms=0.001, tpot_ms=0.001, e2e_ms=0.001), width)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" not in text


@pytest.mark.parametrize("width", [60, 40, 1])
def test_a_narrow_terminal_has_narrow_tables_and_nothing_is_lost(five: Results, width: int) -> None:
    full, narrow = printed(five, Slo(ttft_ms=200)), printed(five, Slo(ttft_ms=200), width)
    words = {word for line in full.splitlines() if "simulated" not in line for word in line.split() if "─" not in word}
    assert words - set(narrow.split()) == set()
    assert width == 1 or max(map(len, narrow.splitlines())) <= width
    assert cells(full, "within", "SLO") == ["100.0%", "0.0%", "40.0%"]


def test_nothing_completed_is_a_dash_never_nan(none: Results) -> None:
    text = printed(none, Slo(ttft_ms=0.001))
    assert cells(text, "TTFT", "ms", "all") == ["–"] * 6
    assert cells(text, "completed/s") == ["–"]
    assert cells(text, "within", "SLO") == ["–"]
    assert "nan" not in text.lower()


def test_a_wide_table_is_printed_in_parts_that_repeat_the_names() -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold")
    for number in range(12):
        table.add_column(f"figure {number}", justify="right")
    table.add_row("first", *(f"{number}0000" for number in range(12)), end_section=True)
    table.add_row("second", *(f"{number}1111" for number in range(12)))
    text = print_to_text(lambda console: print_table(table, console))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("first") == text.count("second") == 2
    assert all(f"{number}0000" in text and f"{number}1111" in text for number in range(12))


def test_a_wide_table_is_whole_on_a_wide_terminal() -> None:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("name", style="bold")
    for number in range(12):
        table.add_column(f"figure {number}")
    table.add_row("first", *("1" * 9 for _ in range(12)))
    out = io.StringIO()
    print_table(table, Console(file=out, width=200))
    assert out.getvalue().count("first") == 1


def test_a_figure_that_is_wider_than_everything_is_never_cut() -> None:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("name", style="bold")
    table.add_column("figure")
    table.add_row("first", "9" * 100)
    assert "9" * 100 in print_to_text(lambda console: print_table(table, console))
