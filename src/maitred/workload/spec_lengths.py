"""Lengths in a workload specification: a section with `type` and `params` by BLIS's names, or as on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from maitred.errors import ConfigError, nearest
from maitred.workload.distributions import Empirical, Exponential, Gaussian, LogNormalOfLogs, ParetoLogNormal
from maitred.workload.lengths import Constant, Lengths, LogNormal, Normal, Uniform, parse_lengths


class Form(msgspec.Struct, frozen=True):
    """A distribution by the names of its parameters."""

    make: Callable[..., Lengths]
    names: Sequence[str]


_FORMS: Mapping[str, Sequence[Form]] = {
    "gaussian": [Form(Gaussian, ("mean", "std_dev", "min", "max"))],
    "normal": [Form(Normal, ("mean", "std_dev"))],
    "exponential": [Form(Exponential, ("mean",))],
    "lognormal": [
        Form(LogNormalOfLogs, ("mu", "sigma")),
        Form(LogNormalOfLogs, ("mu", "sigma", "min", "max")),
        Form(LogNormal, ("mean", "std_dev")),
    ],
    "pareto_lognormal": [Form(ParetoLogNormal, ("alpha", "xm", "mu", "sigma", "mix_weight"))],
    "uniform": [Form(Uniform, ("min", "max"))],
    "constant": [Form(Constant, ("value",))],
}


class Distribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `type` and its `params`, in tokens. Raises ValueError for those that make no sense."""

    type: str
    params: Mapping[str, float] = {}
    file: str | None = None

    def __post_init__(self) -> None:
        if self.file is not None:
            raise ValueError("file is not read: give the weights of the lengths as params")
        if self.type not in _FORMS and self.type != "empirical":
            raise ValueError(f"type {self.type!r} is no distribution: {nearest(self.type, [*_FORMS, 'empirical'])}")
        self.made()

    def made(self) -> Lengths:
        """What it describes."""
        try:
            return Empirical(self.params) if self.type == "empirical" else self._by_name()
        except ValueError as error:
            raise ValueError(f"params: {error}") from error

    def _by_name(self) -> Lengths:
        form = next((form for form in _FORMS[self.type] if {*form.names} == self.params.keys()), None)
        if form is None:
            raise ValueError(self._mismatch())
        return form.make(*(self.params[name] for name in form.names))

    def _mismatch(self) -> str:
        """What is too much, or else what is missing."""
        known = {name for form in _FORMS[self.type] for name in form.names}
        for name in self.params:
            if name not in known:
                return f"{name!r} means nothing to {self.type} lengths: {nearest(name, known)}"
        nearly = max(_FORMS[self.type], key=lambda form: len(self.params.keys() & {*form.names}))
        return f"{self.type} lengths also need {', '.join(name for name in nearly.names if name not in self.params)}"


Tokens: TypeAlias = Distribution | str | int
"""Lengths as a file has them: a section, or as on the command line (`500`, `normal:500,150`)."""


def lengths(key: str, said: Tokens) -> Lengths:
    """Raises ValueError that begins with `key`."""
    if isinstance(said, Distribution):
        return said.made()
    try:
        return parse_lengths(said)
    except ConfigError as error:
        raise ValueError(f"{key}: {error}") from error
