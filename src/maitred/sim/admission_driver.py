"""Admission driver: the live admission core in virtual time, with the inputs that a gateway would give it.

The driver submits requests, carries out the decisions of the core, and keeps the timer of the core in the event queue.

Each model has `cluster.capacity` slots, or else as many as the batches of all instances hold, which is what live backends
report, or as many as are learned of them (`slot_learning`). The classes of a workload are effective classes, as in the log of
a gateway. The class cap of a tenant applies to tenants that a policy names. The cost of a request is computed from what a
gateway knows: the prompt, and the output limit that the client set. The true length of the answer stays the
secret of the workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

import msgspec

from maitred.admission import (
    EMPTY_LOAD,
    Action,
    Admission,
    AdmissionConfig,
    LoadProbe,
    ReleaseReason,
    overcommit_problem,
)
from maitred.admission.learned_slots import START_SLOTS
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.instance import InstanceConfig
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import EventQueue, SimEventKind
from maitred.sim.lifecycle import AdmissionLifecycle
from maitred.sim.request_state import RequestState
from maitred.sim.results import NEVER, Outcome
from maitred.sim.timeline_log import TimelineLog
from maitred.workload import Job

_ADMIT, _REJECT, _PREEMPT = Action.ADMIT, Action.REJECT, Action.PREEMPT_SLOT


class AdmissionDriver:
    """The admission core, and everything that a driver of it does."""

    def __init__(
        self,
        config: AdmissionConfig,
        capacity: int,
        log: DecisionLog | None,
        load_probe: LoadProbe,
        event_queue: EventQueue,
    ) -> None:
        """`capacity` is in slots, for each model."""
        self.core = Admission(config, {}, load_probe, log)
        self._load_probe = load_probe
        self._config = config
        self._capacity, self._lead = capacity, NO_LEAD
        self._event_queue = event_queue
        self.known_models: dict[str, None] = {}
        """The models for which requests have come, in that order."""
        self._capped_tenants = config.tenant_policies if config.uses_classes else {}
        self.rejections: Counter[str] = Counter()
        """Rejected requests by reason."""
        self._timer_at: Micros | None = None
        """The instant of the valid ADMISSION entry in the event queue."""
        self._lifecycle: AdmissionLifecycle
        self.timeline_log: TimelineLog | None = None
        """Is told of the decisions, if it is not None."""
        self._is_applying = False
        """Whether decisions are being carried out."""
        self._ended: list[tuple[RequestId, ReleaseReason]] = []
        """Requests that have ended while decisions were carried out: they were admitted, and no instance serves."""

    def slots_of_instances(self, cluster: ClusterConfig, instance: InstanceConfig) -> Sequence[int] | None:
        """Return the slots of each instance, which it reports, or which are its equal share of the capacity, rounded up; None
        where slots are no limit of an instance."""
        if self._config.mode != "priority":
            return None
        configs = cluster.instance_configs(instance)
        if cluster.capacity is None and cluster.slots == "reported":
            return [each.max_num_seqs for each in configs]
        return [ceil(self._capacity / cluster.num_instances)] * len(configs)

    def attach(self, lifecycle: AdmissionLifecycle) -> None:
        """Set the object that carries out the effects of decisions. Call this once, before any request arrives."""
        self._lifecycle = lifecycle

    def with_effective_class(self, job: Job) -> Job:
        """Return `job` with the class that the cap of its tenant allows."""
        request = job.request
        if request.tenant not in self._capped_tenants:
            return job
        effective = min(request.priority_class, self._config.class_cap(request.tenant))
        return msgspec.structs.replace(job, request=msgspec.structs.replace(request, priority_class=effective))

    def submit(self, request: Request, now: Micros) -> None:
        """Ask for a slot for a request, and carry out the decisions."""
        core = self.core
        if request.model not in self.known_models:
            self.known_models[request.model] = None
            core.resize(request.model, self._capacity, now, self._lead)
        cost = request.prompt_tokens + (request.max_output_tokens or 0)
        load = self._load_probe(request.model, now) if core.reads_load else EMPTY_LOAD
        self._apply(core.submit(core.make_ticket(request, cost), now, load), now)

    def confirm_first_byte(self, request: Request, now: Micros) -> None:
        """Report the first token of a request. The client of a streamed response has seen it, so no retry is possible."""
        if request.stream:
            self.core.confirm_first_byte(request.id, now)

    def release(self, request_id: RequestId, end: ReleaseReason, now: Micros) -> None:
        """Report the end of a request, and carry out the decisions that follow, such as the admission of the next one."""
        if self._is_applying:
            self._ended.append((request_id, end))  # The next one may end likewise, and so on: a loop, where calls would nest.
            return
        self._apply(self.core.release(request_id, end, now), now)

    def resize(self, capacity: int, now: Micros, lead: Lead) -> None:
        """Set the slots of each model, of which `lead` are beyond what instances run at once, and carry out what follows."""
        self._capacity, self._lead = capacity, lead
        for model in self.known_models:
            self._apply(self.core.resize(model, capacity, now, lead), now)

    def on_timer(self, now: Micros) -> None:
        """Let the core do what is due at `now`, such as queue timeouts."""
        self._timer_at = None
        self._apply(self.core.advance(now), now)

    def _apply(self, decisions: Sequence[Decision], now: Micros) -> None:
        """Carry out the decisions in their order, and then the decisions that follow from them; set the timer."""
        # The release of a victim is a later input of the core than the submit that asked for its slot, so the decisions that
        # follow from it come after the rest of this batch.
        self._is_applying = True
        while decisions:
            after: list[Decision] = []
            for decision in decisions:
                state = self._lifecycle.live.get(decision.subject)
                if state is None:
                    continue  # The request has ended at this very instant.
                if self.timeline_log is not None:
                    self.timeline_log.on_decision(decision)
                action = decision.action
                if action is _ADMIT:
                    self._lifecycle.on_admitted(state, now)
                elif action is _REJECT:
                    self.rejections[decision.reason] += 1
                    self._lifecycle.finish(state, Outcome.REJECTED, now)
                elif action is _PREEMPT:
                    after += self._preempt(state, now)
            for request_id, end in self._ended:
                after += self.core.release(request_id, end, now)
            self._ended.clear()
            decisions = after
        self._is_applying = False
        # Only an earlier deadline needs a new entry. A timer that fires too early finds nothing due and is set again, which is
        # cheaper than removing its entry whenever the request that it stands for is admitted.
        due = self.core.next_deadline()
        if due is not None and (self._timer_at is None or due < self._timer_at):
            self._timer_at = due
            self._event_queue.push(due, SimEventKind.ADMISSION)

    def _preempt(self, state: RequestState, now: Micros) -> Sequence[Decision]:
        """Stop a request that loses its slot, and return the decisions that follow.

        A decision about the request itself means that it may try again. Otherwise it ends as PREEMPTED.
        """
        request_id, replica = state.request.id, state.replica
        # Withdrawn first, because the release may give this very request another slot at once.
        self._lifecycle.withdraw(state, now)
        decisions = self.core.release(request_id, ReleaseReason.SLOT_PREEMPTED, now)
        if any(decision.subject == request_id for decision in decisions):
            state.retries += 1
            state.attempts = 1
            state.admitted_at = state.queued_at = NEVER
        else:
            self._lifecycle.finish(state, Outcome.PREEMPTED, now, None, replica)
        return decisions


def make_admission_driver(
    cluster: ClusterConfig,
    instance: InstanceConfig,
    admission: AdmissionConfig | None,
    log: DecisionLog | None,
    load_probe: LoadProbe,
    event_queue: EventQueue,
) -> AdmissionDriver | None:
    """Return the driver of the configured admission, or None if every request may enter.

    If `admission` is None, the default classes apply if `cluster` limits slots, and otherwise every request may enter.
    `load_probe` returns the load of the instances.

    Raises ConfigError for limits that contradict each other, and for reservations that do not fit.
    """
    config = admission or AdmissionConfig(mode="priority" if cluster.limits_slots else "off")
    if config.admits_all:
        return None
    reported = sum(each.max_num_seqs for each in cluster.instance_configs(instance)[: cluster.num_instances])
    capacity = cluster.capacity or (cluster.num_instances * START_SLOTS if cluster.slots == "learned" else reported)
    if config.mode == "legacy":
        config = _with_global_limit(config, cluster.capacity)
    is_checked = config.mode == "priority" and cluster.slots != "learned"  # A number that is being learned says nothing yet.
    problem = overcommit_problem(config, capacity) if is_checked else None
    if problem and config.on_overcommit == "legacy" and config.preset.bootstrap_capacity is None:
        hint = "on_overcommit: clamp scales them down; a live gateway would serve without classes"
        raise ConfigError(problem, where="admission", hint=hint)
    return AdmissionDriver(config, capacity, log, load_probe, event_queue)


def _with_global_limit(config: AdmissionConfig, capacity: int | None) -> AdmissionConfig:
    """Return the configuration of mode legacy with `capacity` as its one limit for all models."""
    legacy = config.legacy
    if capacity is None or legacy.max_concurrent_requests == capacity:
        return config
    if legacy.max_concurrent_requests > 0:
        what = f"a capacity of {capacity} and legacy.max_concurrent_requests of {legacy.max_concurrent_requests}"
        raise ConfigError(f"{what} are two limits for one thing", where="admission", hint="give one of them")
    limit = msgspec.structs.replace(legacy, max_concurrent_requests=capacity)
    return msgspec.structs.replace(config, legacy=limit)
