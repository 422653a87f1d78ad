"""The entrance of the virtual world: the live admission core, told what a gateway would have told it.

Each model has as many slots as `cluster.capacity` says, or else as many as the batches of all instances hold, which is what
live backends report. A workload's classes are effective ones, as a gateway's log has them; the cap of a tenant applies to
tenants that a policy names. What a request costs is known only as far as a gateway knows it: the prompt, and what the client
allowed. How long its answer will really be stays the workload's secret.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maitred.admission import NO_LOAD, Admission, AdmissionConfig, Look, RecordedAdmission, overcommit
from maitred.decisions import Decision, DecisionLog
from maitred.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.request import Request
from maitred.sim.config import ClusterConfig
from maitred.units import Micros
from maitred.workload import Job


class Entrance:
    """A core, and who comes before it."""

    def __init__(self, config: AdmissionConfig, capacity: int, log: DecisionLog | None, look: Look) -> None:
        """`capacity` is in slots, for each model."""
        self.core = Admission(config, {}, look) if log is None else RecordedAdmission(config, {}, log, look)
        self._look = look
        self._config = config
        self._capacity = capacity
        self._models: set[str] = set()
        self._capped = config.tenant_policies if config.reads_classes else {}

    def identify(self, job: Job) -> Job:
        """`job` with its effective class."""
        request = job.request
        if request.tenant not in self._capped:
            return job
        effective = min(request.priority_class, self._config.cap(request.tenant))
        return Job(msgspec.structs.replace(request, priority_class=effective), job.output_tokens)

    def submit(self, request: Request, now: Micros) -> Sequence[Decision]:
        """It asks for a slot of its model."""
        if request.model not in self._models:
            self._models.add(request.model)
            self.core.resize(request.model, self._capacity, now)
        cost = request.prompt_tokens + (request.max_output_tokens or 0)
        load = self._look(request.model, now) if self.core.reads_load else NO_LOAD
        return self.core.submit(self.core.ticket(request, cost), now, load)


def entrance(
    cluster: ClusterConfig,
    instance: InstanceConfig,
    admission: AdmissionConfig | None,
    log: DecisionLog | None,
    look: Look,
) -> Entrance | None:
    """What stands before the router; None: nothing, all may enter. `admission` is None when nobody said anything of it: then
    there are classes if there is a capacity, and else nothing. `look` tells how loaded the instances are.

    Raises ConfigError for limits that contradict each other, and for reservations that do not fit.
    """
    config = admission or AdmissionConfig(mode="off" if cluster.capacity is None else "priority")
    if config.admits_everybody:
        return None
    capacity = cluster.capacity or cluster.num_instances * instance.max_num_seqs
    if config.mode == "legacy":
        return Entrance(_limited(config, cluster.capacity), capacity, log, look)
    problem = overcommit(config, capacity) if config.mode == "priority" else None
    if problem and config.on_overcommit == "legacy" and config.flavour != "smg":
        hint = "on_overcommit: clamp scales them down; a live gateway would serve without classes"
        raise ConfigError(problem, where="admission", hint=hint)
    return Entrance(config, capacity, log, look)


def _limited(config: AdmissionConfig, capacity: int | None) -> AdmissionConfig:
    """Without classes, one limit is for all models."""
    legacy = config.legacy
    if capacity is None or legacy.max_concurrent_requests == capacity:
        return config
    if legacy.max_concurrent_requests > 0:
        what = f"a capacity of {capacity} and legacy.max_concurrent_requests of {legacy.max_concurrent_requests}"
        raise ConfigError(f"{what} are two limits for one thing", where="admission", hint="give one of them")
    limit = msgspec.structs.replace(legacy, max_concurrent_requests=capacity)
    return msgspec.structs.replace(config, legacy=limit)
