"""Rules: points of a space as configurations, and the file that is written of one.

What holds today is what the decision log says was in force, and not what a file says. So a configuration of a point is that,
with the values of the point; a file (`--config`) adds the keys that no search varies, such as backends and keys of tenants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from maitred.config import Config
from maitred.core.request import PriorityClass
from maitred.core.yaml_document import YamlDocument
from maitred.core.yaml_schema import document_to_struct, first_problem
from maitred.files import InputFile
from maitred.study.candidate import Candidate
from maitred.study.tune.space import SLOTS, Point, set_key, settings_of
from maitred.study.what_if.world import ReplayWorld

_CLASSES: Final = "admission.classes."
_ENGINE: Final = "instance."
_SECTIONS: Final = ("admission", "routing", "programs")


class Rules:
    """Today's rules, and others."""

    def __init__(self, world: ReplayWorld, config: Path | None) -> None:
        """Raises ConfigError for a `config` that is none."""
        self.world = world
        in_force = world.recorded.rules
        self._others = {} if config is None else _other_sections(config)
        self._in_force = {name: given for name in _SECTIONS if (given := _differing(getattr(in_force, name)))}
        self._slots = max(1, (max(in_force.slots.values(), default=0) or self._at_once) // world.engines.num_instances)

    @property
    def _at_once(self) -> int:
        return self.world.engines.instance.max_num_seqs * self.world.engines.num_instances

    @property
    def today(self) -> Candidate:
        """What was in force."""
        return self.world.in_force

    @property
    def mode(self) -> str:
        """The mode of admission."""
        return self.world.recorded.rules.admission.mode

    @property
    def has_programs(self) -> bool:
        return self.world.recorded.rules.programs.mode != "off"

    @property
    def classes(self) -> Sequence[PriorityClass]:
        """The classes that requests had."""
        return [PriorityClass(each) for each in {request.given for request in self.world.recorded.requests}]

    def settings(self, point: Point) -> dict[str, Any]:
        """Return the values of a point by single key."""
        found = settings_of(point, self._slots)
        if self.mode in ("off", "legacy") and any(key == SLOTS or key.startswith(_CLASSES) for key in found):
            return {"admission.mode": "priority", **found}  # These keys mean nothing without classes.
        return found

    def candidate(self, point: Point) -> Candidate:
        """Return the candidate to simulate for a point. Raises ConfigError if no configuration may be so."""
        # More slots than an engine was seen to fill do not make it run more at once: what is beyond waits in it.
        instance = {"max_num_seqs": self.today.instance.max_num_seqs}
        instance |= {key.removeprefix(_ENGINE): value for key, value in self.settings(point).items() if key.startswith(_ENGINE)}
        tree = self._with(point, self._others)
        if SLOTS not in self.settings(point):  # Those that were in force, which may have been learned.
            tree.get("gateway", {}).pop("slots_per_backend", None)
        if problem := first_problem(tree, Config, lambda _: ""):
            raise problem.error
        return self.world.candidate(msgspec.convert(tree, Config), instance)

    def text(self, point: Point) -> str:
        """Return the rules of a point as YAML, without what a file has beside them: backends, keys, passwords."""
        return _as_yaml(self._with(point, {}))

    def _with(self, point: Point, others: Mapping[str, Any]) -> dict[str, Any]:
        tree = {"gateway": {}, **deepcopy({**others, **self._in_force})}
        for key, value in self.settings(point).items():
            set_key(tree, key, value)
        return {name: section for name, section in tree.items() if section}


def with_other_keys(rules: str, config: Path) -> str:
    """Return the rules of a point (`Rules.text`) with the keys that `config` has beside them, as YAML."""
    tree = _other_sections(config)
    for name, section in yaml.safe_load(rules).items():
        tree[name] = {**tree.get(name, {}), **section}
    return _as_yaml(tree)


def _other_sections(config: Path) -> dict[str, Any]:
    """Return the sections of a file other than the rules. Raises ConfigError for a file that is no configuration."""
    document = YamlDocument.read(InputFile(config))
    document_to_struct(document, Config)
    return {name: section for name, section in (document.value or {}).items() if name not in _SECTIONS}


def _as_yaml(tree: Mapping[str, Any]) -> str:
    dumped: str = yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=120)
    return dumped


def _differing(section: msgspec.Struct) -> dict[str, Any]:
    """Return the keys of a section of a configuration that differ from their defaults."""
    given: Mapping[str, Any] = msgspec.to_builtins(section, enc_hook=str)
    usual: Mapping[str, Any] = msgspec.to_builtins(type(section)(), enc_hook=str)
    found = _difference(given, usual)
    return found if msgspec.convert(found, type(section)) == section else dict(given)


def _difference(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in given.items():
        before = usual.get(key)
        if value == before:
            continue
        found[key] = _difference(value, before or {}) if isinstance(value, dict) else value
    return found
