"""The flags that stand for no single key of whatever serves or schedules: `maitred serve`, `maitred scheduler`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maitred.cli.config_flags import FLOW_CONTROL
from maitred.cli.flags import SWITCH, flag, set_value
from maitred.cli.gateway_flags import BACKENDS, CALLERS, GATEWAY_ADMISSION, PROCESS
from maitred.cli.program_flags import PROGRAM_FLAG_NAMES
from maitred.cli.smg_flags import SmgFlags, smg_values
from maitred.core.errors import ConfigError

FLAG_NAMES: Final = {**PROGRAM_FLAG_NAMES, "gateway.tenant_api_keys": "--tenant-api-key"}
"""Those of these flags by the key that they alone give, for messages about its value."""


@dataclass(frozen=True, kw_only=True)
class LiveFlags(SmgFlags):
    """SMG's flags, and these."""

    backends: Annotated[
        str | None, flag(BACKENDS.panel, "Base URLs separated by commas, beside those of --backend.", "URL,...")
    ] = None
    config: Annotated[Path | None, flag(PROCESS.panel, "A YAML file; flags win over it.", "FILE")] = None
    strict_config: Annotated[
        bool | None, flag(PROCESS.panel, "Refuse to start with a configuration that is wrong.", SWITCH)
    ] = None
    flow_control: Annotated[bool | None, flag(FLOW_CONTROL.panel, "The same as --admission flow-control.", SWITCH)] = None
    admission_config: Annotated[
        Path | None,
        flag(
            GATEWAY_ADMISSION.panel,
            "The section admission as a YAML file: SMG's is one.",
            "FILE",
            alias="--priority-scheduler-config",
        ),
    ] = None
    tenant_api_key: Annotated[
        list[str] | None, flag(CALLERS.panel, "A key of one tenant, or sha256:HEX. Repeatable.", "ID:KEY")
    ] = None


def live_values(flags: LiveFlags) -> dict[str, object]:
    """Return the values of keys that `flags` give. Raises ConfigError for contradictions, and for a key that is no ID:KEY."""
    values = smg_values(flags)
    if flags.backends:
        urls = [url.strip() for url in flags.backends.split(",")]
        given = values.get("gateway.backends")
        values["gateway.backends"] = [*(given if isinstance(given, list) else []), *filter(None, urls)]
    if flags.tenant_api_key:
        values["gateway.tenant_api_keys"] = _tenant_keys(flags.tenant_api_key)
    if flags.flow_control:
        set_value(values, "admission.mode", "flow-control", "--flow-control", "--admission")
    max_class = values.get("admission.default_max_class")
    if isinstance(max_class, str):  # SMG reads it as it reads the header
        values["admission.default_max_class"] = max_class.strip().lower()
    return values


def _tenant_keys(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys by tenant. No error message repeats a key."""
    keys: dict[str, list[str]] = {}
    for pair in given:
        tenant, colon, key = pair.partition(":")
        if not (tenant and colon and key):
            raise ConfigError("this is no ID:KEY", where="--tenant-api-key", hint="as in --tenant-api-key acme:KEY")
        keys.setdefault(tenant, []).append(key)
    return keys
