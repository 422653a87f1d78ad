"""ShadowFollower: lets a shadow decide beside the cores in force, with a tenth of the CPU time of this process at most.

Cores hand on what they were told and what they have decided as objects (`core.tapped_log`); that is all that is done within an
input. Twenty times a second what has come is told to the shadow, in parts of half a millisecond between which requests run.

**The tenth.** CPU time is saved up as this process uses it, `SHARE` of it, 0.25 s at most, and the shadow spends that. Where
it is not enough inputs pile up. At `MAX_PILED` it looks away: the cores have no log from then on and make no objects, and what
is piled up is told to the shadow as CPU time comes. Then it looks again, and goes on from a copy of the cores in force
(`Shadow.begin_from`). So it sees samples, each of many inputs one after the other, and `skipped_requests` says how much it has
not seen. The copy is made within one turn of the loop, 8 µs for each request that is there, so with more than `MAX_COPIED` of
them it does not look again.

A shadow that raises is switched off until the next start, or until a reload that reads its file. Nothing else comes of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from prometheus_client.core import Metric

from maitred.admission import Admission
from maitred.admission.inputs import ROOM_NAME as ADMISSION
from maitred.core.decisions import DecisionLog
from maitred.core.printing import printable
from maitred.core.tapped_log import TakenInput, TappedLog
from maitred.core.units import to_seconds
from maitred.gateway.observe.metric_families import counter, gauge
from maitred.routing import RoutingConfig
from maitred.shadow import Disagreement, Shadow, ShadowRules
from maitred.wire.clock import Clock
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
MAX_PILED: Final = 20_000
"""Inputs that wait for the shadow."""
MAX_COPIED: Final = 5_000
"""Requests that are here when the cores are copied."""
SHARE: Final = 0.07
"""Of the CPU time of the process. The objects that the cores make while it looks are a quarter to two fifths of that."""
_MOST_SAVED_SECS: Final = 0.25
_PAUSE_SECS: Final = 0.05
_INPUTS_IN_STEP: Final = 32


class ShadowExample(msgspec.Struct, frozen=True):
    """A disagreement, as it is shown."""

    kind: str
    secs_ago: float
    id: str
    """The request's id, as its client knows it, or its number; or the id of the program."""
    tenant: str
    model: str
    real: str
    shadow: str


class ShadowState(msgspec.Struct, frozen=True, kw_only=True):
    """What has come of a shadow: `GET /admin/shadow`."""

    file: str
    active: bool
    problem: str | None
    """Why it is switched off; null if it is not."""
    disagreements: dict[str, int]
    """By kind."""
    compared: dict[str, int]
    """Decisions in force that were compared, by room."""
    not_compared: dict[str, str]
    """By room what the shadow would read and what is in force does not: there nothing of it, or less, is compared."""
    skipped_requests: int
    """Requests that came while it did not look, for want of CPU time."""
    cpu_secs: float
    examples: list[ShadowExample]
    """The newest of each kind, the newest first."""


