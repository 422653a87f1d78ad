"""What `maitred scheduler` makes of `--ext-proc`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maitred.core.errors import ConfigError, describe_os_error
from maitred.files import MAX_TEXT_BYTES, read_file
from maitred.scheduler.addresses import LinkAddress

if TYPE_CHECKING:
    from maitred.gateway.envoy.picker_scheduler import ExtProcPort
    from maitred.scheduler.link_config import SchedulerConfig

_NEEDED: Final = ("grpc", "google.protobuf", "envoy.service.ext_proc.v3")


def require_extra(where: str) -> None:
    """Raise ConfigError if what Envoy is spoken to with is not installed."""
    for module in _NEEDED:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            raise ConfigError(f"{module} is not installed", where=where, hint="pip install 'maitred[envoy]'")


def ext_proc_port(config: SchedulerConfig) -> ExtProcPort | None:
    """Return where Envoy is to find the picker, or None if there is to be none. Raises ConfigError."""
    if config.ext_proc is None:
        return None
    require_extra("--ext-proc")
    from maitred.gateway.envoy.picker_scheduler import ExtProcPort

    address = LinkAddress.parse(config.ext_proc)
    assert address.port is not None
    return ExtProcPort(address.host, address.port, _certificate(config))


def _certificate(config: SchedulerConfig) -> tuple[bytes, bytes] | None:
    if config.ext_proc_tls_cert is None:
        return None
    key = config.ext_proc_tls_key or config.ext_proc_tls_cert
    return _read(key, "scheduler.ext_proc_tls_key"), _read(config.ext_proc_tls_cert, "scheduler.ext_proc_tls_cert")


def _read(path: str, where: str) -> bytes:
    try:
        return read_file(Path(path), MAX_TEXT_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {describe_os_error(error)}", where=where) from error
