"""The command line of `maitred serve` for a scenario: ThunderAgent's flags under their names, and what is ours beside them.

A `match` is played with the flavour `thunderagent`, a `defect` with ours, what is `mixed` with both. Backends are polled often,
so that one that appears is seen within the waits of the recorded timelines. Acting programs weigh what they do in ThunderAgent
by default. No headroom is kept: the recorded programs fill the memory almost to the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
import yaml

from .scenario import Config, Release, Scenario, Start

HEALTH_INTERVAL_SECS = 0.2


class Flavour(StrEnum):
    THUNDERAGENT = "thunderagent"
    OURS = "ours"


class Files(msgspec.Struct, frozen=True):
    """The files of one gateway, in a folder of its own."""

    folder: Path

    @property
    def decision_log(self) -> Path:
        return self.folder / "decisions.jsonl"

    @property
    def profile_dir(self) -> Path:
        return self.folder / "profiles"

    def read_csv(self) -> str:
        """The profiles that were written, or nothing."""
        path = self.profile_dir / "step_profiles.csv"
        return path.read_text() if path.exists() else ""


def flavours(scenario: Scenario) -> Sequence[Flavour]:
    """With which flavours a scenario is to be played."""
    if scenario.kind == "mixed":
        return [Flavour.THUNDERAGENT, Flavour.OURS]
    if scenario.kind == "match" or _waits_oversized(scenario):
        return [Flavour.THUNDERAGENT]
    return [Flavour.OURS]


def _waits_oversized(scenario: Scenario) -> bool:
    """Whether a program larger than every backend is to be released while it waits. With ours none waits: it is refused when it
    comes."""
    if isinstance(scenario.timeline, str):
        return False
    large = {
        step.program
        for step in scenario.timeline
        if isinstance(step, Start) and not scenario.config.fits_somewhere(step.characters // 5)
    }
    return any(isinstance(step, Release) and step.program in large for step in scenario.timeline)


def command_line(config: Config, flavour: Flavour, backends: Sequence[str], files: Files) -> list[str]:
    """The arguments of `maitred serve`."""
    main = files.folder / "maitred.yaml"
    main.write_text(yaml.safe_dump({"gateway": {"health_interval_secs": HEALTH_INTERVAL_SECS}, "programs": {"headroom": 0.0}}))
    arguments = ["--config", str(main), "--strict-config", "--drain-secs", "0", "--state", "none"]
    arguments += ["--programs-flavour", flavour, "--decision-log", str(files.decision_log)]
    arguments += ["--router", config.router, "--backends", ",".join(backends)]
    arguments += ["--scheduler-interval", str(config.scheduler_interval_s)]
    if config.metrics:
        arguments += ["--metrics", "--metrics-interval", str(HEALTH_INTERVAL_SECS)]
    if config.profile:
        arguments += ["--profile", "--profile-dir", str(files.profile_dir)]
    if config.use_acting_token_decay:
        arguments += ["--use-acting-token-decay"]
    else:
        arguments += ["--acting-token-weight", str(config.acting_token_weight)]
    if config.max_wait_s is not None:
        arguments += ["--max-wait", str(config.max_wait_s)]
    return arguments
