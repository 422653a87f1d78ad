"""What a shell offers for the value of a flag, after `maitred --install-completion`.

Flags that stand for a key with fixed values offer these. Flags that name a plug-in, a model or a GPU offer the names that are
known; a file in their place is left to the shell, which completes files where nothing is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

_REGISTRIES = {
    "--scheduler": "scheduler",
    "--batching": "batch scheduler",
    "--priority-policy": "priority policy",
    "--admission-policy": "admission policy",
    "--routing-policy": "routing policy",
    "--latency-model": "latency model",
    "--radix-eviction-policy": "eviction policy",
    "--acting-estimator": "acting estimator",
}
"""The kind of plug-in that a flag names."""


def offer(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function for typer that offers these values."""
    known = [str(value) for value in values]

    def matching(incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete)]

    return matching


def offered_names(flag: str) -> Callable[[str], list[str]] | None:
    """Return a function for typer that offers the names which a flag takes, or None if it names nothing that is known."""
    if flag not in (*_REGISTRIES, "--model", "--hardware"):
        return None

    def matching(incomplete: str) -> list[str]:
        return offer(_names(flag))(incomplete)

    return matching


def _names(flag: str) -> Iterable[str]:
    """Return the names that a flag takes. What knows them is imported only when a shell asks."""
    from maitred.config.root import KINDS
    from maitred.instance.catalogue import hardware_names, model_names

    if flag == "--model":
        return model_names()
    if flag == "--hardware":
        return hardware_names()
    return next(kind for kind in KINDS if kind.kind == _REGISTRIES[flag])
