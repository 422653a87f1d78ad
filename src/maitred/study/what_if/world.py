"""ReplayWorld: a recorded run, parsed and calibrated once, to be simulated under many rules.

A run gives two columns with a row for each recorded request (`ReplayedRun`), so that runs are compared request by request. It
depends on the rules and the seed alone. A seed draws the answers that are not known, the error of the latency model and what a
router draws, and the same ones under all rules.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from os import fsdecode
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from maitred.admission import AdmissionConfig
from maitred.config import Config
from maitred.core.errors import ConfigError
from maitred.core.units import MILLISECOND
from maitred.programs import ProgramsConfig
from maitred.report.latencies import request_times
from maitred.routing import RoutingConfig
from maitred.sim import Outcome, Results
from maitred.sim.config import ClusterConfig
from maitred.study.candidate import Candidate, draw_latency_scale
from maitred.study.runs import Progress, TaskFailed, encode_unknown
from maitred.study.what_if.engines import Engines, find_engines, sequences_at_once
from maitred.study.what_if.recorded import Recorded, RecordedRequest
from maitred.study.what_if.traffic import RecordedTraffic
from maitred.study.workers import make_workers

Floats = NDArray[np.float64]
CENTRAL: Final = 0
"""The seed of the run with the latency model as it was fitted: what figures are told by. Other seeds draw its error as well."""


class ReplayedRun(msgspec.Struct, frozen=True, eq=False):
    """What came of each recorded request, by its index: times in µs, NaN where there is none."""

    ttft: Floats
    """From the arrival, of answers that stream."""
    e2e: Floats
    """From the arrival, of complete answers."""
    arrival: Floats
    """NaN: it did not arrive, because what it follows had not ended."""
    ended: Floats
    outcome: NDArray[np.int8]
    """An `Outcome`."""
    priority_class: NDArray[np.int8]
    """The class that it was given."""

    @classmethod
    def of(cls, results: Results, requests: Sequence[RecordedRequest]) -> Self:
        """Return the columns of a simulation in the order of the requests."""
        count, at = len(requests), results.request_id
        times = request_times(results)
        streams = np.array([each.stream for each in requests], dtype=bool)

        def column(values: Floats) -> Floats:
            found = np.full(count, np.nan)
            found[at] = values
            return found

        outcome = np.full(count, Outcome.UNFINISHED, dtype=np.int8)
        outcome[at] = results.outcome
        given = np.array([each.given for each in requests], dtype=np.int8)
        given[at] = results.priority_class
        return cls(
            ttft=np.where(streams, column(times.ttft), np.nan),
            e2e=column(times.e2e),
            arrival=column(results.arrival.astype(np.float64)),
            ended=column(np.where(results.finished >= 0, results.finished, np.nan)),
            outcome=outcome,
            priority_class=given,
        )


def _as_recorded(requests: Sequence[RecordedRequest]) -> ReplayedRun:
    """Return the recorded results of the requests, in the columns of a replay."""
    return ReplayedRun(
        ttft=np.array([np.nan if each.ttft is None or not each.stream else each.ttft for each in requests], dtype=np.float64),
        e2e=np.array([each.e2e if each.is_complete else np.nan for each in requests], dtype=np.float64),
        arrival=np.array([each.arrival for each in requests], dtype=np.float64),
        ended=np.array([each.arrival + each.e2e for each in requests], dtype=np.float64),
        outcome=np.array([_outcome(each) for each in requests], dtype=np.int8),
        priority_class=np.array([each.given for each in requests], dtype=np.int8),
    )


def _outcome(each: RecordedRequest) -> Outcome:
    if each.is_complete:
        return Outcome.COMPLETED
    if each.client_left:
        return Outcome.TIMED_OUT
    return Outcome.REJECTED if each.outcome.startswith("status_") else Outcome.FAILED


class ReplayWorld(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A recorded run with its engines."""

    recorded: Recorded
    engines: Engines

    @classmethod
    def calibrated(cls, recorded: Recorded, stated: dict[str, Any] | None = None) -> Self:
        """Return the world of a run. `stated` are keys of the section `instance` that are known of the engines. Raises
        ConfigError if the record shows too little of them."""
        known = (stated or {}).get("max_num_seqs")
        options = sequences_at_once(recorded) if known is None else (known,)
        worlds = [cls(recorded, find_engines(recorded, each, stated)) for each in options]
        return worlds[0] if len(worlds) == 1 else min(worlds, key=lambda world: world._distance_from_record)

    @property
    def in_force(self) -> Candidate:
        """The rules under which the run was recorded."""
        rules = self.recorded.rules
        return self._candidate(rules.admission, rules.routing, rules.programs, self._slots, self.engines.num_instances, {})

    def candidate(
        self, config: Config, instance: dict[str, Any] | None = None, *, num_instances: int | None = None
    ) -> Candidate:
        """Return the rules of a configuration of a gateway, before the same engines. Slots are those of `slots_per_backend`, or
        else as recorded. `instance` are keys in which the engines are to be others, and `num_instances` another number."""
        number = num_instances or self.engines.num_instances
        per_backend = config.gateway.slots_per_backend
        slots = -(-(self._slots or 0) * number // self.engines.num_instances) if per_backend is None else per_backend * number
        sections = (config.admission, config.routing, config.programs)
        return self._candidate(*sections, slots or None, number, instance or {})

    @property
    def _slots(self) -> int | None:
        return max(self.recorded.rules.slots.values(), default=None)

    def _candidate(
        self,
        admission: AdmissionConfig,
        routing: RoutingConfig,
        programs: ProgramsConfig,
        slots: int | None,
        number: int,
        keys: Mapping[str, Any],
    ) -> Candidate:
        # A gateway gives an engine as many requests as it has slots, so the engine has been told to take them.
        most = max(self.engines.instance.max_num_seqs, -(-(slots or 1) // number))
        cluster = ClusterConfig(
            num_instances=number,
            capacity=slots if admission.mode == "priority" else None,
            routing_latency_ms=self.recorded.overhead / MILLISECOND,
        )
        return Candidate(
            cluster=cluster,
            instance=replace(self.engines.instance, **{"max_num_seqs": most, **keys}),
            routing=routing,
            admission=admission,
            programs=programs,
        )

    def replay(self, candidate: Candidate, seed: int = CENTRAL) -> ReplayedRun:
        """Simulate the requests under the rules of `candidate`; with the seed `CENTRAL` the latency model is as it
        was fitted. Raises ConfigError for impossible rules."""
        scale = candidate.instance.latency_scale if seed == CENTRAL else draw_latency_scale(candidate.instance, seed)
        drawn = replace(candidate, instance=replace(candidate.instance, latency_scale=scale))
        jobs = self.traffic.workload(candidate.admission, seed)
        return ReplayedRun.of(drawn.simulate(jobs, seed=seed), self.recorded.requests)

    @property
    def _distance_from_record(self) -> float:
        """How far p50 and p90 of TTFT and E2E are from those of the record, as a share, on average."""
        columns = [(getattr(self.truth, name), getattr(self.replay(self.in_force), name)) for name in ("ttft", "e2e")]
        quantiles = [np.nanquantile(column, (0.5, 0.9)) for pair in columns for column in pair]
        return float(np.mean([np.abs(now / was - 1) for was, now in zip(quantiles[::2], quantiles[1::2], strict=True)]))

    @property
    def traffic(self) -> RecordedTraffic:
        """The jobs, made when they are first asked for."""
        found = self.__dict__.get("_traffic")
        if found is None:
            caches = self.engines.instance.caches_prefixes
            found = RecordedTraffic(self.recorded.requests, self.recorded.rules.admission, with_contents=caches)
            self.__dict__["_traffic"] = found
        return found

    @property
    def truth(self) -> ReplayedRun:
        """What came of the requests when they were recorded."""
        return _as_recorded(self.recorded.requests)


class ReplayTask(msgspec.Struct, frozen=True):
    """One run, for a worker."""

    world: bytes
    """The path of a file with the world, or the world itself for a machine that has no such file (`is_whole`)."""
    candidate: Candidate
    seed: int
    is_whole: bool = False


class _Done(msgspec.Struct, frozen=True, tag=True):
    """The columns of a run, as bytes."""

    columns: dict[str, bytes]


def replay_all(
    world: ReplayWorld,
    wanted: Sequence[tuple[Candidate, int]],
    *,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> list[ReplayedRun]:
    """Return the run of each of `wanted`, a candidate and a seed, in their order.

    `jobs` is the number of processes (1: this one; None: one for each core). A script that uses several calls this below
    `if __name__ == "__main__"`. Raises ConfigError for impossible rules, and LostWorkersError.
    """
    with tempfile.TemporaryDirectory(prefix="maitred-replay-") as folder:
        path = Path(folder) / "world"
        path.write_bytes(encode_replay(world))
        tasks = [encode_replay(ReplayTask(bytes(path), candidate, seed)) for candidate, seed in wanted]
        found: dict[int, ReplayedRun] = {}
        with make_workers(run_replay, jobs=jobs) as workers:
            for done in workers.run(tasks):
                found[done.index] = decode_run(done.result)
                if progress is not None:
                    progress(len(found), len(tasks))
    return [found[index] for index in range(len(tasks))]


def run_replay(task: bytes) -> bytes:
    """Make the run of a task of `replay_all`. This is the function that workers call."""
    wanted = msgspec.msgpack.decode(task, type=ReplayTask)
    try:
        run = _world_of(wanted.world, wanted.is_whole).replay(wanted.candidate, wanted.seed)
    except ConfigError as error:
        return encode_replay(TaskFailed(error.problem, error.where, error.hint))
    return encode_replay(_Done({name: getattr(run, name).tobytes() for name in ReplayedRun.__struct_fields__}))


def decode_run(result: bytes) -> ReplayedRun:
    """Return the run that a worker has made. Raises the ConfigError that it found."""
    done = msgspec.msgpack.decode(result, type=_Done | TaskFailed)
    if isinstance(done, TaskFailed):
        raise ConfigError(done.what, where=done.where, hint=done.hint)
    columns: dict[str, Any] = {name: np.frombuffer(data, _TYPES.get(name, np.float64)) for name, data in done.columns.items()}
    return ReplayedRun(**columns)


@lru_cache(maxsize=4)
def _world_of(world: bytes, is_whole: bool) -> ReplayWorld:
    return msgspec.msgpack.decode(world if is_whole else Path(fsdecode(world)).read_bytes(), type=ReplayWorld)


encode_replay: Final = msgspec.msgpack.Encoder(enc_hook=encode_unknown).encode
"""Writes a world or a task."""
_TYPES: Final = {"outcome": np.int8, "priority_class": np.int8}
