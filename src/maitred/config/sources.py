"""The sources of a configuration: files, the environment and flags, later ones over earlier ones.

The way of a key, `admission.classes.bulk.queue_timeout_secs` for example:

    core/yaml_document.py       the text becomes a tree of keys, each with its line
    cli/config_flags.py         a row for each flag that stands for a key; those of gateways are in `cli/gateway_flags.py`
                                (`cli/flags.py` makes flags of the rows); keys of classes, like this one, have no flag
    config/merged.py            `MAITRED_ADMISSION__CLASSES__BULK__QUEUE_TIMEOUT_SECS` and flags become keys as well; the trees
                                are laid over one another, and converted to the structs of the rooms
    admission/terms/config.py   `ClassConfig.__post_init__` checks the range; `class_rules` fills in what is not given
    admission/terms/rules.py    `_lane_rules` turns seconds into microseconds: from here on there are only `Micros`

A mistake anywhere on this way is one ConfigError that names the source, the line and the key (`core/yaml_schema.py`).

A gateway with an invalid configuration serves with the rest, without the invalid part (`load_or_fall_back`). The section
`admission` is set aside first, in every source; if that does not help, the whole main file. Admission is then the legacy one,
with the keys of `admission.legacy` if they are valid: requests flow without classes, and the operator is told. API keys are
never set aside: a file that may contain them is not replaced by a gateway that is open to all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from maitred.config.merged import MergedConfig, environment_settings, flag_settings
from maitred.config.policy_bundle import PolicyBundle
from maitred.config.root import POLICY_KEYS, Config
from maitred.core.environment import PREFIX
from maitred.core.errors import ConfigError
from maitred.core.yaml_document import ReadableFile, YamlDocument
from maitred.files import InputFiles
from maitred.instance.flavours import flavour_keys

NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})
_ADMISSION_KEYS_KEPT: Final = (frozenset({"legacy"}), frozenset[str]())
"""The sets of keys of the section `admission` that are tried, the largest first: as much as possible stays in force."""
_KEYS_MARKERS: Final = (b"api_key", b"keys_file", b"jwt")
"""Parts of the names of all keys of a configuration that hold the keys of clients, or say where these are."""


class ConfigSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the configuration comes from. Every call reads the files anew, except for what has come through a stream."""

    file: Path | None = None
    admission_file: Path | None = None
    """The section `admission` in a file of its own, as SMG has it."""
    policy_file: Path | None = None
    """A policy bundle of BLIS."""
    env: Mapping[str, str] = NO_VALUES
    flags: Mapping[str, object] = NO_VALUES
    """Values by dotted key, or None for a flag that is not given."""
    flag_names: Mapping[str, str] = NO_VALUES
    """Names of flags that are not called after their key, by dotted key."""
    admission_keys: frozenset[str] | None = None
    """Keys of the section `admission` in the main file that are used, or None for all."""
    files: InputFiles = msgspec.field(default_factory=InputFiles)
    """What reads the files."""

    def load(self) -> Config:
        """Return the configuration of all sources together. Raises ConfigError for the first mistake."""
        return self.merged().build()

    def problems(self) -> Sequence[ConfigError]:
        """Return every mistake. Raises ConfigError if a file cannot be read as YAML."""
        return self.merged().problems()

    def flag_problems(self) -> Sequence[ConfigError]:
        """Return every mistake that the flags have made: those in their values, and those that are not there without flags."""
        try:
            problems, without = self.problems(), replace(self, flags=NO_VALUES).problems()
        except ConfigError:  # A file cannot be read, so only the flags by themselves can be wrong.
            problems, without = replace(self, file=None, admission_file=None, policy_file=None).problems(), []
            return [problem for problem in problems if problem.where.startswith("--")]
        known = {str(problem) for problem in without}
        return [problem for problem in problems if problem.where.startswith("--") or str(problem) not in known]

    def merged(self) -> MergedConfig[Config]:
        """Return the merged values before they are validated. Raises ConfigError if a file cannot be read as YAML."""
        settings = [*environment_settings(Config, self.env), *flag_settings(self.flags, self.flag_names)]
        return MergedConfig(Config, [*self._documents()], settings, POLICY_KEYS, flavour_defaults)

    def _documents(self) -> Iterator[YamlDocument]:
        if self.file is not None:
            main = YamlDocument.read(self.files.at(self.file))
            yield main if self.admission_keys is None else main.keep_keys("admission", self.admission_keys)
        if self.admission_file is not None:
            yield YamlDocument.read(self.files.at(self.admission_file), section="admission")
        if self.policy_file is not None:
            yield PolicyBundle.read(self.files.at(self.policy_file))


