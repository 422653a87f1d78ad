"""What must hold of gateways and schedulers: after each turn of the loop, when all is mended, and at the end.

`held` is the truth that no scheduler knows: of each gateway that has a lease, paused or cut off as it may be, what holds a slot
by its own books; of each that has none, or was killed, what engines still run for it (an answer that it has not read holds
nothing).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from maitred.core.errors import InvariantError
from maitred.core.units import SECOND, Micros
from maitred.scheduler.link.gateway_request import GatewayRequestState
from maitred.testing.world.clients import Fate, Sent
from maitred.testing.world.cluster.faults import of_engines
from maitred.testing.world.cluster.processes import LinkedProcess
from maitred.testing.world.invariants import check_left_over, check_replay, check_requests, lives_of

if TYPE_CHECKING:
    from maitred.scheduler.interface import SchedulerHost
    from maitred.testing.world.cluster.stage import ClusterStage
    from maitred.testing.world.engines import Engine, Run

HEALED_AFTER: Final[Micros] = 10 * SECOND
"""How long after the last fault is mended a scheduler leads at the latest and has learned all, and all gateways are linked, µs:
the lease of a leader, twice that of gateways that have died, and a second until each is found."""


def num_held(stage: ClusterStage) -> int:
    """Return how many slots are held in truth."""
    by_gateways = sum(
        request.state is not GatewayRequestState.WAITING
        for process in stage.gateways
        if _has_lease(process)
        for request in process.gateway.scheduler.link.end.requests
    )
    return by_gateways + sum(_has_no_lease(stage, run) for engine in stage.engines for run in unended(engine))


def _has_lease(process: LinkedProcess) -> bool:
    """Return whether a gateway lives that may start requests, paused or cut off as it may be."""
    if not process.lives or process.lives[-1].ended_at is not None or not hasattr(process, "gateway"):
        return False
    until = process.gateway.scheduler.link.end.lease.until
    return until is not None and process.machine.clock.now() < until


def _has_no_lease(stage: ClusterStage, run: Run) -> bool:
    """Return whether the gateway of a request at an engine has been killed, or may start no other one."""
    process = None if run.connection is None else stage.process_at(run.connection.source[0])
    return isinstance(process, LinkedProcess) and (_is_of_dead(stage, run) or not _has_lease(process))


def num_at_engines(stage: ClusterStage) -> int:
    """Return how many requests are at engines, but for those that their gateways have let go, which the engines will notice."""
    return sum(not _is_let_go(run) or _is_of_dead(stage, run) for engine in stage.engines for run in unended(engine))


def unended(engine: Engine) -> list[Run]:
    """Return the sequences that an engine has. A request that it hangs with is none, and its metrics do not count it."""
    return [run for run in engine.runs[-200:] if run.ended_at is None and not run.hangs]


def _is_let_go(run: Run) -> bool:
    source: Any = None if run.connection is None else run.connection.forth.writer
    return source is None or source.is_closing()


def _is_of_dead(stage: ClusterStage, run: Run) -> bool:
    """Return whether the gateway of a request at an engine has been killed."""
    process = None if run.connection is None else stage.process_at(run.connection.source[0])
    if process is None:
        return False
    life = next((life for life in reversed(process.lives) if life.began_at <= run.began_at), None)
    return life is not None and life.was_killed


def slot_limit(stage: ClusterStage) -> int | None:
    """Return how many requests may be at all engines together, or None where that is learned."""
    scenario = stage.scenario
    if scenario.slots_per_backend is not None:
        return scenario.slots_per_backend * scenario.num_engines
    return None if scenario.hides_slots else sum(scenario.engine_limits[: scenario.num_engines])


class Checks:
    """What is checked after each turn of the loop in which something was said on a link, or came to an engine."""

    def __init__(self, stage: ClusterStage) -> None:
        self.stage = stage
        self.most_at_engines = 0
        self._num_runs = 0
        self._found: dict[str, tuple[int | None, int]] = {}
        """The last epoch of each scheduler, and how many slots were held when that began."""

    def after_turn(self) -> Iterator[str]:
        """Yield what does not hold."""
        watch = self.stage.watch
        for scheduler in self.stage.schedulers:
            epoch = None if scheduler.host is None else scheduler.host.leadership.epoch
            if epoch != self._found.get(scheduler.address, (None, 0))[0]:
                self._found[scheduler.address] = epoch, num_held(self.stage)
        if watch.speaking:
            speaking, watch.speaking = watch.speaking, set()
            yield from self._check_ends(speaking)
        if watch.granting:
            granting, watch.granting = watch.granting, set()
            yield from self._check_grants(granting)
        num_runs = sum(len(engine.runs) for engine in self.stage.engines)
        if num_runs != self._num_runs:
            self._num_runs = num_runs
            yield from self._check_engines()

    def _check_ends(self, speaking: set[str]) -> Iterator[str]:
        """Yield which ends of links contradict themselves."""
        for process in self.stage.processes:
            if process.address in speaking and process.is_up:
                try:
                    _check_end(process)
                except InvariantError as error:
                    yield f"{process.name} contradicts itself: {error}"

    def _check_grants(self, granting: set[str]) -> Iterator[str]:
        """Yield whether more slots are held than a scheduler has that has just granted some."""
        for scheduler in self.stage.schedulers:
            host = scheduler.host if scheduler.address in granting else None
            if host is None:
                continue
            slots = _believed(host)
            if self.stage.scenario.hides_slots and host.leadership.mode == "learning":
                # The one before may have lent more to a probe than the limit that it has told. Of these, what is given back is
                # granted again while it is not known what the others hold: so there are no more than it has found.
                slots = max(slots, self._found[scheduler.address][1])
            if (held := num_held(self.stage)) > slots:
                yield f"{scheduler.name} has granted a slot, and {held} of {slots} are held"

    def _check_engines(self) -> Iterator[str]:
        """Yield whether more is at the engines than they run."""
        there, most = num_at_engines(self.stage), slot_limit(self.stage)
        self.most_at_engines = max(self.most_at_engines, there)
        if most is not None and there > most:
            yield f"{there} requests are at engines, which have {most} slots"


def _check_end(process: Any) -> None:
    """Check the end of a link, and at a gateway what else an idle one checks. Raises InvariantError."""
    if hasattr(process, "schedulers"):
        for check in process.gateway.scheduler.checks().values():
            check()
    elif process.host is not None:
        process.host.end.check()


def _believed(host: SchedulerHost) -> int:
    """Return how many slots there are, as a scheduler believes."""
    return sum(host.end._slots.by_model.values())


def check_healed(stage: ClusterStage) -> Iterator[str]:
    """Yield what is not well, although nothing has failed for `HEALED_AFTER`."""
    modes = [scheduler.host.leadership.mode for scheduler in stage.schedulers if scheduler.host is not None]
    if modes.count("leading") != 1:
        yield f"nothing has failed for a while, and the schedulers are {modes}"
    for gateway in stage.gateways:
        mode = gateway.gateway.scheduler.unlinked.mode if gateway.is_up else "linked"
        if mode != "linked":
            yield f"nothing has failed for a while, and {gateway.name} is {mode}: {gateway.gateway.scheduler.link.problem}"


def check_idle(stage: ClusterStage) -> Iterator[str]:
    """Yield what is left when no client has asked for anything for a while."""
    for gateway in stage.gateways:
        if left := len(gateway.gateway.scheduler.link.end.requests):
            yield f"{left} requests are left at the link of {gateway.name}"
        if left := len(gateway.gateway.scheduler.admission.leases):
            yield f"{left} slots are held by {gateway.name}, which is idle"
    for scheduler in stage.schedulers:
        host = scheduler.host
        if host is None or host.leadership.epoch is None:
            continue
        core = host.end.requests.core
        for name in core.pool_names:
            view = core.view(name)
            if view.in_flight or view.waiting or view.capacity != host.end._slots.by_model[name]:
                yield f"{scheduler.name}, which leads, is left with {view}"


def check_end(stage: ClusterStage) -> Iterator[str]:
    """Yield what does not hold when everything has ended."""
    yield from check_left_over(stage)
    yield from check_requests(stage, stage.gateway_of)
    for sent in stage.ledger.sent.values():
        yield from _broken_stream(stage, sent, stage.gateway_of(sent.mark))
    for scheduler in stage.schedulers:
        lines = stage.decision_log(scheduler.name).read_bytes().splitlines(keepends=True)
        stage.reasons.update(filter(None, map(_reason_in, lines)))
        for life in lives_of(lines):
            yield from check_replay(life, may_lack_lines=True)


def _reason_in(line: bytes) -> str | None:
    """Return the reason of the decision of admission that a line of a log tells of, if there is one."""
    entry = msgspec.json.decode(line)
    return str(entry["decision"]["reason"]) if entry["room"] == "admission" and "decision" in entry else None


def _broken_stream(stage: ClusterStage, sent: Sent, gateway: LinkedProcess) -> Iterator[str]:
    """Yield whether a stream that had begun was broken off without a fault of its own gateway, engine or connections."""
    has_broken = sent.has_tokens or (sent.fate is Fate.CUT and sent.answer is not None and sent.answer.status == 200)
    if not has_broken or sent.was_disturbed or of_engines(stage.scenario.faults):
        return
    ended_at = sent.ended_at or 0
    runs = [run for engine in stage.engines for run in engine.runs if run.mark == sent.mark]
    is_excused = any(run.connection is not None and run.connection.is_disturbed for run in runs)
    is_excused |= gateway.was_killed_within(sent.sent_at, ended_at) or gateway.was_stopping_within(sent.sent_at, ended_at)
    if not is_excused:
        yield f"the stream of {sent.mark} was broken off ({sent.fate}, {sent.error_code}), and nothing had failed on its way"
