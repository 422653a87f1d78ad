"""Run all cases of some files: tell the kind of each case, and report the differences."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import capacity_cases, interleaved_cases, micro_batch_cases, other_cases
from .requests import Case

Check = Callable[[Case], Iterator[str]]
"""Runs a recorded case, and yields the differences, one line each."""

CHECKS: Mapping[str, Check] = {
    "capacity_trace": capacity_cases.run_trace,
    "capacity_single": capacity_cases.run_single,
    "microbatch_trace": micro_batch_cases.run_trace,
    "microbatch_single": micro_batch_cases.run_single,
    "chunking_direct": micro_batch_cases.run_chunking,
    "block_formula": other_cases.run_formula,
    "priority_insert": other_cases.run_priority_insert,
    "waiting_queue": other_cases.run_waiting_queue,
    "batch_waiting": other_cases.run_batch_waiting,
    "adp_balance": other_cases.run_adp_balance,
    "adp_router_default": other_cases.run_adp_router,
    "v2_single": interleaved_cases.run_case,
}
"""The checks by kind."""


class CasesError(Exception):
    """A file that cannot be read as recorded cases."""


def cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file, gzipped or not. Raises CasesError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            found: list[dict[str, Any]] = json.load(file)["cases"]
        if not all({"id", "kind"} <= case.keys() for case in found):
            raise CasesError(f"{path} holds cases without an id or a kind")
    except OSError as error:
        raise CasesError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as error:
        raise CasesError(f"{path} holds no cases: {type(error).__name__}: {error}") from error
    return found


def failures(case: Case) -> list[str]:
    """Return the differences between a case and what comes out here."""
    try:
        return list(CHECKS[case["kind"]](case))
    except Exception as error:  # a defect in what is checked is a failure of this case alone; the others are still run
        return [f"{type(error).__name__}: {error}"]


def report(paths: Iterable[Path], echo: Callable[[str], None]) -> int:
    """Run all cases and report the results. Returns the exit status: 0 if any case was run and all passed. Raises
    CasesError."""
    passed = failed = 0
    skipped = Counter[str]()
    for case in (case for path in paths for case in cases(path)):
        if case["kind"] not in CHECKS:
            skipped[case["kind"]] += 1
            continue
        found = failures(case)
        passed += not found
        failed += bool(found)
        for failure in found:
            echo(f"{case['id']}: {failure}")
    for kind, count in skipped.items():
        echo(f"{count} cases of kind {kind} SKIPPED: nothing here plays them yet")
    echo(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1
