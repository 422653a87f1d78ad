"""The flavours of an instance: the engines whose way it follows, each with its queueing, batching and KV memory.

A flavour gives other defaults to keys of the section `instance`, which a file, the environment or a flag may override. It sets
rules, not sizes, so the limits of a batch and the blocks of the memory are the same in all of them, and two flavours compare
like with like.

Example: `flavour: trtllm` stands for

    flavour: trtllm
    batching: guaranteed-no-evict
    enable_prefix_caching: true

and `flavour: trtllm` with `batching: max-utilization` keeps everything of this but the batching.

The code behind a flavour is chosen in `compat/instance_rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec

FlavourName: TypeAlias = Literal["vllm", "sglang", "trtllm", "maitred", "blis"]


class Flavour(msgspec.Struct, frozen=True, kw_only=True):
    """What a flavour says about the keys of an instance."""

    keys: Mapping[str, Any] = MappingProxyType({})
    """Defaults of its own, by key."""
    takes_async_scheduling: bool = False
    takes_vllm_keys: bool = True
    """Whether it takes the keys of `vllm_keys.py` beside the limits of a step."""
    takes_sglang_keys: bool = False
    """Whether SGLang's rules plan its steps, with the keys of the section `sglang`."""
    takes_batching: bool = False
    """Whether a batch scheduler decides its steps, which is then the key `batching`."""
    takes_host_memory: bool = False
    """Whether it has KV blocks in main memory (`kv_cpu_blocks`)."""
    takes_blis_step_times: bool = False
    """Whether step times follow BLIS: with a model `trained-physics` by default, and `roofline` without efficiencies."""
    always_caches_prefixes: bool = False
    """Whether it reuses KV blocks of equal prompts whatever `enable_prefix_caching` says."""


NO_FLAVOUR: Final = Flavour(takes_async_scheduling=True, takes_batching=True)
"""That of an instance without `flavour`: the rules of vLLM, or those of `batching`, and no defaults but those of the keys."""
FLAVOURS: Final[Mapping[FlavourName, Flavour]] = {
    "vllm": Flavour(keys={"enable_prefix_caching": True, "async_scheduling": True}, takes_async_scheduling=True),
    "sglang": Flavour(
        keys={"scheduler": "sglang(fcfs)", "enable_prefix_caching": True, "prefix_cache": "radix"},
        takes_vllm_keys=False,
        takes_sglang_keys=True,
    ),
    "trtllm": Flavour(keys={"batching": "guaranteed-no-evict", "enable_prefix_caching": True}, takes_batching=True),
    "maitred": Flavour(
        keys={"batching": "maitred", "enable_prefix_caching": True}, takes_async_scheduling=True, takes_batching=True
    ),
    "blis": Flavour(takes_host_memory=True, takes_vllm_keys=False, takes_blis_step_times=True, always_caches_prefixes=True),
}


def flavour_keys(name: object) -> Mapping[str, Any]:
    """Return the defaults of the flavour `name`, by key of an instance; empty for a name that is unknown, or None."""
    flavour = next((flavour for known, flavour in FLAVOURS.items() if known == name), NO_FLAVOUR)
    return flavour.keys
