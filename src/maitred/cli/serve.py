"""`maitred serve`: the live gateway."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer


def run(
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="URL", help="An OpenAI-compatible engine, as http://host:port. Once for each."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A YAML file; flags win over it.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. Default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Default 8080; 0 takes any free one.")] = None,
    slots_per_backend: Annotated[
        int | None, typer.Option("--slots-per-backend", metavar="N", help="In flight per backend and model. Default 64.")
    ] = None,
    max_body_bytes: Annotated[
        int | None, typer.Option("--max-body-bytes", metavar="BYTES", help="Largest request body. Default 32 MiB.")
    ] = None,
    router: Annotated[
        str | None, typer.Option("--router", metavar="NAME", help="Which backend: least-loaded (default), round-robin.")
    ] = None,
    drain_secs: Annotated[
        float | None, typer.Option("--drain-secs", metavar="SECS", help="For requests in flight at the end. Default 30.")
    ] = None,
    decision_log: Annotated[
        Path | None, typer.Option("--decision-log", metavar="FILE", help="Append all decisions to it, as JSON lines.")
    ] = None,
) -> None:
    """Serve OpenAI's API in front of engines: classes, queues, routing.

    Starts with backends down and serves as soon as one is up; see /ready, /metrics and /maitred/state.
    """
    from maitred.config import load
    from maitred.gateway.app import Gateway
    from maitred.wire.server import serve

    flags: dict[str, object] = {
        "gateway.backends": backend or None,
        "gateway.host": host,
        "gateway.port": port,
        "gateway.slots_per_backend": slots_per_backend,
        "gateway.max_body_bytes": max_body_bytes,
        "gateway.drain_secs": drain_secs,
        "gateway.decision_log": None if decision_log is None else str(decision_log),
        "routing.policy": router,
    }
    settings = load(
        config, flags=flags, env=os.environ, flag_names={"gateway.backends": "--backend", "routing.policy": "--router"}
    )
    _use_every_descriptor()
    gateway = Gateway(settings.gateway, settings.admission, settings.routing)

    def ready(url: str) -> None:
        typer.echo(f"maitred: gateway on {url}, backends: {', '.join(settings.gateway.backends)}", err=True)

    serve(
        gateway,
        host=settings.gateway.host,
        port=settings.gateway.port,
        drain_secs=settings.gateway.drain_secs,
        ready=ready,
    )


def _use_every_descriptor() -> None:
    """Two connections for each request, and 1024 files by default: take what this process may have without asking anybody."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses what it calls unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
