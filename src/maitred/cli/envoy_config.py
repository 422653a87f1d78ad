"""`maitred envoy-config`: the configuration of an Envoy in front of engines."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maitred.cli.flags import SWITCH, CommandFlags, command, flag
from maitred.cli.gateway_flags import ENVOY
from maitred.core.errors import ConfigError
from maitred.scheduler.addresses import LinkAddress

if TYPE_CHECKING:
    from maitred.config import Config
    from maitred.gateway.envoy.bootstrap import EnvoyPlan

_DEFAULT_PICKER: Final = "127.0.0.1:9002"
_BODY_MODES: Final = {"buffered": "BUFFERED", "full-duplex-streamed": "FULL_DUPLEX_STREAMED"}


@dataclass(frozen=True, kw_only=True)
class EnvoyFlags(CommandFlags):
    """The flags that stand for no key."""

    config: Annotated[Path | None, flag(ENVOY.panel, "A YAML file, as `maitred scheduler` takes it; flags win.", "FILE")] = None
    picker: Annotated[
        list[str] | None,
        flag(ENVOY.panel, f"Address of `maitred scheduler --ext-proc`. Repeatable. Default: {_DEFAULT_PICKER}.", "ADDRESS"),
    ] = None
    picker_tls: Annotated[bool | None, flag(ENVOY.panel, "The pickers have certificates (--ext-proc-tls-cert).", SWITCH)] = None
    admin: Annotated[str, flag(ENVOY.panel, "Address of Envoy's own pages, or `none`. Default: 127.0.0.1:9901.", "ADDRESS")] = (
        "127.0.0.1:9901"
    )
    body_mode: Annotated[
        str, flag(ENVOY.panel, f"How bodies are sent to the picker: {', '.join(_BODY_MODES)}. Default: buffered.", "MODE")
    ] = "buffered"


@command(EnvoyFlags, ENVOY)
def run(flags: EnvoyFlags) -> None:
    """Print the configuration of an Envoy in front of engines, for `envoy -c`. It asks `maitred scheduler --ext-proc`.

    Clients are served over HTTP/1.1 and HTTP/2 on --host and --port, with TLS if there is a certificate. See docs/envoy.md.
    """
    import yaml

    from maitred.config import load
    from maitred.gateway.envoy.bootstrap import bootstrap

    config = load(flags.config, flags=flags.values, flag_names=run.flag_names, env=os.environ)
    typer.echo(yaml.safe_dump(bootstrap(_plan(config, flags)), sort_keys=False, width=128), nl=False)


def _plan(config: Config, flags: EnvoyFlags) -> EnvoyPlan:
    from maitred.gateway.envoy.bootstrap import EnvoyPlan

    gateway = config.gateway
    if not gateway.backends:
        raise ConfigError("no backend is named", where="--backend", hint="--backend http://127.0.0.1:9001, once for each")
    if flags.body_mode not in _BODY_MODES:
        raise ConfigError(f"no mode is called {flags.body_mode}", where="--body-mode", hint=" or ".join(_BODY_MODES))
    return EnvoyPlan(
        backends=gateway.backends,
        pickers=[_address(picker, "--picker") for picker in flags.picker or (_DEFAULT_PICKER,)],
        listen=LinkAddress(gateway.host, gateway.port),
        admin=None if flags.admin == "none" else _address(flags.admin, "--admin"),
        tls_cert=gateway.tls_cert,
        tls_key=gateway.tls_key,
        picker_tls=bool(flags.picker_tls),
        body_mode=_BODY_MODES[flags.body_mode],
        max_body_bytes=gateway.max_body_bytes,
    )


def _address(text: str, where: str) -> LinkAddress:
    try:
        address = LinkAddress.parse(text)
    except ValueError:
        raise ConfigError(f"{text} is no address", where=where, hint="host:port, as in 10.0.0.5:9002") from None
    if address.port is None:
        raise ConfigError(f"{text} is a Unix socket", where=where, hint="host:port, as in 10.0.0.5:9002")
    return address