def flavour_defaults(tree: Any) -> Any:
    """Return the defaults of the flavour of the instance that `tree`, the values given, asks for."""
    instance = tree.get("instance") if isinstance(tree, dict) else None
    keys = flavour_keys(instance.get("flavour")) if isinstance(instance, dict) else {}
    return {"instance": dict(keys)} if keys else {}


C = TypeVar("C", bound=Config)


def with_simulation_defaults(merged: MergedConfig[C]) -> C:
    """Return the configuration with the admission mode of a simulation, where none is given.

    Without a capacity or learned slots there is no admission; with either there are classes. Raises ConfigError for the first
    mistake.
    """
    config = merged.build()
    if merged.is_given("admission", "mode"):
        return config
    mode = "priority" if config.cluster.limits_slots else "off"
    return replace(config, admission=replace(config.admission, mode=mode))


class LoadedConfig(msgspec.Struct, frozen=True):
    """The configuration in force."""

    config: Config
    problem: ConfigError | None = None
    """Why a part was set aside, or None if everything is in force."""


def load_or_fall_back(sources: ConfigSources) -> LoadedConfig:
    """Return the whole configuration, or what is left if it is invalid. Raises the ConfigError of the whole if nothing usable
    is left."""
    try:
        return LoadedConfig(sources.load())
    except ConfigError as error:
        problem = error
    for reduced in _reduced_sources(sources):
        with suppress(ConfigError):
            config = reduced.load()
            if config.gateway.backends and not _drops_api_keys(sources, reduced, config):
                return LoadedConfig(config, problem)
    raise problem


def _reduced_sources(sources: ConfigSources) -> Iterator[ConfigSources]:
    """Yield the sources without their admission, and then without the main file, too."""
    for keys in _ADMISSION_KEYS_KEPT:
        yield _limit_admission_keys(sources, keys)
    if sources.file is not None:
        for keys in _ADMISSION_KEYS_KEPT:
            yield msgspec.structs.replace(_limit_admission_keys(sources, keys), file=None)


def _limit_admission_keys(sources: ConfigSources, keys: Collection[str]) -> ConfigSources:
    """Return `sources` without the keys of the section `admission`, except `keys`."""

    def is_kept(dotted: str) -> bool:
        section, _, below = dotted.partition(".")
        return section != "admission" or below.partition(".")[0] in keys

    return msgspec.structs.replace(
        sources,
        admission_file=None,
        admission_keys=frozenset(keys),
        env={name: sources.env[name] for name in sources.env if is_kept(name.removeprefix(PREFIX).lower().replace("__", "."))},
        flags={key: sources.flags[key] for key in sources.flags if is_kept(key)},
    )


def _drops_api_keys(sources: ConfigSources, reduced: ConfigSources, config: Config) -> bool:
    """Return whether the gateway would be open to all although the file that is set aside may contain API keys."""
    if config.gateway.has_keys or sources.file is None or reduced.file is not None:
        return False
    return _may_contain_api_keys(sources.files.at(sources.file))


def _may_contain_api_keys(file: ReadableFile) -> bool:
    """Return whether the file mentions API keys, or cannot be read."""
    try:
        content = file.read_bytes()
    except OSError:
        return True
    return any(marker in content for marker in _KEYS_MARKERS)
