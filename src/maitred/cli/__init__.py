"""The command line of maitred.

    app                                     the list of all commands, and how a command ends
    serve, engine, demo                     the gateway; an emulated engine; both under load
    simulate, study, validation             `simulate`; `compare`, `sweep` and `capacity`; `validate`
    bench, calibration                      `bench`, with the names of vLLM's benchmark in vllm_names; `calibrate`
    check, listings, traces                 `check`; `policies`, `formats` and `models`; `convert`
    config_flags                            a row for each flag that stands for a key: its key and its aliases
    flags                                   the type, default and help of a flag, from its key; what a shell offers
    shared_flags, program_flags, smg_flags  flags that stand for no single key
    hangups                                 SIGHUP before the gateway can reload
    usage                                   the short help, and errors about flags in our words
    outputs, terminal                       files that a run writes; what a terminal can show

This module imports none of them, because it is the first that runs: importing the rest takes a moment, in which a SIGHUP would
end a gateway.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from maitred.cli import hangups


def main() -> NoReturn:
    """Run the command line of this process: the entry point `maitred`. Always raises SystemExit."""
    if sys.argv[1:2] == ["serve"]:
        hangups.hold()
    from maitred.cli.app import run

    run()
