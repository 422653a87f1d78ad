"""What `maitred scheduler` makes of `--ext-proc`, and `maitred serve` of `--data-plane envoy`."""

from __future__ import annotations

import importlib.util
import logging
import os
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from maitred import __version__
from maitred.core.errors import ConfigError
from maitred.scheduler.addresses import LinkAddress
from maitred.wire.certificate import read_certificate
from maitred.wire.tls import ReloadedContext

if TYPE_CHECKING:
    from maitred.config import LoadedConfig
    from maitred.gateway.admin.reload import GatewaySettings
    from maitred.gateway.envoy.picker_scheduler import ExtProcPort
    from maitred.gateway.observe.logs import LogOutput
    from maitred.scheduler.link_config import SchedulerConfig

log = logging.getLogger("maitred.gateway")
_NEEDED: Final = ("hpack", "google.protobuf")


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


def _certificate(config: SchedulerConfig) -> ReloadedContext | None:
    if config.ext_proc_tls_cert is None:
        return None
    return ReloadedContext(
        partial(_make_context, config.ext_proc_tls_cert, config.ext_proc_tls_key or config.ext_proc_tls_cert)
    )


def _make_context(certificate: str, key: str) -> ssl.SSLContext:
    context = read_certificate(certificate, key, where="scheduler", prefix="ext_proc_").context
    context.set_alpn_protocols(["h2"])
    return context


def serve_with_envoy(
    loaded: LoadedConfig, output: LogOutput, reload: Callable[[], GatewaySettings], announce: Callable[[str], object]
) -> None:
    """Serve behind an Envoy of our own until a signal. `announce` is told the URL of clients. Raises ConfigError if that is not
    possible."""
    where = "--data-plane"
    if loaded.config.scheduler.addresses:
        hint = "leave one of them out; or maitred scheduler --ext-proc, with an Envoy of its own"
        raise ConfigError("a gateway behind Envoy schedules for itself, and goes not with --scheduler", where=where, hint=hint)
    require_extra(where)
    from maitred.cli.made_gateway import make_gateway, this_machine
    from maitred.files.undo import whole_or_nothing
    from maitred.gateway.app import serve_gateway
    from maitred.gateway.cluster.link_setup import link_name
    from maitred.gateway.cluster.scheduler_gateway import LinkPort
    from maitred.gateway.envoy.envoy_gateway import EnvoyGateway
    from maitred.gateway.envoy.envoy_process import require_envoy
    from maitred.gateway.envoy.picker_scheduler import ExtProcPort
    from maitred.wire.server import run_server

    require_envoy(where)
    config, link, machine = loaded.config.gateway, loaded.config.scheduler, this_machine()
    if machine.service_manager.ports:
        problem = "Envoy opens its port by itself, and takes no socket that was passed"
        raise ConfigError(problem, where=where, hint="start it without a socket unit")
    make = partial(
        EnvoyGateway,
        machine=machine,
        port=LinkPort(None, None, None, machine.random.randbytes(16), link_name(link)),
        pages=(link.pages_host, link.pages_port),
        ext_proc=ExtProcPort("127.0.0.1", 0),
    )
    with whole_or_nothing():
        gateway = make_gateway(make, loaded, output, reload)
        log.info("maitred %s starts: process %d, admission %s, Envoy", __version__, os.getpid(), gateway.core.config.mode)
        ports = gateway.open_ports()
    url = f"{'http' if config.tls_cert is None else 'https'}://{config.host}:{config.port}"
    run_server(serve_gateway(gateway, ports, lambda *pages: announce(url)))
