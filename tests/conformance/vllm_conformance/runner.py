"""Run all cases of some files, and report the differences to what vLLM did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .replay import Replay
from .workload import CasesError, load_cases

__all__ = ["CasesError", "differences", "report"]


def differences(case: dict[str, Any]) -> list[str]:
    """Return the differences between a case and what comes out here: step, field, expected and got."""
    try:
        return list(_differences(case))
    except Exception as error:  # a defect in what is checked is a failure of this case alone; the others are still run
        return [f"{type(error).__name__}: {error}"]


def _differences(case: dict[str, Any]) -> Iterator[str]:
    replay, recorded = Replay(case), case["recorded"]
    replay.run()
    for number, (expected, got) in enumerate(zip(recorded["steps"], replay.steps, strict=False)):
        wrong = [*_wrong_fields(f"step {number}", expected, got)]
        if wrong:
            yield from wrong
            return  # what follows in later steps follows from this
    if len(replay.steps) != len(recorded["steps"]):
        yield f"end: {len(recorded['steps'])} steps expected, {len(replay.steps)} made"
    if bool(recorded.get("stuck")) != replay.stuck:
        yield f"end: stuck {bool(recorded.get('stuck'))} expected, {replay.stuck} got"
    for name in recorded["requests"].keys() | replay.requests.keys():
        yield from _wrong_fields(f"request {name}", recorded["requests"].get(name, {}), replay.requests.get(name, {}))


def _wrong_fields(where: str, expected: dict[str, Any], got: dict[str, Any]) -> Iterator[str]:
    for field, value in expected.items():
        if got.get(field) != value:
            yield f"{where}: {field}: {value} expected, {got.get(field)} got"


def report(paths: Iterable[Path], echo: Callable[[str], None]) -> int:
    """Run all cases and report the results. Returns the exit status: 0 if any case was run and all passed. Raises
    CasesError."""
    passed = failed = 0
    for path in paths:
        for case in load_cases(path):
            found = differences(case)
            passed += not found
            failed += bool(found)
            for line in found:
                echo(f"{path.name} {case.get('name', '')}: {line}")
    echo(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1
