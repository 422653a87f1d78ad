"""The space of a search: keys of a configuration, and the values that each may have beside today's.

A space is data, a mapping from keys to values, and a user may give another (`--space FILE`), or parts of it (`--vary KEY`,
`--vary KEY=VALUE,VALUE`). Keys that only mean something together are one entry: `routing.policy, routing.scorers` with a list
of two values for each choice. A value `x0.5` is a half of what a backend has today; other values are those of the key.

The default space depends on what there is to vary: classes that requests have, more than one engine, programs that are
scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from maitred.config import Config
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass
from maitred.core.yaml_document import YamlDocument
from maitred.core.yaml_schema import dotted_key, first_problem, type_at
from maitred.files import InputFile
from maitred.study.sweep.spec import coupled_keys, uncoupled

Space: TypeAlias = Mapping[str, Sequence[Any]]
Point: TypeAlias = Mapping[str, Any]
"""A choice for some entries of a space; of the others, what holds today."""

SLOTS: Final = "gateway.slots_per_backend"
_MOST_SLOTS: Final = 1000.0
"""In times of today's."""
_OF_CLASSES: Final[Space] = {
    "reserved_per_slot": (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7),
    "queue_size": (0, 8, 32, 128, 512, 2048),
    "queue_timeout_secs": (1, 3, 10, 30, 120),
    "starvation_threshold_secs": (1, 3, 10, 30, 120, 600),
    "can_preempt": (False, True),
}
_OF_ALL: Final[Space] = {
    "admission.on_preempt": ("reject", "retry"),
    "admission.reserve": ("fixed", "adaptive"),
    "admission.promotion_share": (0.02, 0.1, 0.25, 0.5),
    SLOTS: ("x0.25", "x0.5", "x0.75", "x0.9", "x1.25", "x1.5", "x2"),
}
_OF_FLEETS: Final[Space] = {
    "routing.policy, routing.scorers": (
        ("least-loaded", ""),
        ("round-robin", ""),
        ("power-of-two", ""),
        ("weighted", "queue-depth:1"),
        ("weighted", "queue-depth:2,kv-utilization:1"),
        ("weighted", "precise-prefix-cache:2,queue-depth:1"),
        ("weighted", "precise-prefix-cache:1,queue-depth:2"),
    ),
}
_OF_FLOW_CONTROL: Final[Space] = {
    "admission.flow_control.max_concurrency": (8, 16, 32, 64, 128, 256),
    "admission.flow_control.queue_depth_threshold": (1, 2, 5, 10, 20),
    "admission.flow_control.kv_cache_util_threshold": (0.6, 0.7, 0.8, 0.9, 0.95),
}
_OF_PROGRAMS: Final[Space] = {
    "programs.headroom": (0.0, 0.05, 0.1, 0.2),
    "programs.min_stay_secs": (0, 2, 5, 15),
    "programs.patience_secs": (2, 5, 10, 30),
}
_ROOMS: Final = ("admission", "routing", "programs", "instance")


def default_space(
    classes: Sequence[PriorityClass], *, mode: str, num_engines: int, has_programs: bool
) -> dict[str, Sequence[Any]]:
    """Return the keys to vary, and their values, for a gateway with these classes under a `mode` of admission."""
    space: dict[str, Sequence[Any]] = {}
    if mode == "flow-control":
        space |= _OF_FLOW_CONTROL
    else:
        if mode != "priority":
            space["admission.mode"] = ("priority",)
        lowest = min(classes)
        for c in sorted(classes, reverse=True):
            for key, values in _OF_CLASSES.items():
                if c is not lowest or key not in ("reserved_per_slot", "can_preempt"):
                    space[f"admission.classes.{c.label}.{key}"] = values
        for c in sorted({*PriorityClass} - {*classes}, reverse=True):  # What is kept for a class that has no requests is idle.
            if c > lowest:
                space[f"admission.classes.{c.label}.reserved_per_slot"] = (0.0,)
        space |= _OF_ALL
    if num_engines > 1:
        space |= _OF_FLEETS
    if has_programs:
        space |= _OF_PROGRAMS
    return space


