"""The files that a run writes."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from maitred.cli.simulate.flags import Flags
from maitred.errors import ConfigError

if TYPE_CHECKING:
    from maitred.report import OutputFile
    from maitred.workload import Trace


def outputs(flags: Flags, trace: Trace | None, stack: ExitStack) -> list[OutputFile | None]:
    from maitred.report import OutputFile

    named = {"--results-path": flags.results_path, "--metrics-path": flags.metrics_path, "--decision-log": flags.decision_log}
    inputs = {
        "--trace": trace.path if trace else None,
        "--workload-spec": flags.workload_spec,
        "--config": flags.config,
        "--admission-config": flags.admission_config,
        "--policy-config": flags.policy_config,
    }
    taken = {os.path.realpath(path): f"{flag} reads" for flag, path in inputs.items() if path and path.is_file()}
    for flag, path in named.items():
        use = f"{flag} writes to"
        other = taken.setdefault(os.path.realpath(path), use) if path else use
        if other != use:
            raise ConfigError(f"{path} is already what {other}", where=flag, hint="name another file")
    return [stack.enter_context(OutputFile(path, where=flag)) if path else None for flag, path in named.items()]
