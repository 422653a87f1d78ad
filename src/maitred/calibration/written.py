"""A fitted latency model as a YAML file that `--config` takes, and its tables, if it has any, beside it.

The file also says what of the engine differs from the usual, as far as it is known: coefficients hold for one model on one kind
of GPU, and the errors that `maitred validate` prints for a folder are those of its engine.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from maitred.calibration.fitting import Fit
from maitred.catalogue.step_table import table_bytes
from maitred.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.latency import TableLatency


def write_fit(fit: Fit, path: Path, measured: str) -> list[Path]:
    """Write `fit`, made from `measured`, to `path`. Returns the files written. Raises ConfigError if one cannot be."""
    import yaml

    written, latency = [path], msgspec.to_builtins(fit.latency)
    latency.pop("deployment", None)  # follows from the model and the GPUs
    if isinstance(fit.latency, TableLatency) and fit.latency.table is not None:
        tables = path.with_suffix(".table.json")
        _write(tables, table_bytes(fit.latency.table))
        written.append(tables)
        latency = {"model": "table", "file": str(tables)}
    kept = fit.residuals
    about = (
        f"# maitred calibrate {measured}: {kept.count} measurements, relative error {kept.mean:+.1%} ± {kept.sd:.1%}, "
        f"R² {kept.r_squared:.4f}\n"
    )
    error = min(0.999, round(kept.sd, 4))
    config = {"instance": {**_unusual(fit.engine), "latency": latency, "latency_error": error}}
    text = yaml.safe_dump(_listed(config), sort_keys=False, default_flow_style=None, width=120)
    _write(path, (about + text).encode())
    return written


def _unusual(engine: InstanceConfig) -> dict[str, object]:
    """What `engine` says that not every instance has; not its latency model."""
    said, usual = (msgspec.to_builtins(replace(config, latency=None)) for config in (engine, InstanceConfig()))
    return {key: value for key, value in said.items() if value != usual[key]}


def _listed(value: object) -> object:
    """Tuples as lists: YAML has no others."""
    if isinstance(value, dict):
        return {key: _listed(held) for key, held in value.items()}
    return [_listed(held) for held in value] if isinstance(value, list | tuple) else value


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(path)) from error
