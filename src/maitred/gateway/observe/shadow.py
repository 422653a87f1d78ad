"""ShadowFollower: lets a shadow decide beside the cores in force, with a tenth of the CPU time of this process at most.

Cores hand on what they were told and what they have decided as objects (`core.tapped_log`); that is all that is done within an
input. Twenty times a second what has come is told to the shadow, in parts of half a millisecond between which requests run.

**The tenth.** CPU time is saved up as this process uses it, a tenth of it, 0.25 s at most, and the shadow spends that. Where
it is not enough inputs pile up; at `MAX_PILED` they are skipped, from the same tenth: of those only what is here in force is
noted, and the shadow begins anew with that (`Shadow.rebase`). So it then sees samples, each of many inputs one after the other,
and `skipped_inputs` says how much it has not seen.

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

from maitred.core.decisions import DecisionLog
from maitred.core.printing import printable
from maitred.core.tapped_log import TappedLog, Told
from maitred.core.units import to_seconds
from maitred.gateway.observe.metric_families import counter, gauge
from maitred.shadow import Disagreement, Shadow, ShadowRules
from maitred.wire.clock import Clock
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
MAX_PILED: Final = 20_000
"""Inputs that wait for the shadow."""
SHARE: Final = 0.1
"""Of the CPU time of the process."""
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
    skipped_inputs: int
    cpu_secs: float
    examples: list[ShadowExample]
    """The newest of each kind, the newest first."""


class ShadowFollower:
    """The shadow of one scheduler."""

    def __init__(self, rules: ShadowRules, clock: Clock, file_log: DecisionLog | None) -> None:
        """`file_log` writes the decision log; None: there is none. Raises ConfigError for rules that cannot be."""
        self.shadow = Shadow(rules)
        self._clock = clock
        self._piled: deque[Told] = deque()
        self.log = TappedLog(file_log, self._pile)
        """What the cores in force have as their log."""
        self.problem: str | None = None
        self.num_skipped = 0
        self.cpu_secs = 0.0
        self._saved_secs, self._cpu_at = _MOST_SAVED_SECS, clock.cpu_secs()
        self._has_gap = False
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
        fresh = Shadow(rules)
        if self.problem is None:
            self.shadow.use(rules)
        else:  # It knows nothing of what is here, but what it noted before: it begins anew with what comes.
            self.shadow, self.problem = fresh, None
            log.info("a shadow decides beside again, by %s", printable(rules.name))

    def follow_all(self) -> None:
        """Tell the shadow all that has come, whatever it takes."""
        while self._piled and self.problem is None:
            self._take(self._piled.popleft())

    def state(self, most: int | None = None) -> ShadowState:
        """Return what has come of it, with so many examples at most; None: all that are kept."""
        shadow, now = self.shadow, self._clock.now()
        newest = sorted((each for some in shadow.examples.values() for each in some), key=lambda each: -each.at)
        return ShadowState(
            file=shadow.rules.name,
            active=self.problem is None,
            problem=self.problem,
            disagreements={kind.value: n for kind, n in shadow.counts.items()},
            compared=shadow.compared(),
            not_compared=shadow.lacks(),
            skipped_inputs=self.num_skipped,
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
        text = "Inputs that the shadow was not told of, for want of CPU time."
        yield counter("maitred_shadow_skipped_inputs", text, [], [([], self.num_skipped)])
        yield counter("maitred_shadow_cpu_seconds", "CPU time of the shadow.", [], [([], self.cpu_secs)])
        yield gauge("maitred_shadow_active", "1 while the shadow decides; 0: it has raised.", [], [([], self.problem is None)])

    def _pile(self, told: Told) -> None:
        if self.problem is None:
            self._piled.append(told)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_SECS)
            cpu = self._clock.cpu_secs()
            self._saved_secs = min(_MOST_SAVED_SECS, self._saved_secs + SHARE * (cpu - self._cpu_at))
            self._cpu_at = cpu
            while self._piled and self.problem is None and self._saved_secs > 0:
                self._follow()
                await asyncio.sleep(0)
            if len(self._piled) > MAX_PILED:
                await self._skip()

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

    def _take(self, told: Told) -> None:
        try:
            if self._has_gap:
                self._has_gap = False
                self.shadow.rebase(told.given.at)
            self.shadow.take(told.room, told.given, list(told.decisions))
        except Exception as error:  # a plug-in's, or a defect: nobody else is to suffer from either
            self._switch_off(error)

    async def _skip(self) -> None:
        """Leave the inputs that are piled up out, so that what comes next is of now."""
        self._has_gap = True
        while self._piled and self.problem is None:
            began = self._clock.cpu_secs()
            for _ in range(min(len(self._piled), 8 * _INPUTS_IN_STEP)):
                told = self._piled.popleft()
                self.shadow.skip(told.room, told.given, list(told.decisions))
                self.num_skipped += 1
            self._spend(began)
            await asyncio.sleep(0)

    def _switch_off(self, error: Exception) -> None:
        self.problem = f"{type(error).__name__}: {error}"[:300]
        self._piled.clear()
        log.error(
            "the shadow %s is switched off, and what is in force goes on: %s",
            printable(self.shadow.rules.name),
            printable(self.problem),
        )


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
