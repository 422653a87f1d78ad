"""Print the steps that vLLM made beside those of the simulator: `python -m maitred.plugins.vllm STEPS.jsonl [--all]`.

A step is written as its requests with their tokens, in the order of the batch: `0:512 3:1` computes 512 tokens of request 0 and
one of request 3. `!4` was preempted for it. Steps that repeat themselves are one line. Exits with 1 if a step differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from maitred.core.errors import MaitredError
from maitred.plugins.vllm.step_log import StepLine, read_step_log
from maitred.plugins.vllm.step_replay import StepReplay

USAGE = "usage: python -m maitred.plugins.vllm STEPS.jsonl [--all]   (a file that record_steps wrote)"
MAX_ROWS = 60


class StepPair(msgspec.Struct, frozen=True):
    """The same step in vLLM and in the simulator, as texts."""

    index: int
    vllm: str
    simulator: str


def main() -> None:
    """Run the command with the arguments of the process."""
    names = [argument for argument in sys.argv[1:] if argument != "--all"]
    if len(names) != 1 or names[0].startswith("-"):
        sys.exit(USAGE)
    try:
        pairs = compare_steps(Path(names[0]))
    except MaitredError as error:
        sys.exit(f"error: {error}")
    different = sum(pair.vllm != pair.simulator for pair in pairs)
    console = Console(soft_wrap=True)
    console.print(step_table(pairs, None if "--all" in sys.argv else MAX_ROWS))
    console.print(f"{len(pairs) - different} steps the same, {different} different")
    sys.exit(1 if different else 0)


def compare_steps(path: Path) -> list[StepPair]:
    """Return each step of the log at `path`, and that of the simulator. Raises ConfigError for what cannot be simulated."""
    header, lines = read_step_log(path)
    recorded = [line for line in lines if isinstance(line, StepLine)]
    simulated = StepReplay(header, lines).steps() if recorded else ()
    return [
        StepPair(theirs.index, step_text(theirs), step_text(ours)) for theirs, ours in zip(recorded, simulated, strict=True)
    ]


def step_table(pairs: Sequence[StepPair], max_rows: int | None) -> Table:
    """Return the steps side by side. Of more than `max_rows` rows, the first that differ are shown, or else the first."""
    table = Table("steps", "vLLM", "simulator", "", box=None)
    rows = [*_rows(pairs)]
    different = [row for row in rows if row[3]]
    for row in (different or rows)[:max_rows] if max_rows is not None and len(rows) > max_rows else rows:
        table.add_row(*row)
    return table


def step_text(step: StepLine) -> str:
    """Return a step in one line."""
    return " ".join([*(f"!{request_id}" for request_id in step.preempted), *(f"{i}:{tokens}" for i, tokens in step.scheduled)])


def _rows(pairs: Iterable[StepPair]) -> Iterator[tuple[str, str, str, str]]:
    for (vllm, simulator), group in groupby(pairs, key=lambda pair: (pair.vllm, pair.simulator)):
        indices = [pair.index for pair in group]
        span = str(indices[0]) if len(indices) == 1 else f"{indices[0]}-{indices[-1]}"
        yield span, vllm, simulator, "" if vllm == simulator else "differs"


if __name__ == "__main__":
    main()
