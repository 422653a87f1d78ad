"""The format of the scenarios file. A key that stands here is understood; any other makes its scenario fail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from ..smg_conformance.scenario import CannotCheck

CHARACTERS_PER_TOKEN = 5


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway and its backends are configured."""

    backend_capacity_tokens: list[int | None]
    """Of b1, b2, ...; null: its metrics do not say."""
    router: Literal["tr", "default"] = "tr"
    scheduler_interval_s: float = 5.0
    metrics: bool = False
    profile: bool = False
    acting_token_weight: float = 1.0
    use_acting_token_decay: bool = False
    max_wait_s: float | None = None
    note: str = ""

    @property
    def backends(self) -> list[str]:
        """The names of the backends."""
        return [f"b{number}" for number in range(1, len(self.backend_capacity_tokens) + 1)]

    def fits_somewhere(self, tokens: int) -> bool:
        """Whether a backend without programs would take one of so many tokens."""
        return any(capacity is None or tokens + 100 <= capacity for capacity in self.backend_capacity_tokens)


class _Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    note: str = ""


class ChunkGate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gate: str
    after_chunks: int


class Send(_Step, frozen=True, kw_only=True):
    """A request of a program; `answer...` is what the engine is to do with it."""

    program: str | None = None
    estimate: int | None = None
    payload_characters: int | None = None
    answer_prompt_tokens: int | None = None
    answer_total_tokens: int | None = None
    answer_cached_tokens: int | None = None
    answer_usage: bool | dict[str, Any] | None = True
    """Whether it has a usage; or exactly this one."""
    answer_status: int = 200
    answer_delay_s: float = 0.0
    answer_chunks: int = 1
    stream: bool = False
    gate: str | None = None
    """The engine answers when it is opened."""
    chunk_gate: ChunkGate | None = None
    """The engine goes on after so many chunks when it is opened."""
    payload_extra: dict[str, Any] = {}
    headers: dict[str, str] = {}
    client_leaves_after_s: float | None = None

    def __post_init__(self) -> None:
        if (self.estimate is None) == (self.payload_characters is None):
            raise ValueError("give either estimate or payload_characters")

    @property
    def characters(self) -> int:
        """Of the whole body."""
        if self.payload_characters is not None:
            return self.payload_characters
        assert self.estimate is not None
        return self.estimate * CHARACTERS_PER_TOKEN

    @property
    def prompt_tokens(self) -> int:
        """As the answer reports them."""
        estimate = self.characters // CHARACTERS_PER_TOKEN
        return estimate if self.answer_prompt_tokens is None else self.answer_prompt_tokens

    @property
    def total_tokens(self) -> int:
        """As the answer reports them."""
        return self.prompt_tokens if self.answer_total_tokens is None else self.answer_total_tokens


class Run(Send, frozen=True, kw_only=True, tag="run"):
    """Send it and wait for the answer."""


class Start(Send, frozen=True, kw_only=True, tag="start"):
    """Send it in the background."""


class WaitSecs(_Step, frozen=True, kw_only=True, tag="wait_s"):
    s: float


class WaitAnswer(_Step, frozen=True, kw_only=True, tag="wait_answer"):
    program: str


class WaitAll(_Step, frozen=True, kw_only=True, tag="wait_all"):
    """Wait for all answers."""


class WaitState(_Step, frozen=True, kw_only=True, tag="wait_state"):
    program: str
    state: str | None = None
    status: str | None = None
    backend: str | None = None


class Disconnect(_Step, frozen=True, kw_only=True, tag="disconnect"):
    """The client of the last request of a program closes its connection."""

    program: str


class OpenGate(_Step, frozen=True, kw_only=True, tag="open_gate"):
    gate: str


class Observe(_Step, frozen=True, kw_only=True, tag="observe"):
    name: str = msgspec.field(name="as")


class Release(_Step, frozen=True, kw_only=True, tag="release"):
    program: str


class RecordStateChanges(_Step, frozen=True, kw_only=True, tag="record_state_changes"):
    s: float


class StartBackend(_Step, frozen=True, kw_only=True, tag="start_backend"):
    """It was down when the gateway started, or has been stopped."""

    backend: str


class StopBackend(_Step, frozen=True, kw_only=True, tag="stop_backend"):
    """It breaks off its connections and refuses others."""

    backend: str


Step: TypeAlias = (
    Run
    | Start
    | WaitSecs
    | WaitAnswer
    | WaitAll
    | WaitState
    | Disconnect
    | OpenGate
    | Observe
    | Release
    | RecordStateChanges
    | StartBackend
    | StopBackend
)


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    kind: Literal["match", "defect", "mixed"]
    title: str
    config: Config
    timeline: list[Step] | str
    expect: dict[str, Any]
    note: str = ""

    @property
    def steps(self) -> list[Step]:
        """The timeline. Raises CannotCheck if it is said in words."""
        if isinstance(self.timeline, str):
            raise CannotCheck(f"the timeline {self.timeline!r}")
        return self.timeline

    @property
    def sends(self) -> list[Send]:
        return [step for step in self.steps if isinstance(step, Send)]

    @property
    def programs(self) -> set[str]:
        """All programs that the timeline names."""
        return {send.program for send in self.sends if send.program is not None}

    @property
    def observations(self) -> set[str]:
        return {step.name for step in self.steps if isinstance(step, Observe)}

    @property
    def down_at_start(self) -> set[str]:
        """The backends that are started before anything else was done with them."""
        first: dict[str, Step] = {}
        for step in self.steps:
            if isinstance(step, (StartBackend, StopBackend)):
                first.setdefault(step.backend, step)
        return {name for name, step in first.items() if isinstance(step, StartBackend)}


VARIANT = re.compile(r"(decay|metrics|profile)_(on|off)")
_SWITCHES = {"decay": "use_acting_token_decay", "metrics": "metrics", "profile": "profile"}


def variants(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """What is to be played: the scenario itself, or each of those that `expect` tells apart (`decay_on`, `decay_off`), with
    what is expected of it."""
    found = {key: match for key in scenario.expect if (match := VARIANT.fullmatch(key))}
    if not found:
        yield "", scenario
        return
    common = {key: value for key, value in scenario.expect.items() if key not in found}
    for key, match in found.items():
        config = msgspec.structs.replace(scenario.config, **{_SWITCHES[match[1]]: match[2] == "on"})
        if not isinstance(scenario.expect[key], Mapping):
            raise CannotCheck(f"{key}: {scenario.expect[key]!r}")
        yield key, msgspec.structs.replace(scenario, config=config, expect={**common, **scenario.expect[key]})


def read_scenario(raw: msgspec.Raw | bytes) -> Scenario:
    """Raises CannotCheck."""
    try:
        scenario = msgspec.json.decode(raw, type=Scenario)
    except msgspec.ValidationError as error:
        raise CannotCheck(str(error)) from error
    if not isinstance(scenario.timeline, str):
        _check_names(scenario)
    return scenario


def _check_names(scenario: Scenario) -> None:
    """A name that stands for nothing is a mistake in the file, or something that is not understood."""
    gates = {send.gate for send in scenario.sends} | {send.chunk_gate.gate for send in scenario.sends if send.chunk_gate}
    known = {"program": scenario.programs, "gate": gates, "backend": {*scenario.config.backends}}
    for step in scenario.steps:
        for field, names in known.items():
            name = None if isinstance(step, Send) else getattr(step, field, None)
            if name is not None and name not in names:
                raise CannotCheck(f"{type(step).__name__} names the {field} {name!r}")
