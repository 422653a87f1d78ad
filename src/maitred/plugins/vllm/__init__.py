"""maitred's queue policies inside vLLM: `vllm serve MODEL --scheduler-cls maitred.plugins.vllm.Scheduler`.

vLLM keeps its own rules for what runs: budgets, chunks, blocks, victims. Only the order of its waiting queue is decided here,
by the same policies as in an instance of the simulator, with vLLM's block pool as their prefix cache.

    scheduler             vLLM's Scheduler with three calls around it; the only module that imports vLLM
    policy_queue          vLLM's `RequestQueue` over a `WaitQueue`, and what policies are told of the work done
    engine_request        the fields of vLLM's requests, and the `Request` that policies see
    block_pool_view       vLLM's block pool as a `PrefixCacheView`
    config                `--additional-config`, the environment
    step_log              the record of the steps that vLLM made (`record_steps`)
    step_replay, __main__ the same steps from the simulator: `python -m maitred.plugins.vllm steps.jsonl`

Without vLLM, `Scheduler` raises an error that says so, and all else works. vLLM calls its scheduler interface "not public": a
release may rename what the class relies on, and an engine that orders its queue wrongly, or loses requests, is worse than one
that does not start. So it starts with the releases in `SUPPORTED` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.plugins.vllm.scheduler import Scheduler

__all__ = ["Scheduler"]

SUPPORTED: Final = ("0.32", "0.33")
"""The minor releases for which the class is made. `make vllm-test` runs the class in 0.32. Of 0.33 there is no CPU build, so
`tools/vllm/check_interface.py` compares what it calls and offers with the class."""


def release_of(version: str) -> str:
    """Return the minor release of a version: 0.32 for 0.32.0+cpu."""
    return ".".join(version.split(".")[:2])


def check_version(found: str) -> None:
    """Raise ConfigError unless `found`, as `vllm.__version__` says it, is a release that is supported."""
    if release_of(found) not in SUPPORTED:
        supported = " and ".join(f"{release}.*" for release in SUPPORTED)
        raise ConfigError(f"maitred.plugins.vllm.Scheduler is for vLLM {supported}, and this is vLLM {found}")


def __getattr__(name: str) -> Any:
    """Import `Scheduler` when it is asked for. Raises ConfigError without vLLM, and for a release that is not supported."""
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        engine = import_module("vllm")
    except ModuleNotFoundError as error:
        raise ConfigError("vLLM is not installed here", hint="maitred.plugins.vllm.Scheduler runs inside vLLM") from error
    check_version(engine.__version__)
    return import_module("maitred.plugins.vllm.scheduler").Scheduler
