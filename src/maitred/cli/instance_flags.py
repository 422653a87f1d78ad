"""Flags of an instance that stand for no single key: the same for `maitred simulate` and `maitred engine`.

Their names are BLIS's and vLLM's. Coefficients belong to `linear` or to `trained-physics`; where `--latency-model` does not say
which, their number does: 7 or more β are those of trained-physics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from maitred.cli.config_flags import HARDWARE, INSTANCE
from maitred.cli.flags import NO_VALUE, CommandFlags, as_flag_error, flag
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.instance.latency import LatencyConfig

_LATENCY: Final = "--latency-model"
_CACHING: Final = "instance.enable_prefix_caching"


@dataclass(frozen=True, kw_only=True)
class InstanceFlags(CommandFlags):
    """Latency model, and prefix caching turned off."""

    latency_model: Annotated[
        str | None,
        flag(
            HARDWARE.panel,
            _LATENCY,
            "Time of a step: linear:β0,β1,β2 (µs per step, prefill token, decode; blackbox), roofline, trained-physics "
            "(default with --model), table:FILE, or module:Class.",
            "NAME",
            alias="--latency",
        ),
    ] = None
    alpha_coeffs: Annotated[
        str | None, flag(HARDWARE.panel, "--alpha-coeffs", "Overheads of a request, in µs, as BLIS has them.", "α0,α1,α2")
    ] = None
    beta_coeffs: Annotated[
        str | None,
        flag(HARDWARE.panel, "--beta-coeffs", "Coefficients: 3 for linear, 7 to 11 for trained-physics.", "β0,β1,..."),
    ] = None
    no_enable_prefix_caching: Annotated[
        bool | None,
        flag(
            INSTANCE.panel,
            "--no-enable-prefix-caching",
            "Turn prefix caching off, whatever the file says.",
            NO_VALUE,
            alias="--no-prefix-caching",
        ),
    ] = None


def instance_values(flags: InstanceFlags) -> dict[str, object]:
    """Return the values that `flags` give, by key. Raises ConfigError for flags that contradict each other."""
    values = {**flags.values, "instance.latency": latency(flags)}
    if flags.no_enable_prefix_caching:
        if _CACHING in values:
            raise ConfigError(
                "contradicts --enable-prefix-caching", where="--no-enable-prefix-caching", hint="give one of them"
            )
        values[_CACHING] = False
    return values


def latency(flags: InstanceFlags) -> LatencyConfig | str | None:
    """Return the latency model that `flags` give, or None if they give none. Raises ConfigError, naming the flag."""
    if (flags.latency_model, flags.alpha_coeffs, flags.beta_coeffs) == (None, None, None):
        return None
    from maitred.instance.latency import parse_latency, with_coefficients

    alpha = _numbers("--alpha-coeffs", flags.alpha_coeffs)
    beta = _numbers("--beta-coeffs", flags.beta_coeffs)
    if flags.latency_model is None and beta is None:
        hint = "give both, or say which model they are for: --latency-model linear"
        raise ConfigError("without --beta-coeffs it has no effect", where="--alpha-coeffs", hint=hint)
    if flags.latency_model is not None and set(":(") & set(flags.latency_model) and beta is not None:
        hint = f"{_LATENCY} {flags.latency_model.partition(':')[0]}, or without --beta-coeffs"
        raise ConfigError("--latency-model with numbers and --beta-coeffs are two names for one thing", hint=hint)
    default = "linear" if beta is None or len(beta) < 7 else "trained-physics"
    try:
        model = parse_latency(default if flags.latency_model is None else flags.latency_model)
    except ConfigError as error:
        raise as_flag_error(_LATENCY, error) from error
    try:
        return with_coefficients(model, alpha, beta)
    except ConfigError as error:
        about_alpha = beta is None or error.problem.startswith("--alpha-coeffs")
        raise as_flag_error("--alpha-coeffs" if about_alpha else "--beta-coeffs", error) from error


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    from maitred.instance.latency import numbers

    try:
        return None if text is None else numbers(text)
    except ConfigError as error:
        raise as_flag_error(name, error) from error
