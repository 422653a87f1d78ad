"""Which sizes of blocks a router asks prompts for: what another process must compute of a prompt for it.

A router of its own is asked to place a prompt that notes what it is asked. One that looks at other sizes later, or only at
requests of some kind, does not tell them here, and knows nothing of prompts in those sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.core.request import Request
from maitred.routing.config import RoutingConfig
from maitred.routing.core import open_router
from maitred.routing.inputs import SeenInstance


class _NotedSizes:
    """A prompt of which nothing is known, and which notes the sizes of blocks that it is asked for."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def block_keys(self, block_size: int) -> Sequence[int]:
        self.asked.add(block_size)
        return ()


def asked_block_sizes(config: RoutingConfig) -> tuple[int, ...]:
    """Return the sizes of blocks, in tokens, for which the router of `config` asks prompts. Raises ConfigError for an unknown
    policy."""
    prompt = _NotedSizes()
    fleet = [SeenInstance(index, waiting=0, running=0, kv_usage=0.0, kv_tokens=1_000_000) for index in range(2)]
    open_router(config, 0).choose(Request(id=0, arrival=0, prompt_tokens=0, prefix=prompt), fleet, 0)
    return tuple(sorted(prompt.asked))
