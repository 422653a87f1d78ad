"""Trials: replays of candidates, by workers that have the traffic in a file, or on a Ray cluster with each task.

A run is a function of its traffic, candidate and seed alone. Under one seed all candidates meet the same draws (common random
numbers): what differs between two runs is what their rules decide.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from maitred.core.errors import ConfigError
from maitred.study.candidate import Candidate
from maitred.study.runs import Progress
from maitred.study.what_if.world import ReplayedRun, ReplayTask, ReplayWorld, decode_run, encode_replay, run_replay
from maitred.study.workers import make_workers


class Trial(msgspec.Struct, frozen=True):
    """A run that is wanted."""

    world: int
    """Which of the worlds."""
    candidate: Candidate
    seed: int


class Trials:
    """Makes runs, in a `with`."""

    def __init__(self, worlds: Sequence[ReplayWorld], *, jobs: int | None, ray: str | None) -> None:
        """Raises ConfigError for workers that cannot be had."""
        self._folder = tempfile.TemporaryDirectory(prefix="maitred-tune-")
        self._worlds: list[bytes] = []
        self._is_whole = ray is not None
        for index, world in enumerate(worlds):
            path = Path(self._folder.name) / str(index)
            path.write_bytes(said := encode_replay(world))
            self._worlds.append(bytes(path) if ray is None else said)
        self._workers = make_workers(run_replay, jobs=jobs, ray=ray)
        self.num_done = 0

    def run(self, trials: Sequence[Trial], progress: Progress | None = None) -> list[ReplayedRun | ConfigError]:
        """Return the run of each, or why its rules are impossible. Raises LostWorkersError."""
        tasks = [
            encode_replay(ReplayTask(self._worlds[each.world], each.candidate, each.seed, self._is_whole)) for each in trials
        ]
        found: dict[int, ReplayedRun | ConfigError] = {}
        for done in self._workers.run(tasks):
            try:
                found[done.index] = decode_run(done.result)
            except ConfigError as error:
                found[done.index] = error
            if progress is not None:
                progress(len(found), len(tasks))
        self.num_done += len(tasks)
        return [found[index] for index in range(len(tasks))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._workers.close()
        self._folder.cleanup()
