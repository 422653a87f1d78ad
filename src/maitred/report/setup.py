"""What was simulated: everything that it takes to do it again."""

from __future__ import annotations

from typing import Any

import msgspec

from maitred.units import Micros


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the workload itself."""

    workload: str = ""
    """In words, such as the name of a trace; empty: nobody said."""
    command: str = ""
    """The command line, if that is where it came from."""
    seed: int
    horizon: Micros | None = None
    sections: dict[str, msgspec.Struct]
    """The configuration by section: cluster, instance, routing, admission."""

    def written(self) -> dict[str, dict[str, tuple[Any, bool]]]:
        """Every key of the sections, with its value as a file would say it and whether it is the default. Keys within keys are
        joined by dots."""
        return {name: dict(_keys(section, type(section))) for name, section in self.sections.items()}


def _keys(section: msgspec.Struct, kind: type[msgspec.Struct]) -> list[tuple[str, tuple[Any, bool]]]:
    usual = dict(_flat(msgspec.to_builtins(kind(), str_keys=True)))
    said = _flat(msgspec.to_builtins(section, str_keys=True))
    return [(name, (value, name in usual and value == usual[name])) for name, value in said]


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [(f"{prefix}{name}", value)]
    return flat
