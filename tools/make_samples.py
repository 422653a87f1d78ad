"""Makes the sample traces of maitred: `python tools/make_samples.py`. The same seed gives the same bytes.

`mixed.csv` is one minute of interactive chats (short prompts and answers, two a second) over bulk requests that come in waves:
20 requests a second for 6 seconds, far more than two engines with 16 slots each can hold, then a pause in which they catch up.
All of it is drawn from the distributions below; it contains no recorded traffic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

from maitred.core.request import PriorityClass
from maitred.core.units import SECOND, Micros, to_seconds
from maitred.workload.formats.maitred import REQUIRED_COLUMNS
from maitred.workload.job import Job
from maitred.workload.synthetic import synthetic

SAMPLES = Path(__file__).parents[1] / "src" / "maitred" / "workload" / "samples"

_DURATION: Micros = 60 * SECOND
_WAVE_STARTS: tuple[Micros, ...] = (1 * SECOND, 21 * SECOND, 41 * SECOND)


def mixed_lines() -> Iterator[str]:
    """Yield the lines of `mixed.csv`."""
    chats = synthetic(2, 200, seed=1, input_tokens="lognormal:120,80", output_tokens="normal:40,12", class_mix="interactive:1")
    waves = [_shift(start, _wave(seed)) for seed, start in enumerate(_WAVE_STARTS, start=2)]
    yield ",".join(REQUIRED_COLUMNS)
    for at, job in heapq.merge(_shift(0, chats), *waves, key=lambda arrival: arrival[0]):
        if at >= _DURATION:
            break
        request = job.request
        label = PriorityClass(request.priority_class).label
        yield f"{to_seconds(at):.3f},{label},{request.prompt_tokens},{job.output_tokens}"


def _wave(seed: int) -> Iterator[Job]:
    return synthetic(20, 120, seed=seed, input_tokens="lognormal:800,400", output_tokens="normal:120,30", class_mix="bulk:1")


def _shift(start: Micros, jobs: Iterator[Job]) -> Iterator[tuple[Micros, Job]]:
    return ((start + job.request.arrival, job) for job in jobs)


if __name__ == "__main__":
    (SAMPLES / "mixed.csv").write_text("".join(f"{line}\n" for line in mixed_lines()), encoding="utf-8")