class ShadowFollower:
    """The shadow of one scheduler."""

    def __init__(self, rules: ShadowRules, routing: RoutingConfig, clock: Clock, file_log: DecisionLog | None) -> None:
        """`routing` is in force. `file_log` writes the decision log; None: there is none. Raises ConfigError for rules that
        cannot be."""
        self.shadow, self._routing = Shadow(rules, routing), routing
        self._clock = clock
        self._piled: deque[TakenInput] = deque()
        self.log = TappedLog(file_log, self._piled.append, self.shadow.rooms)
        """What the cores in force have as their log."""
        self.problem: str | None = None
        self._num_skipped = 0
        self._last_seen: tuple[Admission, int] | None = None
        """While it does not look: the core of admission when it last did, and how many requests had come there."""
        self.cpu_secs = 0.0
        self._saved_secs, self._cpu_at = _MOST_SAVED_SECS, clock.cpu_secs()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow, inside this event loop."""
        log.info("a shadow decides beside, by %s", printable(self.shadow.rules.name))
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        await end_tasks(self._task)

    def use(self, rules: ShadowRules) -> None:
        """Go by other rules. Raises ConfigError for rules that cannot be, and then nothing has changed."""
        fresh = Shadow(rules, self._routing)
        if self.problem is None:
            self.shadow.use(rules)
        else:
            self.shadow, self.problem = fresh, None
            self.log.rooms = fresh.rooms
            log.info("a shadow decides beside again, by %s", printable(rules.name))

    def follow_all(self) -> None:
        """Tell the shadow all that has come, whatever it takes."""
        while self._piled and self.problem is None:
            self._take(self._piled.popleft())

    def state(self, most: int | None = None) -> ShadowState:
        """Return the results of the shadow so far, with at most `most` examples (None: all that are kept)."""
        shadow, now = self.shadow, self._clock.now()
        newest = sorted((each for some in shadow.examples.values() for each in some), key=lambda each: -each.at)
        return ShadowState(
            file=shadow.rules.name,
            active=self.problem is None,
            problem=self.problem,
            disagreements={kind.value: n for kind, n in shadow.counts.items()},
            compared=shadow.compared(),
            not_compared=shadow.lacks(),
            skipped_requests=self.num_skipped,
            cpu_secs=round(self.cpu_secs, 3),
            examples=[_shown(each, now) for each in newest[:most]],
        )

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        counts = (([kind.value], n) for kind, n in self.shadow.counts.items())
        text = "Decisions that the shadow would have taken otherwise, by what it would have done."
        yield counter("maitred_shadow_disagreements", text, ["kind"], counts)
        text = "Decisions in force that were compared with those of the shadow."
        yield counter(
            "maitred_shadow_compared_decisions", text, ["room"], (([r], n) for r, n in self.shadow.compared().items())
        )
        text = "Requests that came while the shadow did not look, for want of CPU time."
        yield counter("maitred_shadow_skipped_requests", text, [], [([], self.num_skipped)])
        yield counter("maitred_shadow_cpu_seconds", "CPU time of the shadow.", [], [([], self.cpu_secs)])
        yield gauge("maitred_shadow_active", "1 while the shadow decides; 0: it has raised.", [], [([], self.problem is None)])

    @property
    def num_skipped(self) -> int:
        """Requests that came while it did not look."""
        core = self._core()
        if self._last_seen is None or core is None:
            return self._num_skipped
        last, arrived = self._last_seen
        return self._num_skipped + _arrived(core) - (arrived if last is core else 0)

    def look_away(self) -> None:
        """Have no more inputs handed on for now. Those that are piled up are told to the shadow all the same."""
        core = self._core()
        if self._last_seen is None and core is not None:
            self.log.tap(is_tapped=False)
            self._last_seen = core, _arrived(core)

    def look_again(self) -> None:
        """Go on with the state in which the cores are now, when all is told that was piled up."""
        began, core = self._clock.cpu_secs(), self._core()
        if core is None or len(core.tickets) > MAX_COPIED:
            return
        self._num_skipped, self._last_seen = self.num_skipped, None
        self.log.tap(is_tapped=True)
        try:
            self.shadow.begin_from(self.log.cores, self._clock.now())
        except Exception as error:  # as in `_take`
            self._switch_off(error)
        self._spend(began)

    def _core(self) -> Admission | None:
        core = self.log.cores.get(ADMISSION)
        return core if isinstance(core, Admission) else None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_SECS)
            cpu = self._clock.cpu_secs()
            self._saved_secs = min(_MOST_SAVED_SECS, self._saved_secs + SHARE * (cpu - self._cpu_at))
            self._cpu_at = cpu
            if len(self._piled) > MAX_PILED:
                self.look_away()
            while self._piled and self._saved_secs > 0:
                self._follow()
                await asyncio.sleep(0)
            if self._last_seen is not None and self.problem is None and not self._piled and self._saved_secs > 0:
                self.look_again()

    def _follow(self) -> None:
        """Tell the shadow of some inputs."""
        began = self._clock.cpu_secs()
        for _ in range(min(len(self._piled), _INPUTS_IN_STEP)):
            if self.problem is not None:
                break
            self._take(self._piled.popleft())
        self._spend(began)

    def _spend(self, began: float) -> None:
        spent = self._clock.cpu_secs() - began
        self.cpu_secs += spent
        self._saved_secs -= spent

    def _take(self, told: TakenInput) -> None:
        try:
            self.shadow.take(told.room, told.given, list(told.decisions))
        except Exception as error:  # a plug-in's, or a defect: nobody else is to suffer from either
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        self.problem = f"{type(error).__name__}: {error}"[:300]
        self.look_away()
        self._piled.clear()
        log.error(
            "the shadow %s is switched off, and what is in force goes on: %s",
            printable(self.shadow.rules.name),
            printable(self.problem),
        )


def _arrived(core: Admission) -> int:
    return sum(view.arrived for view in core.class_views().values())


def _shown(found: Disagreement, now: int) -> ShadowExample:
    named: Any = found.client_id or found.request
    return ShadowExample(
        found.kind.value,
        round(to_seconds(max(0, now - found.at)), 1),
        str(named),
        found.tenant,
        found.model,
        found.real,
        found.shadow,
    )
