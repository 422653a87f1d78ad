"""The sources of a configuration: files, the environment and flags, later ones over earlier ones.

The way of a key, `admission.classes.bulk.queue_timeout_secs` for example:

    core/yaml_document.py    the text becomes a tree of keys, each with its line
    cli/config_flags.py      a row for each flag that stands for a key; keys of classes have none (`cli/flags.py` makes them)
    config/settings.py       `MAITRED_ADMISSION__CLASSES__BULK__QUEUE_TIMEOUT_SECS` and flags become keys as well
    config/merged.py         the trees are laid over one another, and converted to the structs of the rooms
    admission/config.py      `ClassConfig.__post_init__` checks the range; `class_rules` fills in what is not given
    admission/rules.py       `_lane_rules` turns seconds into microseconds: from here on there are only `Micros`

A mistake anywhere on this way is one ConfigError that names the source, the line and the key (`core/yaml_schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from maitred.config.merged import MergedConfig
from maitred.config.policy_bundle import PolicyBundle
from maitred.config.root import POLICY_KEYS, Config
from maitred.config.settings import environment_settings, flag_settings
from maitred.core.errors import ConfigError
from maitred.core.yaml_document import YamlDocument

NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})


class ConfigSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the configuration comes from. Every call reads the files anew; nothing is kept."""

    file: Path | None = None
    admission_file: Path | None = None
    """The section `admission` in a file of its own, as SMG has it."""
    policy_file: Path | None = None
    """A policy bundle of BLIS."""
    env: Mapping[str, str] = NO_VALUES
    flags: Mapping[str, object] = NO_VALUES
    """Values by dotted key; None for a flag that is not given."""
    flag_names: Mapping[str, str] = NO_VALUES
    """Names of flags that are not called after their key, by dotted key."""
    admission_keys: frozenset[str] | None = None
    """Keys of the section `admission` in the main file that are used; None for all."""

    def load(self) -> Config:
        """Return the configuration of all sources together. Raises ConfigError for the first mistake."""
        return self.merged().build()

    def problems(self) -> Sequence[ConfigError]:
        """Return every mistake. Raises ConfigError if a file cannot be read as YAML."""
        return self.merged().problems()

    def merged(self) -> MergedConfig[Config]:
        """Return the merged values before they are validated. Raises ConfigError if a file cannot be read as YAML."""
        settings = [*environment_settings(Config, self.env), *flag_settings(self.flags, self.flag_names)]
        return MergedConfig(Config, [*self._documents()], settings, POLICY_KEYS)

    def _documents(self) -> Iterator[YamlDocument]:
        if self.file is not None:
            main = YamlDocument.read(self.file)
            yield main if self.admission_keys is None else main.keep_keys("admission", self.admission_keys)
        if self.admission_file is not None:
            yield YamlDocument.read(self.admission_file, section="admission")
        if self.policy_file is not None:
            yield PolicyBundle.read(self.policy_file)


C = TypeVar("C", bound=Config)


def with_simulation_defaults(merged: MergedConfig[C]) -> C:
    """Return the configuration with the admission mode of a simulation, where none is given.

    Without a capacity there is no admission; with one there are classes. Raises ConfigError for the first mistake.
    """
    config = merged.build()
    if merged.is_given("admission", "mode"):
        return config
    mode = "off" if config.cluster.capacity is None else "priority"
    return replace(config, admission=replace(config.admission, mode=mode))
