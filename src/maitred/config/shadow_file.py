"""The file of a shadow (`gateway.shadow`): a configuration like any other, of which `admission`, `routing` and `programs`
count.

It stands by itself: flags and `MAITRED_` variables are of what is in force, and change nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from maitred.config.root import Config
from maitred.config.sources import ConfigSources
from maitred.core.errors import ConfigError, located
from maitred.core.printing import printable
from maitred.files import named_path
from maitred.shadow import Shadow, ShadowRules

log = logging.getLogger("maitred.gateway")


def read_shadow(config: Config) -> ShadowRules | None:
    """Return the rules of the shadow that a configuration names, or None if it names none. Raises ConfigError for the first
    mistake in its file."""
    path = config.gateway.shadow
    if path is None:
        return None
    with located(_in_shadow):
        found = _sources(path).load()
    return ShadowRules(name=path, admission=found.admission, routing=found.routing, programs=found.programs)


def shadow_problems(config: Config) -> Sequence[ConfigError]:
    """Return every mistake in the file of the shadow that a configuration names."""
    if config.gateway.shadow is None:
        return []
    try:
        with located(_in_shadow):
            found = _sources(config.gateway.shadow).problems()
        problems = [problem.at(_in_shadow(problem.where)) for problem in found]
        if not problems and (rules := read_shadow(config)) is not None:
            Shadow(rules, config.routing)  # what its parts find out only together
    except ConfigError as error:
        return [error]
    return problems


def shadow_at_start(config: Config) -> ShadowRules | None:
    """Return the rules of the shadow, or None, and log why, if its file is wrong: what only looks on keeps nothing from
    serving."""
    for problem in shadow_problems(config):
        log.error("no shadow decides beside: %s", printable(str(problem)))
        return None
    return read_shadow(config)


def _sources(path: str) -> ConfigSources:
    return ConfigSources(file=named_path(path, "gateway.shadow"))


def _in_shadow(where: str) -> str:
    """Return the place of a mistake in the file, with the key that names the file."""
    return where if where == "gateway.shadow" else f"gateway.shadow: {where}"
