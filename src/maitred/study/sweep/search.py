"""Search: candidates proposed by Optuna's TPE (tree-structured Parzen estimator), batch by batch.

Proposals depend on the seed and on the results of earlier batches, which are reported in the order in which they were proposed.
So they do not depend on the number of processes. A resumed sweep proposes the same candidates again and finds their runs in the
journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from maitred.core.errors import ConfigError
from maitred.study.sweep.criteria import Criteria, Figures
from maitred.study.sweep.spec import SearchRange, SearchSpec

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

_UNMET_EXCESS: Final = 1e9
"""The excess of a constraint for a candidate that cannot be simulated, or has no figure."""


class TpeSearch:
    """A search: call `ask` and `tell` in turn."""

    def __init__(self, spec: SearchSpec, criteria: Criteria, seed: int) -> None:
        """Raises ConfigError without Optuna, and for a range that Optuna does not take."""
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                "needs Optuna, which is not installed", where="search", hint="pip install 'maitred[search]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._criteria = criteria
        self._parameters = spec.parameters
        self._space = {key: _distribution(parameter) for key, parameter in spec.parameters.items()}
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed % 2**32), direction="minimize")
        self._asked: list[Trial] = []

    def ask(self, count: int) -> list[dict[str, Any]]:
        """Return the values of `count` candidates."""
        self._asked = [self._study.ask(self._space) for _ in range(count)]
        return [
            {key: _parameter_value(parameter, trial.params[key]) for key, parameter in self._parameters.items()}
            for trial in self._asked
        ]

    def tell(self, figures: Sequence[Figures | None]) -> None:
        """Report the figures of the candidates in the order of their proposal; None for one that cannot be simulated."""
        for trial, found in zip(self._asked, figures, strict=True):
            for number, constraint in enumerate(self._criteria.constraints):
                excess = math.inf if found is None else constraint.excess(found)
                trial.set_constraint(str(number), min(excess, _UNMET_EXCESS))
            loss = math.inf if found is None else self._criteria.loss(self._criteria.objective, found)
            self._study.tell(trial, loss)


def _distribution(parameter: SearchRange | list[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, list):
        return CategoricalDistribution(range(len(parameter)))
    log = parameter.scale == "log"
    if parameter.is_integer:
        return IntDistribution(int(parameter.low), int(parameter.high), log=log, step=int(parameter.step or 1))
    return FloatDistribution(parameter.low, parameter.high, log=log, step=parameter.step)


def _parameter_value(parameter: SearchRange | list[Any], drawn: Any) -> Any:
    return parameter[drawn] if isinstance(parameter, list) else drawn


def boundary_values(parameters: Mapping[str, SearchRange | list[Any]]) -> list[dict[str, Any]]:
    """Return values that use each parameter at both ends of its range, or in each of its choices, for checking them."""
    ends = {key: of if isinstance(of, list) else [of.low, of.high] for key, of in parameters.items()}
    longest = max(map(len, ends.values()))
    return [{key: values[min(index, len(values) - 1)] for key, values in ends.items()} for index in range(longest)]
