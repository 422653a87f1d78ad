"""What a configuration says of the slots of a gateway before any backend has been asked, and whether its reservations fit.

Engines usually report how many requests they run, or it is learned; then nothing is known. With `slots_per_backend` no model
has more slots than all backends together. Under `flavour: smg` the question is asked of the capacity that SMG assumes.
"""

from __future__ import annotations

from maitred.admission import bootstrap_problem, overcommit_problem
from maitred.config.root import Config
from maitred.core.errors import ConfigError


def known_capacity(config: Config) -> int | None:
    """Return the most slots that a model can have, or None if that is not known."""
    gateway = config.gateway
    if gateway.slots_per_backend is None or not gateway.backends:
        return None
    return gateway.slots_per_backend * len(gateway.backends)


def overcommit_error(config: Config, capacity: int | None) -> ConfigError | None:
    """Return the error of a gateway that could not use its classes, because they reserve more than `capacity` slots, or None
    where that is not known, or the reservations would be scaled down."""
    admission = config.admission
    if admission.mode != "priority" or not admission.falls_back_on_overcommit:
        return None
    if admission.preset.bootstrap_capacity is not None:
        problem = bootstrap_problem(admission)
    else:
        problem = None if capacity is None else overcommit_problem(admission, capacity)
    if problem is None:
        return None
    problem = f"{problem}: maitred serve would use legacy admission"
    return ConfigError(problem, where="admission.classes", hint=admission.overcommit_cure)
