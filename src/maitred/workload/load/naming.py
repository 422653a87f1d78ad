"""How the keys of a load are spelled where they are said: as flags, or as keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Naming: TypeAlias = Callable[[str], str]
"""From a key to what the user calls it."""


def as_flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def as_key(key: str) -> str:
    return key


def usage(call: Naming) -> str:
    """What is to be said, at least."""
    of_traces, of_specs = f"{call('trace')} FORMAT:FILE", f"{call('workload_spec')} FILE"
    return f"give {of_traces}, {of_specs}, or {call('rate')} RATE (or {call('concurrency')} N) and {call('num_requests')} N"
