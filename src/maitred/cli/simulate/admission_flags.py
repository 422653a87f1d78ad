"""Flags of `maitred simulate`: what stands before the router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maitred.cli.flags import flag

_ADMISSION = "Admission, in front of the router (default: none)"


@dataclass(frozen=True, kw_only=True)
class AdmissionFlags:
    """May it enter now?"""

    admission: Annotated[
        str | None,
        flag(_ADMISSION, "--admission", "off: all enter; legacy: one limit, one queue; priority: classes.", "MODE"),
    ] = None
    capacity: Annotated[
        int | None,
        flag(_ADMISSION, "--capacity", "Slots for each model; alone: priority. Default: what the batches hold.", "SLOTS"),
    ] = None
    admission_config: Annotated[
        Path | None,
        flag(
            _ADMISSION,
            "--admission-config",
            "The section `admission` as a file of its own, such as SMG's.",
            "FILE",
            alias="--priority-scheduler-config",
        ),
    ] = None


KEYS: Final[Mapping[str, str]] = {
    "admission": "admission.mode",
    "capacity": "cluster.capacity",
}
"""The keys of the configuration that flags stand for."""
