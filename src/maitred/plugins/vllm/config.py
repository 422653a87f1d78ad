"""The configuration of the scheduler class: `--additional-config '{"maitred": {...}}'`, else the environment.

The keys are those of the section `instance:` that order the wait queue (`QueueingConfig`), and two of its own. A variable of
the environment is called after its key: `MAITRED_SCHEDULER=sjf`. vLLM's own flags say everything else of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

import maitred.compat  # noqa: F401 - the policy may be one of another system
from maitred.core.contracts import QueuePolicy
from maitred.core.environment import PREFIX, unread_variables
from maitred.core.errors import ConfigError
from maitred.core.yaml_document import KeyPath, YamlDocument
from maitred.core.yaml_schema import first_problem, section_keys
from maitred.queueing import QueueingConfig

SECTION: Final = "maitred"
"""The key of `--additional-config` that belongs to maitred."""


class PluginConfig(QueueingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the waiting queue of vLLM is ordered."""

    record_steps: str | None = None
    """File to which every request and every step is written, to be simulated afterwards. Null: none is."""
    seed: int = 0
    """Seed of the policies that draw at random."""


def read_config(additional_config: object, env: Mapping[str, str]) -> PluginConfig:
    """Return the configuration. `additional_config` is what vLLM was given; keys there win over variables in `env`.

    Raises ConfigError, naming the place, for an unknown key, a value of another type, and a policy that does not exist.
    """
    given = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
    place = f"--additional-config {SECTION}"
    if not isinstance(given, Mapping):
        raise ConfigError("there should be keys with values", where=place, hint='{"maitred": {"scheduler": "sjf"}}')
    names = plugin_variables()
    variables = {key: _value(env[name], name, key) for key, name in names.items() if name in env}
    values = variables | dict(given)

    def locate(path: KeyPath) -> str:
        return names[str(path[0])] if path and path[0] not in given and path[0] in variables else place

    problem = first_problem(values, PluginConfig, locate)
    if problem:
        raise problem.error
    config = msgspec.convert(values, PluginConfig)
    made_policy(config, locate(("scheduler",)))
    return config


def misplaced(additional_config: object, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for what was probably meant for maitred, and changes nothing: keys that are not below `maitred`, and
    variables that nothing reads."""
    names = plugin_variables()
    if isinstance(additional_config, Mapping) and SECTION not in additional_config:
        for key in names.keys() & additional_config.keys():
            yield f'--additional-config: {key} changes nothing (write {{"{SECTION}": {{"{key}": ...}}}})'
    yield from unread_variables({name: value for name, value in env.items() if "__" not in name}, names.values())


def plugin_variables() -> dict[str, str]:
    """Return the variables by their keys."""
    return {key: f"{PREFIX}{key.upper()}" for key in section_keys(PluginConfig)}


def made_policy(config: PluginConfig, where: str = "") -> QueuePolicy:
    """Return the queue policy. Raises ConfigError, which names the place `where`, for one that cannot be made."""
    try:
        return config.policy()
    except ConfigError as error:
        raise ConfigError(error.problem, where=where, hint=error.hint) from error


def _value(text: str, name: str, key: str) -> Any:
    """Return `text` itself if the key takes text, else its value as YAML. Raises ConfigError if it is no YAML."""
    try:
        return msgspec.convert(text, section_keys(PluginConfig)[key])
    except (msgspec.ValidationError, UnicodeEncodeError):  # The latter is for bytes that are no text; the document says so.
        return YamlDocument(text, name).value
