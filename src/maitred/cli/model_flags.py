"""Flags that say what runs on what, and how long its steps take: the same for `maitred simulate` and `maitred engine`.

Their names are BLIS's and vLLM's. What goes together: coefficients belong to `linear` or to `trained-physics`; how many β there
are tells which, where `--latency-model` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from maitred.cli.flags import flag, of_flag
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.instance.latency import LatencyConfig

_MODEL = "Model and hardware (default: none; a step takes what linear says)"
_LATENCY = "--latency-model"


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """A model, its GPUs, and its latency model."""

    model: Annotated[
        str | None,
        flag(_MODEL, "--model", "What runs: a name of maitred models, or the path of a Hugging Face config.json.", "NAME"),
    ] = None
    model_config_folder: Annotated[
        str | None, flag(_MODEL, "--model-config-folder", "Folder with the config.json of the model.", "FOLDER")
    ] = None
    hardware: Annotated[
        str | None, flag(_MODEL, "--hardware", "On which kind of GPU: H100 (default), A100, H200, L40S, ...", "GPU")
    ] = None
    hardware_config: Annotated[
        str | None, flag(_MODEL, "--hardware-config", "JSON file with kinds of GPU, as BLIS has it.", "FILE")
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        flag(_MODEL, "--tensor-parallel-size", "GPUs that share every layer. Default: 1.", "N", alias="--tp"),
    ] = None
    data_parallel_size: Annotated[
        int | None,
        flag(_MODEL, "--data-parallel-size", "Ranks that share the experts, in one instance.", "N", alias="--dp"),
    ] = None
    latency_model: Annotated[
        str | None,
        flag(
            _MODEL,
            _LATENCY,
            "Time of a step: linear:β0,β1,β2 (µs per step, prefill token, decode; blackbox), roofline, trained-physics "
            "(default with --model), table:FILE, or module:Class.",
            "NAME",
            alias="--latency",
        ),
    ] = None
    alpha_coeffs: Annotated[
        str | None, flag(_MODEL, "--alpha-coeffs", "Overheads of a request, in µs, as BLIS has them.", "α0,α1,α2")
    ] = None
    beta_coeffs: Annotated[
        str | None, flag(_MODEL, "--beta-coeffs", "Coefficients: 3 for linear, 7 to 11 for trained-physics.", "β0,β1,...")
    ] = None


KEYS: Final[Mapping[str, str]] = {
    "model": "instance.model",
    "model_config_folder": "instance.model_config_folder",
    "hardware": "instance.hardware",
    "hardware_config": "instance.hardware_config",
    "tensor_parallel_size": "instance.tensor_parallel_size",
    "data_parallel_size": "instance.data_parallel_size",
}
"""The keys of the configuration that flags stand for."""


def latency(flags: ModelFlags) -> LatencyConfig | str | None:
    """What the flags say of step times; None: nothing. Raises ConfigError, naming the flag."""
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
    usual = "linear" if beta is None or len(beta) < 7 else "trained-physics"
    try:
        said = parse_latency(usual if flags.latency_model is None else flags.latency_model)
    except ConfigError as error:
        raise of_flag(_LATENCY, error) from error
    try:
        return with_coefficients(said, alpha, beta)
    except ConfigError as error:
        about_alpha = beta is None or error.problem.startswith("--alpha-coeffs")
        raise of_flag("--alpha-coeffs" if about_alpha else "--beta-coeffs", error) from error


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    from maitred.instance.latency import numbers

    try:
        return None if text is None else numbers(text)
    except ConfigError as error:
        raise of_flag(name, error) from error
