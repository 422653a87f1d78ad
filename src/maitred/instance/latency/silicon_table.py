"""SiliconTable: the step times of a deployment, made of measured kernels, which the latency model `aiconfigurator` looks up."""

from __future__ import annotations

import msgspec

from maitred.instance.latency.step_table import Curve, Grid, check_increasing, check_times


class SiliconTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, cache_hash=True):
    """The times (µs) of the parts of a step of one rank. Raises ValueError for tables that cannot be."""

    shared: Curve
    """A step with prompts, by its tokens: everything that is not in the two grids of such a step."""
    prompts: Grid
    """What the chunks of prompts add to that, mainly attention, by chunks, tokens of each, and tokens before each; below 0
    where `shared` holds the attention of one prompt with all of these tokens."""
    decode: Grid
    """A whole step without prompts, by sequences and context of each."""
    beside: Grid
    """Attention of the sequences that decode in a step with prompts, by sequences and context of each."""
    ranks: int = 1
    """Batches that run at the same time: ranks of data parallelism, times stages of the pipeline."""
    source: str = ""
    """The measurements: package, system and engine, each with its version."""

    def __post_init__(self) -> None:
        check_increasing([x for x, _ in self.shared], "a curve")
        check_times([us for _, us in self.shared])
        check_times((*self.decode.us, *self.beside.us))
        if self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, not {self.ranks}")
        for name, axes in (("prompts", 3), ("decode", 2), ("beside", 2)):
            if len(getattr(self, name).axes) != axes:
                raise ValueError(f"{name} has {axes} axes, not {len(getattr(self, name).axes)}")
