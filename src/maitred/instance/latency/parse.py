"""A latency model as flags and files write it: as all policies are, or its name and, after a colon, its numbers (BLIS).

    linear:5000,17.5,60       linear([5000, 17.5, 60])       blackbox
    table:steps.json          table(steps.json)
    roofline                  my_package.models:Mine(a=1)

The second form of a line means what the first one does. The way of a text, `my_package.models:Mine(a=1)` for example:

    cli/shared_flags.py      `latency_of_flags` calls `parse_latency` for `--latency-model`, and the key `instance.latency` gets
                             what it returns; for a file that has this key, `InstanceConfig._latency_from_text` calls it
    parse_latency            finds the class and makes one, which checks its parameters (core/registry.py); keeps the text
    instance/config.py       `InstanceConfig.latency` holds the text; `latency_model` makes the model for an engine
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.instance.latency.base import LATENCY_MODELS, LatencyConfig, LinearLatency
from maitred.instance.latency.roofline import RooflineLatency
from maitred.instance.latency.silicon import AIConfiguratorLatency
from maitred.instance.latency.table import TableLatency
from maitred.instance.latency.trained_physics import TrainedPhysicsLatency

if TYPE_CHECKING:
    AnyLatency: TypeAlias = LatencyConfig | str
else:
    AnyLatency = Union[(str, *{found for found in LATENCY_MODELS.built_in().values() if issubclass(found, LatencyConfig)})]
"""What a configuration may hold: keys, told apart by `model`, or a policy spec. A `LatencyConfig` in a module of this package
joins the union by itself; any other class is written as a spec."""


def parse_latency(text: str) -> LatencyConfig | str:
    """Return the latency model that `text` describes, or `text` itself for a class elsewhere. Raises ConfigError.

    A class elsewhere is made here only to check its parameters. A configuration can hold and write a text, but not an
    object of a class that it does not know, so `InstanceConfig.latency_model` makes the model again from the text.
    """
    name, colon, rest = text.partition(":")
    if name in _WITH_COLON:
        return _WITH_COLON[name](rest if colon else None)
    if colon and not rest[:1].isidentifier():
        LATENCY_MODELS.find(name)  # not a class but numbers follow: raises, because the name is unknown
    found = LATENCY_MODELS.create(text)
    return found if isinstance(found, LatencyConfig) else text


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers in `text`, which has commas between them. Raises ConfigError."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no list of numbers", hint="numbers with commas between them, as in 5000,17.5,60"
        ) from error


def with_coefficients(
    latency: LatencyConfig | str, alpha: Sequence[float] | None, beta: Sequence[float] | None
) -> LatencyConfig | str:
    """Return `latency` with BLIS's --alpha-coeffs and --beta-coeffs. Raises ConfigError where they do not belong."""
    if alpha is None and beta is None:
        return latency
    if not isinstance(latency, LinearLatency | TrainedPhysicsLatency | AIConfiguratorLatency):
        name = latency if isinstance(latency, str) else latency.__struct_config__.tag
        raise ConfigError(f"{name} has no coefficients", hint="leave them out, or choose linear or trained-physics")
    if alpha is not None and len(alpha) != 3:
        raise ConfigError(f"--alpha-coeffs are three numbers, not {len(alpha)}", hint="α0,α1,α2 in µs")
    if isinstance(latency, AIConfiguratorLatency):
        return _with_alpha(latency, alpha, beta)
    if isinstance(latency, LinearLatency):
        return _linear(latency.alpha if alpha is None else alpha, latency.beta if beta is None else beta)
    if alpha is None or beta is None:
        raise ConfigError("trained-physics takes --alpha-coeffs and --beta-coeffs together", hint="give both, or neither")
    try:
        return TrainedPhysicsLatency((alpha[0], alpha[1], alpha[2]), tuple(beta), latency.moe_communication)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _with_alpha(
    latency: AIConfiguratorLatency, alpha: Sequence[float] | None, beta: Sequence[float] | None
) -> AIConfiguratorLatency:
    if alpha is None or beta is not None:
        raise ConfigError("aiconfigurator has measured steps and takes no β", hint="leave out --beta-coeffs")
    try:
        return replace(latency, alpha=(alpha[0], alpha[1], alpha[2]))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _linear(alpha: Sequence[float], beta: Sequence[float]) -> LinearLatency:
    if len(beta) != 3:
        hint = "β0,β1,β2 in µs: per step, prefill token, decode; 7 to 11 of them are for --latency-model trained-physics"
        raise ConfigError(f"linear takes three β, not {len(beta)}", hint=hint)
    try:
        return LinearLatency((beta[0], beta[1], beta[2]), (alpha[0], alpha[1], alpha[2]))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _parse_linear(text: str | None) -> LinearLatency:
    if text is None:
        return LinearLatency()
    try:
        b0, b1, b2 = (float(part) for part in text.split(","))
        return LinearLatency((b0, b1, b2))
    except ValueError as error:
        hint = "three numbers from 0 to 3.6e9: linear:β0,β1,β2, as in linear:5000,17.5,60 (µs; per step, prefill token, decode)"
        raise ConfigError(f"cannot read the latency model 'linear:{text}'", hint=hint) from error


def _parse_roofline(text: str | None) -> LatencyConfig:
    if text is not None:
        raise ConfigError(f"roofline has no coefficients, but {text!r} follows it", hint="write: roofline")
    return RooflineLatency()


def _parse_trained_physics(text: str | None) -> TrainedPhysicsLatency:
    if text is None:
        return TrainedPhysicsLatency()
    hint = "give them as --alpha-coeffs and --beta-coeffs"
    raise ConfigError(f"trained-physics takes no coefficients here, but {text!r} follows it", hint=hint)


def _parse_table(text: str | None) -> TableLatency:
    if not text:
        raise ConfigError("the latency model table needs a file", hint="table:FILE, as maitred calibrate has written it")
    return TableLatency(text)


_WITH_COLON: Final[Mapping[str, Callable[[str | None], LatencyConfig]]] = {
    "linear": _parse_linear,
    "blackbox": _parse_linear,
    "roofline": _parse_roofline,
    "trained-physics": _parse_trained_physics,
    "table": _parse_table,
}
"""Names that BLIS's way to write numbers belongs to."""
