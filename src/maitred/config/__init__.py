"""One configuration for everything: YAML files, flags and the environment, composed from the structs of rooms and worlds.

Each section is a struct that lives beside the code it configures, with a default for every key. What is said in several
places is merged key by key: defaults < file < admission file < environment < flags. Nothing is ignored: an unknown key is an
error.

Reading has no side effects and keeps nothing, so a configuration may be read again at any time; who serves traffic keeps
the one it has when the next one is wrong, and may begin with less than was said (see `fallback`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from maitred.config.fallback import LoadedConfig, load_or_fall_back
from maitred.config.root import Config
from maitred.config.sources import NO_VALUES, ConfigSources
from maitred.core.errors import ConfigError

__all__ = ["NO_VALUES", "Config", "ConfigSources", "LoadedConfig", "load", "load_or_fall_back", "problems"]


def load(
    path: Path | None,
    *,
    admission_file: Path | None = None,
    flags: Mapping[str, object] = NO_VALUES,
    env: Mapping[str, str] = NO_VALUES,
    flag_names: Mapping[str, str] = NO_VALUES,
) -> Config:
    """What files, environment and flags say together; the arguments are those of `Said`.

    Raises ConfigError for the first thing that is wrong.
    """
    return ConfigSources(file=path, admission_file=admission_file, env=env, flags=flags, flag_names=flag_names).load()


def problems(path: Path, *, admission_file: Path | None = None, env: Mapping[str, str] = NO_VALUES) -> Sequence[ConfigError]:
    """Everything that is wrong with the files and the environment. Raises ConfigError if a file cannot be read as YAML."""
    return ConfigSources(file=path, admission_file=admission_file, env=env).problems()
