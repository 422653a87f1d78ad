"""A fitted latency model as a YAML file that `--config` takes, and its tables, if it has any, beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from maitred.calibration.fitting import Fit
from maitred.catalogue.step_table import table_bytes
from maitred.errors import ConfigError
from maitred.instance.latency import TableLatency


def write_fit(fit: Fit, path: Path, measured: str) -> list[Path]:
    """Write `fit`, made from `measured`, to `path`. Returns the files written. Raises ConfigError if one cannot be."""
    import yaml

    written, latency = [path], msgspec.to_builtins(fit.latency)
    latency.pop("deployment", None)
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
    config = {"instance": {"latency": latency, "latency_error": min(0.999, round(kept.sd, 4))}}
    text = yaml.safe_dump(_listed(config), sort_keys=False, default_flow_style=None, width=120)
    _write(path, (about + text).encode())
    return written


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
