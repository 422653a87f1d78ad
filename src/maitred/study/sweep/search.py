"""The search: candidates proposed by Optuna's TPE (tree-structured Parzen estimator), batch by batch.

What it proposes depends on the seed and on what came of earlier batches, told in the order in which they were proposed; so not
on how many processes there were. A sweep that is resumed proposes the same again and finds its runs in the journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from maitred.core.errors import ConfigError
from maitred.study.sweep.criteria import Criteria, Figures
from maitred.study.sweep.spec import SearchRange
from maitred.study.sweep.spec import SearchSpec as Said

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

_UNMET_EXCESS: Final = 1e9
"""From a constraint, for a candidate that cannot be, or lacks the figure."""


class TpeSearch:
    """To be asked and told by turns."""

    def __init__(self, said: Said, criteria: Criteria, seed: int) -> None:
        """Raises ConfigError without Optuna, and for a range that it cannot take."""
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                "needs Optuna, which is not installed", where="search", hint="pip install 'maitred[search]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._criteria = criteria
        self._parameters = said.parameters
        self._space = {key: _distribution(of) for key, of in said.parameters.items()}
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed % 2**32), direction="minimize")
        self._asked: list[Trial] = []

    def ask(self, count: int) -> list[dict[str, Any]]:
        """The values of so many candidates."""
        self._asked = [self._study.ask(self._space) for _ in range(count)]
        return [{key: _parameter_value(of, trial.params[key]) for key, of in self._parameters.items()} for trial in self._asked]

    def tell(self, figures: Sequence[Figures | None]) -> None:
        """What came of them, in the order in which they were proposed; None: it cannot be."""
        for trial, found in zip(self._asked, figures, strict=True):
            for number, constraint in enumerate(self._criteria.constraints):
                excess = math.inf if found is None else constraint.excess(found)
                trial.set_constraint(str(number), min(excess, _UNMET_EXCESS))
            loss = math.inf if found is None else self._criteria.loss(self._criteria.objective, found)
            self._study.tell(trial, loss)


def _distribution(of: SearchRange | list[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(of, list):
        return CategoricalDistribution(range(len(of)))
    log = of.scale == "log"
    if of.is_integer:
        return IntDistribution(int(of.low), int(of.high), log=log, step=int(of.step or 1))
    return FloatDistribution(of.low, of.high, log=log, step=of.step)


def _parameter_value(of: SearchRange | list[Any], drawn: Any) -> Any:
    return of[drawn] if isinstance(of, list) else drawn


def boundary_values(parameters: Mapping[str, SearchRange | list[Any]]) -> list[dict[str, Any]]:
    """Values that try every parameter at both ends, or in each of its choices: for a look at what they say."""
    ends = {key: of if isinstance(of, list) else [of.low, of.high] for key, of in parameters.items()}
    longest = max(map(len, ends.values()))
    return [{key: values[min(index, len(values) - 1)] for key, values in ends.items()} for index in range(longest)]
