"""Run the recorded histories of the new-token ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from maitred.compat.sglang.new_token_ratio import NewTokenRatio


class Expected(msgspec.Struct):
    init: float
    min: float
    decay: float
    current: Sequence[float]
    """After each operation."""


class Case(msgspec.Struct):
    schedule_conservativeness: float
    ops: Sequence[Sequence[Any]]
    expected: Expected


def run_case(raw: bytes) -> Iterator[str]:
    """Yield the differences from what was recorded, one line each."""
    case = msgspec.json.decode(raw, type=Case)
    ratio, expected = NewTokenRatio(case.schedule_conservativeness), case.expected
    for name, got in (("init", ratio.initial), ("min", ratio.minimum), ("decay", ratio.decay)):
        if got != getattr(expected, name):
            yield f"{name}: {getattr(expected, name)} expected, {got} came"
    for number, (op, wanted) in enumerate(zip(case.ops, expected.current, strict=True)):
        match op:
            case ["decay", steps]:
                ratio.on_decode_steps(steps)
            case ["retract", survivors]:
                ratio.on_retraction(survivors)
            case ["reset"]:
                ratio.reset()
            case _:
                yield f"op {number}: unknown: {op}"
        if ratio.value != wanted:
            yield f"op {number} {op[0]}: {wanted} expected, {ratio.value} came"
