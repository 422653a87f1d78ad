"""`maitred scheduler`: the scheduler of several gateways, as a process of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from maitred import __version__
from maitred.cli import hangup_came
from maitred.cli.flags import command
from maitred.cli.gateway_flags import SCHEDULE
from maitred.cli.live_flags import FLAG_NAMES, LiveFlags, live_values
from maitred.cli.made_gateway import this_machine
from maitred.cli.serve import load_to_serve, log_warnings, reloaded_settings
from maitred.cli.terminal import raise_file_limit

if TYPE_CHECKING:
    from maitred.config import ConfigSources, LoadedConfig
    from maitred.gateway.cluster.scheduler_gateway import SchedulerGateway
    from maitred.gateway.observe.logs import LogOutput

log = logging.getLogger("maitred.gateway")


@command(LiveFlags, *SCHEDULE)
def run(flags: LiveFlags) -> None:
    """Schedule for gateways that are processes of their own (`maitred serve --scheduler`): admission, routing, polls.

    Several of them elect the one that leads (--election), and the others stand by. Its pages (/ready, /metrics, /maitred/state)
    are on a port of their own. SIGHUP reads the configuration again. See docs/cluster.md.
    """
    from maitred.config import ConfigSources
    from maitred.gateway.observe.logs import log_to_stderr

    sources = ConfigSources(
        file=flags.config,
        admission_file=flags.admission_config,
        env=dict(os.environ),
        flags=live_values(flags),
        flag_names={**run.flag_names, **FLAG_NAMES},
    )
    loaded = load_to_serve(sources, strict=bool(flags.strict_config))
    with log_to_stderr(loaded.config.gateway) as output:
        log_warnings(loaded)
        raise_file_limit()
        _serve(sources, loaded, output)


def _serve(sources: ConfigSources, loaded: LoadedConfig, output: LogOutput) -> None:
    """Serve until a signal. Raises ConfigError if that is not possible; then no file has been made or changed."""
    from maitred.files.undo import whole_or_nothing
    from maitred.gateway.app import serve_gateway
    from maitred.wire.server import run_server

    with whole_or_nothing():
        scheduler = _make_scheduler(sources, loaded, output)
        mode = scheduler.core.config.mode
        log.info("maitred %s starts: process %d, scheduler, admission %s", __version__, os.getpid(), mode)
        ports = scheduler.open_ports()
        scheduler.open_link()
        scheduler.machine.service_manager.require_all_taken("scheduler.pages_port or that of scheduler.listen")
    run_server(serve_gateway(scheduler, ports, partial(_on_ready, scheduler, output)))


def _make_scheduler(sources: ConfigSources, loaded: LoadedConfig, output: LogOutput) -> SchedulerGateway:
    from maitred.cli.picker import ext_proc_port
    from maitred.config.shadow_file import shadow_at_start
    from maitred.gateway.cluster.link_setup import link_name, link_secret, listening_context
    from maitred.gateway.cluster.scheduler_gateway import LinkPort, SchedulerGateway
    from maitred.scheduler.interface import LinkAddress, open_election

    config, machine = loaded.config, this_machine()
    link = config.scheduler
    advertise = None if link.advertise is None else LinkAddress.parse(link.advertise)
    ext_proc = ext_proc_port(link)
    if ext_proc is not None and link.secret is None and link.secret_file is None:
        port = LinkPort(None, None, None, machine.random.randbytes(16), link_name(link))
    else:
        listen = LinkAddress.parse(link.listen)
        port = LinkPort(listen, advertise, listening_context(link), link_secret(link), link_name(link))
    make: Callable[..., SchedulerGateway] = SchedulerGateway
    if ext_proc is None and config.gateway.record is not None:
        log.warning("gateway.record: gateways record their own requests, and no other passes a scheduler without --ext-proc")
    if ext_proc is not None:
        from maitred.gateway.envoy.picker_scheduler import PickerScheduler

        make = partial(PickerScheduler, ext_proc=ext_proc)
    return make(
        config.gateway,
        config.admission,
        config.routing,
        config.programs,
        link=link,
        shadow=shadow_at_start(config),
        reload=lambda: reloaded_settings(sources),
        fallback=None if loaded.problem is None else str(loaded.problem),
        log_output=output,
        machine=machine,
        port=port,
        election=open_election(link.election, link, machine.random, machine.clock),
        pages=(link.pages_host, link.pages_port),
    )


def _on_ready(scheduler: SchedulerGateway, output: LogOutput, url: str, *admin_url: str) -> None:
    """Say where gateways connect, and where the pages are, and reload for a SIGHUP that came before."""
    config = scheduler.config
    said = f"scheduler on {_where(scheduler)}, pages on {url}, backends: {', '.join((*config.backends, *config.discover))}"
    if config.log_format == "text":  # Programs that start a scheduler wait for this line.
        output.write(f"maitred: {said}\n".encode())
    else:
        log.info("%s", said)
    if hangup_came():
        scheduler.request_reload()


def _where(scheduler: SchedulerGateway) -> str:
    """Return where those connect that the scheduler decides for."""
    picker = getattr(scheduler, "ext_proc_address", None)
    places = [None if picker is None else f"{picker} (ext_proc)", scheduler.link_address]
    return " and ".join(str(place) for place in places if place is not None)
