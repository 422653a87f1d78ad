"""The workload that flags describe (`maitred.workload.load`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from maitred.cli.simulate.synthetic_flags import SyntheticFlags
from maitred.cli.simulate.workload_flags import WorkloadFlags

if TYPE_CHECKING:
    from maitred.cli.simulate.flags import Flags
    from maitred.workload import Job, Trace, Workload
    from maitred.workload.load import Load


def load_of(flags: WorkloadFlags | SyntheticFlags) -> Load:
    """What the flags say of a workload; those of the same names."""
    from maitred.workload.load import Load

    said: dict[str, Any] = {name: getattr(flags, name) for name in Load.__struct_fields__}
    said["workload_spec"] = None if said["workload_spec"] is None else str(said["workload_spec"])
    return Load(**said)


def specification(flags: Flags) -> Workload | None:
    """What --workload-spec says; None: it is not there. Raises ConfigError for a file that is wrong."""
    from maitred.workload import load

    return load.read_workload_spec(load_of(flags), load.as_flag)


def opened(flags: Flags) -> Trace:
    """What --trace names. Raises ConfigError for what cannot be read."""
    from maitred.workload import load

    return load.open_load_trace(load_of(flags), load.as_flag)


def described(flags: Flags) -> str:
    """The workload in a few words."""
    from maitred.workload import load

    return load.describe(load_of(flags))


def jobs_of(flags: Flags, trace: Trace | None, workload: Workload | None) -> Iterable[Job]:
    """Raises ConfigError for what cannot be."""
    from maitred.workload import load

    return load.build_jobs(load_of(flags), flags.seed, trace, workload, load.as_flag)
