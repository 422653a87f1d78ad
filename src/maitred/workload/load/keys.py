"""The keys of a load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import msgspec

from maitred.errors import ConfigError
from maitred.workload.load.naming import Naming, as_key, usage
from maitred.workload.spec import Workload

if TYPE_CHECKING:
    from maitred.workload.job import Job

OF_TRACES: Final = ("trace_header", "max_requests", "skip_bad_rows", "session_mode", "concurrent_sessions")
"""What only a trace takes."""
NOT_OF_TRACES: Final = (
    "rate",
    "num_requests",
    "input_tokens",
    "output_tokens",
    "prefix_tokens",
    "workload_spec",
    "workload",
    "concurrency",
    "arrival",
    "prompt_tokens_stdev",
    "prompt_tokens_min",
    "prompt_tokens_max",
    "output_tokens_stdev",
    "output_tokens_min",
    "output_tokens_max",
)
"""What a trace says itself."""


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded trace, a specification, requests at a rate, or users who wait. What is None is not said.

    `jobs(seed)` begins it; the same seed makes the same requests again.
    """

    trace: str | None = None
    """`FILE`, `FORMAT:FILE` or `sample:NAME`."""
    trace_header: str | None = None
    """The header of a `blis` trace, if it does not stand beside it."""
    max_requests: int | None = None
    skip_bad_rows: bool | None = None
    session_mode: str | None = None
    """`open` (as recorded, the default), `closed-loop`."""
    concurrent_sessions: int | None = None

    workload_spec: str | Workload | None = None
    """The path of a specification, or the specification itself."""

    rate: float | None = None
    """Requests per second."""
    concurrency: int | None = None
    """Users, in place of a rate."""
    num_requests: int | None = None
    arrival: str | None = None
    workload: str | None = None
    """Lengths by kind, such as `chatbot`."""
    input_tokens: str | int | None = None
    output_tokens: str | int | None = None
    prefix_tokens: int | None = None
    """With which all prompts begin; beside `input_tokens`."""
    prompt_tokens_stdev: float | None = None
    prompt_tokens_min: int | None = None
    prompt_tokens_max: int | None = None
    output_tokens_stdev: float | None = None
    output_tokens_min: int | None = None
    output_tokens_max: int | None = None

    think_time_ms: float | None = None
    timeout_secs: float | None = None
    """After which clients leave, instead of when the load says; 0: never."""
    class_mix: str | None = None
    tenant_mix: str | None = None
    rate_scale: float | None = None
    time_scale: float | None = None

    @contextmanager
    def jobs(self, seed: int | None = None) -> Iterator[Iterable[Job]]:
        """Its requests, while the block lasts. None: the seed of the specification, else 42.

        Raises ConfigError for what cannot be, and while they are read for rows of a trace that cannot be used.
        """
        from maitred.workload.load import jobs_of, opened, specification

        workload = specification(self, as_key)
        with opened(self, as_key) if self.trace is not None else nullcontext() as trace:
            yield jobs_of(self, seed, trace, workload, as_key)

    def forbid(self, given: str, others: Iterable[str], call: Naming) -> None:
        """Raises ConfigError if one of `others` is said beside `given`."""
        for name in others:
            if getattr(self, name) is not None:
                raise ConfigError(f"{call(name)} does not go with {call(given)}", hint=usage(call))

    def rate_factor(self, call: Naming) -> float:
        """1 if nothing is said of a `rate_scale`. Raises ConfigError for a factor that cannot be one."""
        from maitred.workload.scaled import checked_scale

        return 1.0 if self.rate_scale is None else checked_scale(self.rate_scale, call("rate_scale"))
