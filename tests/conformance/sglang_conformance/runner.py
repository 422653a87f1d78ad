"""Run all cases of some files: tell the kind of each case, and report the differences."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from . import new_token_ratio, policies, prefill, prefill_delayer, queue_full, retraction

Check: TypeAlias = Callable[[bytes], Iterable[str]]
"""Runs a recorded case, and yields the differences, one line each."""

CHECKS: Mapping[str, Check] = {
    "policies": policies.run_case,
    "queue_full": queue_full.run_case,
    "prefill": prefill.run_case,
    "retract": retraction.run_case,
    "new_token_ratio": new_token_ratio.run_case,
    "prefill_delayer": prefill_delayer.run_case,
}
"""The checks by kind. Cases of other kinds are recorded, but not run."""


class CasesError(Exception):
    """A file that cannot be read as recorded cases."""


class Result(msgspec.Struct, frozen=True):
    file: str
    id: int
    kind: str
    played: bool
    failures: Sequence[str] = ()


class Outline(msgspec.Struct):
    """The keys that tell the kind of a case: `kind`, or else a key that only one kind has."""

    id: int
    kind: str | msgspec.UnsetType = msgspec.UNSET
    random_seed: int | msgspec.UnsetType = msgspec.UNSET
    chunked_prefill_size: int | msgspec.UnsetType | None = msgspec.UNSET

    def name(self) -> str:
        if self.kind is not msgspec.UNSET:
            return self.kind
        if self.random_seed is not msgspec.UNSET:
            return "policies"
        return "unknown" if self.chunked_prefill_size is msgspec.UNSET else "prefill"


def lines(path: Path) -> Iterator[bytes]:
    """Yield the cases of a JSONL file, gzipped or not. Raises CasesError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from (line for line in file if line.strip())
    except OSError as error:
        raise CasesError(f"cannot read {path}: {error.strerror or error}") from error


def run(paths: Iterable[Path], checks: Mapping[str, Check] = CHECKS) -> Iterator[Result]:
    """Run all cases of the files. Raises CasesError."""
    for path in paths:
        for number, line in enumerate(lines(path), start=1):
            try:
                outline = msgspec.json.decode(line, type=Outline)
            except msgspec.DecodeError as error:
                raise CasesError(f"{path}, line {number}: {error}") from error
            yield _played(path.name, line, outline, checks)


def _played(file: str, line: bytes, outline: Outline, checks: Mapping[str, Check]) -> Result:
    kind = outline.name()
    if kind not in checks:
        return Result(file, outline.id, kind, played=False)
    try:
        failures = list(checks[kind](line))
    except Exception as error:  # a defect in what is checked is a failure of this case alone; the others are still run
        failures = [f"{type(error).__name__}: {error}"]
    return Result(file, outline.id, kind, played=True, failures=failures)


def report(paths: Iterable[Path], echo: Callable[[str], None], checks: Mapping[str, Check] = CHECKS) -> int:
    """Run all cases and report the results. Returns the exit status: 0 if any case was run and all passed. Raises
    CasesError."""
    passed = failed = 0
    skipped: dict[tuple[str, str], int] = {}
    for result in run(paths, checks):
        if not result.played:
            skipped[result.file, result.kind] = skipped.get((result.file, result.kind), 0) + 1
            continue
        failed += bool(result.failures)
        passed += not result.failures
        for failure in result.failures:
            echo(f"{result.file} {result.kind} {result.id}: {failure}")
    for (file, kind), count in skipped.items():
        echo(f"{file}: {count} cases of kind {kind} SKIPPED: nothing here plays them yet")
    echo(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1
