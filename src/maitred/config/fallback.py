"""What a gateway serves with when its configuration is invalid: the rest, without the invalid part.

The section `admission` is set aside first, in every source; if that does not help, the whole main file. Admission is then the
legacy one, with the keys of `admission.legacy` if they are valid: requests flow without classes, and the operator is told. API
keys are never set aside: a file that may contain them is not replaced by a gateway that is open to all.
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
"""The sets of keys of the section `admission` that are tried, the largest first: as much as possible stays in force."""
_API_KEY_MARKER: Final = "api_key"
"""Part of the name of every key that holds API keys."""


class LoadedConfig(msgspec.Struct, frozen=True):
    """The configuration in force."""

    config: Config
    problem: ConfigError | None = None
    """Why a part was set aside, or None if everything is in force."""


def load_or_fall_back(sources: ConfigSources) -> LoadedConfig:
    """Return the whole configuration, or what is left if it is invalid.

    Raises the ConfigError of the whole if nothing usable is left.
    """
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
    if config.gateway.api_key or config.gateway.tenant_api_keys or sources.file is None or reduced.file is not None:
        return False
    return _may_contain_api_keys(sources.file)


def _may_contain_api_keys(file: Path) -> bool:
    """Return whether the file mentions API keys, or cannot be read."""
    try:
        return _API_KEY_MARKER in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
