"""Flags about programs under ThunderAgent's names that stand for no single key, of `maitred serve` and `maitred simulate`.

`--router` is a name for two things: ThunderAgent's modes `tr` and `default` are `programs.mode`; every other value is a routing
policy, as in SMG and SGLang, and means `--routing-policy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from maitred.cli.config_flags import PROGRAMS
from maitred.cli.flags import SWITCH, CommandFlags, flag, set_value
from maitred.core.errors import ConfigError, located

MODES: Final = ("tr", "default")
_ESTIMATOR: Final = "programs.acting_estimator"
_POLICY: Final = "routing.policy"
PROGRAM_FLAG_NAMES: Final = {"programs.mode": "--router"}
"""The flags of `ProgramFlags` by the key that they alone give, for messages about its value."""


@dataclass(frozen=True, kw_only=True)
class ProgramFlags(CommandFlags):
    """ThunderAgent's flags that the keys have no row for."""

    router: Annotated[
        str | None,
        flag(
            PROGRAMS.panel,
            "tr: pause and resume agent programs so that they fit into KV memory; default: keep each with one backend; "
            "anything else: the same as --routing-policy.",
            "MODE",
        ),
    ] = None
    acting_token_weight: Annotated[
        float | None, flag(PROGRAMS.panel, "The same as --acting-estimator fixed(WEIGHT).", "WEIGHT")
    ] = None
    use_acting_token_decay: Annotated[
        bool | None,
        flag(PROGRAMS.panel, "The same as --acting-estimator decay; --acting-token-weight has no effect then.", SWITCH),
    ] = None


def program_values(flags: ProgramFlags) -> dict[str, object]:
    """Return the values of keys that `flags` give, the rows of the command included. Raises ConfigError for flags that
    contradict each other."""
    values = dict(flags.values)
    if flags.router in MODES:
        values["programs.mode"] = flags.router
    elif flags.router is not None:
        _check_routing_policy(flags.router)
        set_value(values, _POLICY, flags.router, "--router", "--routing-policy")
    _set_estimator(values, flags)
    return values


def _set_estimator(values: dict[str, object], flags: ProgramFlags) -> None:
    """Put the acting estimator of the flags into `values`. Raises ConfigError if these have one already."""
    estimator = _estimator(flags)
    if estimator is None:
        return
    if _ESTIMATOR in values:
        name = "--use-acting-token-decay" if flags.use_acting_token_decay else "--acting-token-weight"
        raise ConfigError("contradicts --acting-estimator", where=name, hint="give one of them")
    values[_ESTIMATOR] = estimator


def _check_routing_policy(name: str) -> None:
    """Raise ConfigError if `name`, a value of `--router` that is no mode, is no routing policy either."""
    from maitred.routing import ROUTERS

    try:
        ROUTERS.create(name)
    except ConfigError as error:
        hint = f"{' and '.join(MODES)} are about programs" + (f"; as a routing policy: {error.hint}" if error.hint else "")
        raise ConfigError(error.problem, where="--router", hint=hint) from error


def _estimator(flags: ProgramFlags) -> str | None:
    """Return the acting estimator that ThunderAgent's flags mean, or None without them. With decay, weights do not count."""
    if flags.use_acting_token_decay:
        return "decay"
    if flags.acting_token_weight is None:
        return None
    from maitred.programs import ACTING_ESTIMATORS

    estimator = f"fixed(weight={flags.acting_token_weight})"
    with located("--acting-token-weight"):
        ACTING_ESTIMATORS.create(estimator)
    return estimator
