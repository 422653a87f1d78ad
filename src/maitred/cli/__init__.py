"""The command line of maitred.

    app                                     the list of all commands, and how a command ends
    serve, engine, demo                     the gateway, with several processes in workers; an emulated engine; both under load
    made_gateway                            the gateway that `serve` makes of its configuration
    scheduler, picker                       the scheduler of several gateways, as a process of its own, and for Envoy
    envoy_config                            `envoy-config`: the configuration of such an Envoy
    simulate, study, validation             `simulate`; `compare`, `sweep` and `capacity`; `validate`
    verify, why                             a log of decisions, run again: is it true, and what happened to a request
    tune                                    rules for an SLO, searched by replays of such a log
    replay                                  recorded traffic under another configuration
    bench, calibration                      `bench`, with the names of vLLM's benchmark in vllm_names; `calibrate`
    check, listings, traces                 `check`; `policies`, `formats` and `models`; `convert`
    config_flags, gateway_flags             a row for each flag that stands for a key: its key and its aliases
    flags                                   the type, default and help of a flag, from its key; what a shell offers
    shared_flags, program_flags, smg_flags  flags that stand for no single key; live_flags: those of `serve` and `scheduler`
    usage                                   the short help, and errors about flags in our words
    outputs, terminal                       files that a run writes; what a terminal can show

This module imports none of them, because it is the first that runs: importing the rest takes a moment, in which a SIGHUP would
end a gateway. Who rotates logs or renews certificates sends it without asking whether the gateway has started, and its files
may have been read before the change that the signal tells of. So the signal is noted (`hold_hangups`), and made up for by a
reload once the gateway serves.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130  # 128 + SIGINT
_hangup_came = False


def main() -> NoReturn:
    """Run the command line of this process: the entry point `maitred`. Always raises SystemExit."""
    if sys.argv[1:2] in (["serve"], ["scheduler"]):
        hold_hangups()
    try:
        from maitred.cli.app import run
    except KeyboardInterrupt:  # Importing takes a moment, too: Ctrl-C ends it without a traceback, as it ends a command.
        sys.exit(INTERRUPTED)
    atexit.register(gc.freeze)  # the interpreter looks for cycles as it ends, which takes it 0.08 s among all the modules
    run()


def hold_hangups() -> None:
    """Note each SIGHUP from now on, where nothing else handles it."""
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, _note_hangup)


def hangup_came() -> bool:
    """Return whether a SIGHUP was noted."""
    return _hangup_came


def _note_hangup(number: int, frame: FrameType | None) -> None:
    global _hangup_came  # noqa: PLW0603  (a process has one SIGHUP)
    _hangup_came = True
