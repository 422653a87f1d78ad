"""One configuration for all commands, from YAML files, the environment and flags.

Each section is a struct that lives beside the code it configures, with a default for every key. The sources are merged key by
key: defaults < file < admission file < environment < flags. An unknown key is an error.

Reading has no side effects and keeps nothing, so a configuration can be read again at any time. A gateway that serves keeps its
configuration if the next one is invalid, and may start with a part of the first one (`load_or_fall_back`).

    sources.py        ConfigSources: the way of a key from file, environment or flag to its struct
    merged.py         the sources merged key by key, and which source a key is from
    root.py           all sections, the keys of each as users see them, and whether reservations fit the known slots
    shadow_file.py    the file of a shadow: rules that decide beside those in force
    policy_bundle.py  a policy bundle of BLIS, as keys of maitred
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from maitred.config.root import Config
from maitred.config.sources import NO_VALUES, ConfigSources, LoadedConfig, load_or_fall_back

__all__ = ["NO_VALUES", "Config", "ConfigSources", "LoadedConfig", "load", "load_or_fall_back"]


def load(
    path: Path | None,
    *,
    admission_file: Path | None = None,
    flags: Mapping[str, object] = NO_VALUES,
    env: Mapping[str, str] = NO_VALUES,
    flag_names: Mapping[str, str] = NO_VALUES,
) -> Config:
    """Return the configuration of files, environment and flags; the arguments are those of `ConfigSources`.

    Raises ConfigError for the first mistake.
    """
    return ConfigSources(file=path, admission_file=admission_file, env=env, flags=flags, flag_names=flag_names).load()