def read_space(path: Path) -> dict[str, Sequence[Any]]:
    """Return the space of a file: a mapping from keys to lists of values. Raises ConfigError for anything else."""
    document = YamlDocument.read(InputFile(path))
    if not isinstance(document.value, dict) or not document.value:
        hint = "admission.classes.interactive.reserved_per_slot: [0, 0.1, 0.2]"
        raise ConfigError("a space has keys, each with a list of values", where=str(path), hint=hint)
    for key, values in document.value.items():
        check_entry(str(key), values, document.where((key,)) or str(path))
    return dict(document.value)


def vary(space: Space, wanted: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return the part of a space that `wanted` names: keys, the beginnings of keys, or keys with values of their own. Raises
    ConfigError for a key that there is not."""
    found: dict[str, Sequence[Any]] = {}
    for text in wanted:
        key, has_values, values = text.partition("=")
        key = key.strip()
        if has_values:
            choices = [_value(each) for each in values.split(",") if each.strip()]
            check_entry(key, choices, "--vary")
            found[key] = choices
            continue
        named = {name: choices for name, choices in space.items() if _begins(name, key)}
        if not named:
            hint = nearest_name_hint(key, space) or f"with values: {key}=1,2,3"
            raise ConfigError(f"nothing is varied that begins with {key!r}", where="--vary", hint=hint)
        found |= named
    return found


def _value(text: str) -> Any:
    try:
        return msgspec.yaml.decode(text)
    except msgspec.DecodeError:
        raise ConfigError(
            f"{text.strip()!r} is no value", where="--vary", hint="KEY=VALUE,VALUE; lists go in --space"
        ) from None


def _begins(name: str, beginning: str) -> bool:
    return any(key == beginning or key.startswith(f"{beginning}.") for key in coupled_keys(name))


def check_entry(key: str, values: Any, where: str) -> None:
    """Raise ConfigError unless a key is one that a replay goes by, and has values."""
    keys = coupled_keys(key)
    for each in keys:
        if type_at(Config, tuple(each.split("."))) is None or (each.split(".")[0] not in _ROOMS and each != SLOTS):
            hint = f"{SLOTS}, or a key of {', '.join(_ROOMS)}"
            raise ConfigError(f"{each!r} is no key that can be varied", where=where, hint=hint)
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{key}: there should be a list of values", where=where, hint=f"{key}: [1, 2]")
    if len(keys) > 1 and not all(isinstance(each, list) and len(each) == len(keys) for each in values):
        raise ConfigError(f"{key}: each choice is a list of {len(keys)} values", where=where)
    for choice in values:
        _check_choice(uncoupled({key: choice}), where)


def _check_choice(settings: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a value that its key can never have."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        if key == SLOTS and isinstance(value, str):
            _share_of_slots(value, where)
        else:
            set_key(tree, key, value)
    problem = first_problem(tree, Config, lambda _: where)
    # What another key must allow may be among today's rules, or varied as well.
    if problem is not None and dotted_key(problem.path) in settings:
        raise problem.error


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a tree of sections."""
    *above, last = key.split(".")
    for step in above:
        if not isinstance(tree.get(step), dict):
            tree[step] = {}
        tree = tree[step]
    tree[last] = value


def settings_of(point: Point, slots: int) -> dict[str, Any]:
    """Return the values of a point by single key; a backend has `slots` today."""
    return {key: _resolved(value, slots) if key == SLOTS else value for key, value in uncoupled(point).items()}


def _resolved(value: Any, slots: int) -> Any:
    return max(1, round(_share_of_slots(value, SLOTS) * slots)) if isinstance(value, str) else value


def _share_of_slots(text: str, where: str) -> float:
    """Return the number in `x0.5`. Raises ConfigError."""
    try:
        share = float(text.removeprefix("x")) if text.startswith("x") else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share <= _MOST_SLOTS:
        hint = "16, or x0.5 for a half of today's"
        raise ConfigError(f"{text!r} is no number of slots", where=where, hint=hint)
    return share
