"""This process, one run after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from maitred.study.workers.workers import CompletedTask, TaskFunction


class InProcessWorkers:
    """No other process: policies that a program has registered for itself are known."""

    def __init__(self, work: TaskFunction) -> None:
        self._work = work

    def run(self, tasks: Sequence[bytes]) -> Iterator[CompletedTask]:
        for index, task in enumerate(tasks):
            yield CompletedTask(index, self._work(task))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass
