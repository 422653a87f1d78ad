"""Rows of results, written by hand, as `Results`."""

from __future__ import annotations

import numpy as np

from maitred.core.request import PriorityClass
from maitred.sim import Outcome, Results

NEVER = -1
INTERACTIVE, BULK = PriorityClass.INTERACTIVE, PriorityClass.BULK
COLUMNS = (
    "request_id", "priority_class", "arrival", "scheduled", "first_token", "finished",
    "prompt_tokens", "output_tokens", "outcome", "instance", "preemptions", "retries", "cached_tokens",
)  # fmt: skip
NOT_SAID = {"admitted": NEVER, "queued": NEVER, "wasted_tokens": 0, "tenant": 0, "model": 0, "slo_class": 0}

Row = tuple[int, ...]

FIVE: tuple[Row, ...] = (
    (0, INTERACTIVE, 0, 10_000, 100_000, 500_000, 10, 5, Outcome.COMPLETED, 0, 0, 0, 8),
    (1, INTERACTIVE, 100_000, 120_000, 300_000, 300_000, 20, 1, Outcome.COMPLETED, 1, 0, 0, 0),
    (2, BULK, 200_000, 230_000, 600_000, 1_600_000, 30, 11, Outcome.COMPLETED, 0, 2, 0, 14),
    (3, BULK, 250_000, NEVER, NEVER, NEVER, 40, 0, Outcome.REJECTED, NEVER, 0, 0, 0),
    (4, BULK, 300_000, 340_000, 1_100_000, NEVER, 50, 3, Outcome.UNFINISHED, 1, 1, 0, 0),
)
"""Two seconds in which three requests complete, one of them with a single token; one is rejected, one cut off by the end."""

PREEMPTING: tuple[Row, ...] = (
    *FIVE,
    (5, BULK, 400_000, NEVER, NEVER, 500_000, 60, 0, Outcome.PREEMPTED, 1, 0, 0, 0),
    (6, BULK, 400_000, 700_000, 800_000, 900_000, 70, 2, Outcome.COMPLETED, 1, 0, 1, 0),
)
"""The five, and two bulk requests that lost their slots; one of them was tried again."""


def results_of(rows: tuple[Row, ...], end: int) -> Results:
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    said = {name: np.array(list(column), dtype=np.int64) for name, column in zip(COLUMNS, columns, strict=True)}
    return Results(end=end, **said, **{name: np.full(len(rows), value) for name, value in NOT_SAID.items()})
