"""The releases of vLLM that the scheduler class is for.

vLLM calls its scheduler interface "not public": a release may rename what the class relies on, and an engine that orders its
queue wrongly, or loses requests, is worse than one that does not start.
"""

from __future__ import annotations

from typing import Final

from maitred.core.errors import ConfigError

SUPPORTED: Final = ("0.32",)
"""The minor releases that `make vllm-test` has been run with."""


def check_version(found: str) -> None:
    """Raise ConfigError unless `found`, as `vllm.__version__` says it, is a release that is supported."""
    if not any(found == release or found.startswith(f"{release}.") for release in SUPPORTED):
        supported = " and ".join(f"{release}.*" for release in SUPPORTED)
        raise ConfigError(f"maitred.plugins.vllm.Scheduler is for vLLM {supported}, and this is vLLM {found}")
