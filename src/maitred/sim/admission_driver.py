"""The entrance of the virtual world: the live admission core, told what a gateway would have told it.

Each model has as many slots as `cluster.capacity` says, or else as many as the batches of all instances hold, which is what
live backends report. A workload's classes are effective ones, as a gateway's log has them; the cap of a tenant applies to
tenants that a policy names. What a request costs is known only as far as a gateway knows it: the prompt, and what the client
allowed. How long its answer will really be stays the workload's secret.

The gate: admission in the way of requests. It asks the core, does what the core decides, and sees to its timer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from maitred.admission import (
    EMPTY_LOAD,
    Action,
    Admission,
    AdmissionConfig,
    LoadProbe,
    RecordedAdmission,
    ReleaseReason,
    overcommit_problem,
)
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import InstanceConfig
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import EventQueue, SimEventKind
from maitred.sim.replica import Replica
from maitred.sim.request_state import RequestState
from maitred.sim.results import NEVER, Outcome
from maitred.workload import Job


class ModelAdmission:
    """A core, and who comes before it."""

    def __init__(self, config: AdmissionConfig, capacity: int, log: DecisionLog | None, load_probe: LoadProbe) -> None:
        """`capacity` is in slots, for each model."""
        self.core = Admission(config, {}, load_probe) if log is None else RecordedAdmission(config, {}, log, load_probe)
        self._load_probe = load_probe
        self._config = config
        self._capacity = capacity
        self._known_models: set[str] = set()
        self._capped_tenants = config.tenant_policies if config.uses_classes else {}

    def with_effective_class(self, job: Job) -> Job:
        """`job` with its effective class."""
        request = job.request
        if request.tenant not in self._capped_tenants:
            return job
        effective = min(request.priority_class, self._config.class_cap(request.tenant))
        return Job(msgspec.structs.replace(request, priority_class=effective), job.output_tokens)

    def submit(self, request: Request, now: Micros) -> Sequence[Decision]:
        """It asks for a slot of its model."""
        if request.model not in self._known_models:
            self._known_models.add(request.model)
            self.core.resize(request.model, self._capacity, now)
        cost = request.prompt_tokens + (request.max_output_tokens or 0)
        load = self._load_probe(request.model, now) if self.core.reads_load else EMPTY_LOAD
        return self.core.submit(self.core.make_ticket(request, cost), now, load)


def make_admission(
    cluster: ClusterConfig,
    instance: InstanceConfig,
    admission: AdmissionConfig | None,
    log: DecisionLog | None,
    load_probe: LoadProbe,
) -> ModelAdmission | None:
    """What stands before the router; None: nothing, all may enter. `admission` is None when nobody said anything of it: then
    there are classes if there is a capacity, and else nothing. `look` tells how loaded the instances are.

    Raises ConfigError for limits that contradict each other, and for reservations that do not fit.
    """
    config = admission or AdmissionConfig(mode="off" if cluster.capacity is None else "priority")
    if config.admits_all:
        return None
    capacity = cluster.capacity or cluster.num_instances * instance.max_num_seqs
    if config.mode == "legacy":
        return ModelAdmission(_with_global_limit(config, cluster.capacity), capacity, log, load_probe)
    problem = overcommit_problem(config, capacity) if config.mode == "priority" else None
    if problem and config.on_overcommit == "legacy" and config.flavour != "smg":
        hint = "on_overcommit: clamp scales them down; a live gateway would serve without classes"
        raise ConfigError(problem, where="admission", hint=hint)
    return ModelAdmission(config, capacity, log, load_probe)


def _with_global_limit(config: AdmissionConfig, capacity: int | None) -> AdmissionConfig:
    """Without classes, one limit is for all models."""
    legacy = config.legacy
    if capacity is None or legacy.max_concurrent_requests == capacity:
        return config
    if legacy.max_concurrent_requests > 0:
        what = f"a capacity of {capacity} and legacy.max_concurrent_requests of {legacy.max_concurrent_requests}"
        raise ConfigError(f"{what} are two limits for one thing", where="admission", hint="give one of them")
    limit = msgspec.structs.replace(legacy, max_concurrent_requests=capacity)
    return msgspec.structs.replace(config, legacy=limit)


_ADMIT, _REJECT, _PREEMPT = Action.ADMIT, Action.REJECT, Action.PREEMPT_SLOT


class RequestLifecycle(Protocol):
    """What can be done with those who ask."""

    live: dict[RequestId, RequestState]

    def on_admitted(self, journey: RequestState, now: Micros) -> None: ...

    def withdraw(self, journey: RequestState, now: Micros) -> None:
        """Its work ends at once; it has not ended yet."""
        ...

    def finish(
        self,
        journey: RequestState,
        outcome: Outcome,
        at: Micros,
        seq: SequenceState | None = None,
        replica: Replica | None = None,
    ) -> None: ...


class AdmissionDriver:
    """See the module."""

    def __init__(self, entrance: ModelAdmission, agenda: EventQueue, way: RequestLifecycle) -> None:
        self._admission = entrance
        self._core = entrance.core
        self._agenda = agenda
        self._lifecycle = way
        self._timer_at: Micros | None = None
        """When the timer rings for which there is an entry in the agenda."""

    def with_effective_class(self, job: Job) -> Job:
        """`job` with its effective class."""
        return self._admission.with_effective_class(job)

    def submit(self, request: Request, now: Micros) -> None:
        """May it enter?"""
        self._apply(self._admission.submit(request, now), now)

    def first_byte(self, request: Request, now: Micros) -> None:
        """Its first token is out: whoever streams has seen it."""
        if request.stream:
            self._core.first_byte(request.id, now)

    def release(self, request_id: RequestId, end: ReleaseReason, now: Micros) -> None:
        """It has ended, in whatever way."""
        self._apply(self._core.release(request_id, end, now), now)

    def on_timer(self, now: Micros) -> None:
        """It is up."""
        self._timer_at = None
        self._apply(self._core.advance(now), now)

    def _apply(self, decisions: Sequence[Decision], now: Micros) -> None:
        """Each in its turn. What obeying brings about is decided anew, and obeyed after the rest."""
        while decisions:
            after: list[Decision] = []
            for decision in decisions:
                journey = self._lifecycle.live.get(decision.subject)
                if journey is None:
                    continue  # it gave up at this very instant
                action = decision.action
                if action is _ADMIT:
                    self._lifecycle.on_admitted(journey, now)
                elif action is _REJECT:
                    self._lifecycle.finish(journey, Outcome.REJECTED, now)
                elif action is _PREEMPT:
                    after += self._preempt(journey, now)
            decisions = after
        due = self._core.next_deadline()
        if due is not None and (self._timer_at is None or due < self._timer_at):
            self._timer_at = due
            self._agenda.push(due, SimEventKind.ADMISSION)

    def _preempt(self, journey: RequestState, now: Micros) -> Sequence[Decision]:
        """Its slot is wanted: its work ends here and now. What is decided next, of itself too if it may try again."""
        number, replica = journey.job.request.id, journey.replica
        self._lifecycle.withdraw(journey, now)
        decisions = self._core.release(number, ReleaseReason.SLOT_PREEMPTED, now)
        if any(decision.subject == number for decision in decisions):
            journey.retries += 1
            journey.admitted_at = journey.queued_at = NEVER
        else:
            self._lifecycle.finish(journey, Outcome.PREEMPTED, now, None, replica)
        return decisions
