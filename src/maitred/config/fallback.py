"""A configuration that is wrong must not keep a gateway from serving: what is left of it when the wrong part is set aside.

Set aside is the section `admission`, wherever it is said, and if that does not help the whole main file. The admission that is
left is the legacy one, with what is said of `admission.legacy` where that is right: requests flow, without classes, and the
operator is told. A lock is never set aside: a file that may hold API keys is not replaced by a gateway that is open to all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from maitred.config.root import Config
from maitred.config.settings import PREFIX
from maitred.config.sources import ConfigSources
from maitred.core.errors import ConfigError

_ADMISSION_KEYS_KEPT: Final = (frozenset({"legacy"}), frozenset[str]())
"""Keys of the section that are tried; the more the better."""
_API_KEY_MARKER: Final = "api_key"
"""In the name of every key of the configuration that holds API keys."""


class LoadedConfig(msgspec.Struct, frozen=True):
    """What is in force, and why it is less than was said (None: it is all)."""

    config: Config
    problem: ConfigError | None = None


def load_or_fall_back(said: ConfigSources) -> LoadedConfig:
    """All that was said; if that is wrong, what is left of it. Raises the ConfigError of the whole if nothing usable is."""
    try:
        return LoadedConfig(said.load())
    except ConfigError as error:
        problem = error
    for less in _reduced_sources(said):
        with suppress(ConfigError):
            config = less.load()
            if config.gateway.backends and not _drops_api_keys(said, less, config):
                return LoadedConfig(config, problem)
    raise problem


def _reduced_sources(said: ConfigSources) -> Iterator[ConfigSources]:
    for keys in _ADMISSION_KEYS_KEPT:
        yield _limit_admission_keys(said, keys)
    if said.file is not None:
        for keys in _ADMISSION_KEYS_KEPT:
            yield msgspec.structs.replace(_limit_admission_keys(said, keys), file=None)


def _limit_admission_keys(said: ConfigSources, keys: Collection[str]) -> ConfigSources:
    """What was said, with no more than these keys of the section `admission`."""

    def counts(dotted: str) -> bool:
        section, _, below = dotted.partition(".")
        return section != "admission" or below.partition(".")[0] in keys

    return msgspec.structs.replace(
        said,
        admission_file=None,
        admission_keys=frozenset(keys),
        env={name: said.env[name] for name in said.env if counts(name.removeprefix(PREFIX).lower().replace("__", "."))},
        flags={key: said.flags[key] for key in said.flags if counts(key)},
    )


def _drops_api_keys(said: ConfigSources, less: ConfigSources, config: Config) -> bool:
    """Whether the gateway would be open to all, and perhaps was not meant to be."""
    if config.gateway.api_key or config.gateway.tenant_api_keys or said.file is None or less.file is not None:
        return False
    return _may_contain_api_keys(said.file)


def _may_contain_api_keys(file: Path) -> bool:
    try:
        return _API_KEY_MARKER in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
