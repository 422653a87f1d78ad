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
        flag(_ADMISSION, "--admission", "off: all enter; legacy: one queue; priority: classes; flow-control.", "MODE"),
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
    admission_policy: Annotated[
        str | None,
        flag(
            _ADMISSION,
            "--admission-policy",
            "Who is turned away before: always-admit, reject-all, token-bucket, tier-shed, gaie-legacy.",
            "POLICY",
        ),
    ] = None
    token_bucket_capacity: Annotated[
        float | None,
        flag(_ADMISSION, "--token-bucket-capacity", "Tokens of prompts that token-bucket lets in at once.", "TOKENS"),
    ] = None
    token_bucket_refill_rate: Annotated[
        float | None, flag(_ADMISSION, "--token-bucket-refill-rate", "And per second.", "TOKENS")
    ] = None
    policy_config: Annotated[
        Path | None,
        flag(_ADMISSION, "--policy-config", "A policy bundle of BLIS: admission, routing, scheduler, ...", "FILE"),
    ] = None


KEYS: Final[Mapping[str, str]] = {
    "admission": "admission.mode",
    "capacity": "cluster.capacity",
    "admission_policy": "admission.policy",
    "token_bucket_capacity": "admission.token_bucket_capacity",
    "token_bucket_refill_rate": "admission.token_bucket_refill_rate",
}
"""The keys of the configuration that flags stand for."""
