"""What learned slots go by: what an engine publishes, what the driver counts of its own requests, and what the pool wants.

All of it is plain data, so that a log of it can be run again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from maitred.core.units import Micros


class EngineReading(msgspec.Struct, frozen=True):
    """One look at the metrics of an engine."""

    running: int
    """Requests in the running batch. It dips by one or two between the end of a request and the start of the next."""
    waiting: int
    """Requests in the engine's own queue that wait for capacity."""
    kv_usage: float = 0.0
    """Share of the KV memory in use, 0 to 1; 0 if the engine does not publish it."""
    kv_preemptions: int = msgspec.field(default=0, name="preemptions")
    """Requests that lost their KV since the engine started; 0 if the engine does not publish it."""
    progress: int | None = None
    """A counter that grows while the engine works, such as generated tokens; None without one. It goes back when the engine
    starts anew."""


class OwnLoad(msgspec.Struct, frozen=True):
    """The counts that a driver keeps of its requests to one engine. See `own_requests`."""

    in_flight: int = 0
    most_in_flight: int = 0
    """The most in flight since the last reading."""
    answered: int = 0
    """Streamed requests that have begun to answer and are not silent."""
    unanswered: int = 0
    """Requests without any data, sent longer ago than a dispatch and two steps take."""
    overdue: int = 0
    """Streamed requests without any data, sent longer ago than their prompt explains."""
    silent: int = 0
    """Streamed requests that began to answer and then gave nothing for ten times the gap between tokens."""
    unstreamed: int = 0
    """Requests whose answer comes as a whole."""
    held_tokens: int = 0
    """Tokens of prompt and answer so far of the answered requests."""
    mean_prompt: float = 0.0
    """Mean prompt of the requests in flight, tokens."""
    output_age: float = 0.0
    """Mean output so far of a request met at random, tokens: E[o²] / (2 E[o]) over the requests that have ended."""
    longest_output: int = 0
    """The longest output seen so far, tokens."""
    ended: int = 0
    """Requests that have ended, in whatever way."""
    failed: int = 0
    """Of these, requests that the engine failed."""
    ended_per_sec: float = 0.0
    service_time: Micros = 0
    """Mean time from dispatch to end, µs."""
    token_gap: Micros = 0
    """Mean time between two tokens of one stream, µs; 0 before two were seen."""
    ttft_excess: Micros = 0
    """Median time by which first tokens came later than prompts explain, µs."""


class PoolDemand(msgspec.Struct, frozen=True):
    """The demand for slots in front of the engine."""

    wanted: bool = False
    """Whether a request waits for a slot (and not for the limit of its tenant)."""
    held: int = 0
    """Idle slots that reservations withhold from the least urgent request that waits."""
    keeps_lead: bool = False
    """Whether slots beyond the limit would be kept for urgent requests (`classes/lead_watch.py`), and those would come here."""


NO_DEMAND = PoolDemand()


class SlotState(StrEnum):
    """How sure the controller is."""

    EXPLORING = "exploring"
    """No limit is known; slots grow while requests wait and the engine has no queue."""
    TRUSTED = "trusted"
    """The limit was confirmed by a queue in the engine."""
    PROBING = "probing"
    """The limit is old: for a moment there are a few more slots, to see whether the engine takes more."""
    SHARED = "shared"
    """Requests of others run in the engine, too."""
    CONTENDED = "contended"
    """Others fill the engine's own queue and do not yield, so these slots do not yield either."""
    BLIND = "blind"
    """There are no metrics, or none that can be believed: the requests' own streams are the signal."""
    GUESSED = "guessed"
    """There are neither metrics nor streams: the number is a guess."""


class SlotReason(StrEnum):
    """Why the number of slots changed."""

    CONFIRMED = "confirmed"
    """Requests wait in the engine: what runs there is its limit."""
    MORE_RUNNING = "more_running"
    """More runs than the limit that was believed."""
    RAISED = "raised"
    """All slots are used, requests wait in front, and none waits in the engine."""
    PROBE = "probe"
    PROBE_ENDED = "probe_ended"
    RECALLED = "recalled"
    """The scheduler that led before had learned it."""
    KV_MEMORY = "kv_memory"
    """More requests than these would not fit into the KV memory in the long run."""
    SHARED = "shared"
    SILENT = "silent"
    """Streams that had begun fell silent: the engine has evicted them."""
    GUESSED = "guessed"
    """Nothing can be seen of the engine."""


class LearnedLimit(msgspec.Struct, frozen=True, array_like=True):
    """The limit of one engine that was learned, for another process."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    """The limit that was believed last. What a probe lends is not in it."""
    is_trusted: bool
    """Whether it is believed still, and not searched for anew."""


class SlotDecision(msgspec.Struct, frozen=True):
    """A change of the number of slots."""

    at: Micros
    slots: int
    before: int
    reason: SlotReason
    state: SlotState
