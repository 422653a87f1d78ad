"""A policy bundle of BLIS, translated to the keys of maitred.

    admission:      policy and its parameters                 admission
    tenant_budgets: shares by tenant                          admission.tenant_budgets
    routing:        policy, scorers                           routing
    scheduler:      a name                                    instance.scheduler
    priority:       policy                                    instance.priority_policy
    preemption:     policy                                    instance.preemption_policy

An empty value in a bundle counts as not given. A key for a part that is not simulated is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from maitred.admission import PolicyConfig
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.yaml_document import KeyPath, YamlDocument

_SECTIONS: Final[Mapping[str, Mapping[str, KeyPath]]] = {
    "admission": {key: ("admission", key) for key in PolicyConfig.__struct_fields__ if key != "tenant_budgets"},
    "routing": {"policy": ("routing", "policy"), "scorers": ("routing", "scorers")},
    "priority": {"policy": ("instance", "priority_policy")},
    "preemption": {"policy": ("instance", "preemption_policy")},
}
_VALUES: Final[Mapping[str, KeyPath]] = {
    "scheduler": ("instance", "scheduler"),
    "tenant_budgets": ("admission", "tenant_budgets"),
}
_NOT_SIMULATED: Final = {
    "node_pools": "instances are there from the beginning to the end",
    "autoscaler": "instances are there from the beginning to the end",
    "instance_lifecycle": "instances are there from the beginning to the end",
    "hw_config_by_gpu": "all instances have the same kind of GPU",
}


class PolicyBundle(YamlDocument):
    """A bundle as a document with the keys of maitred. Raises ConfigError for a document that is no bundle."""

    def __init__(self, text: str, name: str, section: str | None = None) -> None:
        super().__init__(text, name, section)
        self._places: dict[KeyPath, KeyPath] = {}
        """The place in the bundle of each key of maitred."""
        self._tree: dict[str, Any] = {}
        if self.value is not None and not isinstance(self.value, dict):
            raise ConfigError("there should be keys with values", where=name, hint="as in admission: {policy: tier-shed}")
        for key, value in (self.value or {}).items():
            self._translate((key,), value)

    @property
    def tree(self) -> Any:
        """The values under the keys of maitred."""
        return self._tree

    def where(self, path: KeyPath) -> str | None:
        """Return the place in the bundle of a key of maitred, or None if the bundle does not give it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._places:
                return super().where((*self._places[path[:end]], *path[end:]))
        return None

    def _translate(self, at: KeyPath, value: Any) -> None:
        """Add the value of the bundle's key `at` under the name of maitred."""
        key = str(at[0])
        if key in _NOT_SIMULATED:
            raise self._bundle_error(at, f"{key} is not simulated: {_NOT_SIMULATED[key]}", "leave it out")
        if key in _VALUES:
            self._set(_VALUES[key], at, value)
        elif key in _SECTIONS:
            self._translate_section(at, value, _SECTIONS[key])
        else:
            raise self._bundle_error(at, f"unknown key {key!r}", nearest_name_hint(key, [*_SECTIONS, *_VALUES]))

    def _translate_section(self, at: KeyPath, value: Any, keys: Mapping[str, KeyPath]) -> None:
        if value is not None and not isinstance(value, dict):
            raise self._bundle_error(at, f"{at[0]} should have keys with values", nearest_name_hint("", keys))
        for key, below in (value or {}).items():
            if key not in keys:
                raise self._bundle_error((*at, key), f"unknown key '{at[0]}.{key}'", nearest_name_hint(key, keys))
            self._set(keys[key], (*at, key), below)

    def _set(self, ours: KeyPath, at: KeyPath, value: Any) -> None:
        if value in (None, ""):
            return
        self._places[ours] = at
        self._tree.setdefault(str(ours[0]), {})[ours[1]] = value

    def _bundle_error(self, at: KeyPath, what: str, hint: str) -> ConfigError:
        return ConfigError(what, where=super().where(at) or self.name, hint=hint)
