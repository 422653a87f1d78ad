"""A step table from the layer profiles of a folder, judged by the requests that were measured there."""

from __future__ import annotations

from pathlib import Path

from maitred.calibration.fitting import Fit
from maitred.calibration.folder import read_folder
from maitred.calibration.residuals import residuals
from maitred.calibration.timelines import jobs_of, read_timeline
from maitred.errors import ConfigError
from maitred.instance.latency import LatencyConfig
from maitred.sim import Outcome, simulate
from maitred.units import SECOND


def fit_profile(path: Path) -> Fit:
    """Residuals are of the latencies of single requests, as a simulation has them. Raises ConfigError."""
    folder = read_folder(path)
    instance, rows = folder.instance(), read_timeline(folder.requests)
    results = simulate(jobs_of(rows), instance=instance)
    if (results.outcome != Outcome.COMPLETED).any():
        raise ConfigError("some of its requests do not fit into the engine that it describes", where=str(path))
    assert isinstance(instance.latency, LatencyConfig)
    predicted = (results.finished - results.queued) / SECOND
    return Fit(instance.latency, residuals([row.latency for row in rows], predicted.tolist()), instance)
