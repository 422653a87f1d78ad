"""Make an instance plan the steps of a recorded workload, on the clock of the record.

The parts are those of an `Instance`: its wait queue, its batch former, its KV memory and its core, which commits what a step
has computed. Only the clock is another one: a step takes what the record says, and with async scheduling an input comes before
the step that vLLM planned next, which is not quite an instant of GPU time.

    loop:  inputs that are due  →  plan  →  note  →  the clock goes on  →  commit

The results of a step are in the hands of vLLM's scheduler one schedule later with async scheduling. So the events of step N
have the time of schedule N + 2, or of the schedule before which vLLM had nothing else to do.
"""

from __future__ import annotations

from random import Random
from typing import Any

from maitred.batching import AheadBatch, ContinuousBatch, PreemptionPolicy, StepPlan
from maitred.core.contracts import WaitQueue
from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import EventKind, InstanceConfig, InstanceEvent, LinearLatency
from maitred.instance.batch_former import EngineParts, standard_parts
from maitred.instance.engine_core import EngineCore
from maitred.instance.entry_limits import LengthLimits
from maitred.kv import PromptTokenIds
from maitred.queueing import KeyPolicy

from .workload import due, is_shortest_first, prompt_tokens, release_of, resolved_config

_SWITCHES = (
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "watermark",
    "prefill_schedule_interval",
)


class ShortestPromptFirst(KeyPolicy):
    """Preempted before others, then by prompt length, then by arrival: the custom wait queue of the records."""

    def key(self, seq: SequenceState) -> tuple[bool, int, int, int]:
        return (not seq.num_preemptions, seq.request.prompt_tokens, seq.request.arrival, seq.arrival_index)


class NotingBatch(ContinuousBatch):
    """Continuous batching that tells what it plans."""

    replay: Replay

    def plan_decodes(self, max_repeats: int) -> StepPlan | None:
        return None  # every step is asked for by `schedule`, and so noted

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        before, admissions = self.replay.waiting(), self._num_admissions
        plan = super().schedule(waiting, now, max_repeats)
        self.replay.note(plan, before, admissions)
        return plan


class NotingAheadBatch(AheadBatch):
    """The same one step ahead."""

    replay: Replay

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        before, admissions = self.replay.waiting(), self._num_admissions
        plan = super().schedule(waiting, now, max_repeats)
        self.replay.note(plan, before, admissions)
        return plan


class Replay:
    """One workload on the parts of an instance, and what came of it, in the terms of the record."""

    def __init__(self, case: dict[str, Any]) -> None:
        workload = case["workload"]
        self.config = resolved_config(workload)
        self.expected: list[dict[str, Any]] = case["recorded"]["steps"]
        self.asked = {request["id"]: request for request in workload["requests"]}
        self.numbers = {name: number for number, name in enumerate(self.asked)}
        # vLLM breaks ties of its priority order by the id, which is a text.
        self.names = dict(enumerate(sorted(self.asked)))
        self.ids = {name: rank for rank, name in self.names.items()}
        self.arrivals = sorted(workload["requests"], key=lambda request: request["arrival"])
        aborted = [request for request in workload["requests"] if request.get("abort_at") is not None]
        self.aborts = sorted(aborted, key=lambda request: request["abort_at"])
        self.core = self._new_core(is_shortest_first(case), release_of(case))
        self.steps: list[dict[str, Any]] = []
        self.requests: dict[str, dict[str, Any]] = {}
        self.events: list[InstanceEvent] = []
        """What has come of the last step and is not in the hands of the scheduler yet (async scheduling)."""
        self.finished: list[str] = []
        self.now = 0.0
        self.total: int | None = None
        """Tokens of the schedule just made; None if it is no step."""
        self.stuck = False

    def run(self) -> None:
        """Play the workload to its end."""
        while self.step():
            pass
        for seq in self.core.sequences.values():  # where nothing could be scheduled any more
            self.requests[self.names[seq.request.id]]["output_tokens"] = self.core.batch.num_output_tokens(seq)
        self.requests = {name: self.requests[name] for name in self.asked if name in self.requests}

    def step(self) -> bool:
        """Make one schedule. Return False when there is nothing more to do."""
        core, ahead = self.core, self.config["async_scheduling"]
        for request in due(self.aborts, "abort_at", self.now):
            self._abort(request["id"])
        for request in due(self.arrivals, "arrival", self.now):
            self._add(request)
        if core.run is not None:
            self._commit()
        self.total = None
        try:
            if core.has_work:
                core.start_run()
            else:
                self._process()
                self.finished.clear()
        except InvariantError:  # nothing runs, and nothing that waits fits
            self.finished.clear()
        if self.total is None:
            return self._go_to_next_input() if core.run is None else True
        self.steps[-1]["waiting"] = self._waiting_after(core.run.plan if core.run is not None else None)
        self.now += self.config["step_time_base"] + self.config["step_time_per_token"] * self.total
        if ahead:
            self._process()
        else:
            self._commit()
            self._process()
        return True

    def waiting(self) -> list[str]:
        """Return the names of the sequences that wait, in their order."""
        queue: Any = self.core.waiting
        if hasattr(queue, "_heap"):
            order = [seq for _, seq in sorted(queue._heap, key=lambda entry: entry[0])]
        else:
            order = [*filter(None, [queue._head]), *queue._behind.values()]
        return [self.names[seq.request.id] for seq in order]

    def note(self, plan: StepPlan, before: list[str], admissions: int) -> None:
        """Note a schedule that has just been made: `before` waited, and it begins with the admission number `admissions`."""
        batch, ids = self.core.batch, self.names
        tokens = {chunk.seq: chunk.num_tokens for chunk in plan.chunks}
        running = list(batch.sequences.values())
        tokens |= {seq: 1 for seq in running if seq.is_decoding and seq not in plan.stalled}
        finished, self.finished = sorted(self.finished), []
        total = sum(tokens.values())
        if not total and not (plan.preempted and self._next_is_empty()):
            self._process()
            return
        admitted = [seq for seq in running if seq.admission_index >= admissions]
        held = {seq: batch._kv_tokens(seq) + tokens.get(seq, 0) for seq in running}
        batch.begin_chunks(plan, 1)  # A step takes its blocks when somebody looks: here.
        free = batch._blocks.free_committed - batch._blocks.decode_blocks(1)
        usable = batch._blocks.total
        for seq in admitted:
            if not seq.num_preemptions:
                self.requests[ids[seq.request.id]].update(first_sched=self.now, cached_tokens=seq.num_cached_tokens)
        for seq in plan.preempted:
            self.requests[ids[seq.request.id]]["preemptions"] += 1
        self.total = total
        self.steps.append(
            {
                "step": len(self.steps),
                "t": self.now,
                "num_scheduled_tokens": {ids[seq.request.id]: tokens[seq] for seq in running if seq in tokens},
                "total": total,
                "new": [ids[seq.request.id] for seq in admitted if not seq.num_preemptions],
                "resumed": [ids[seq.request.id] for seq in admitted if seq.num_preemptions],
                "preempted": sorted(ids[seq.request.id] for seq in plan.preempted),
                "finished_before": finished,
                "running": [ids[seq.request.id] for seq in running],
                "waiting_before": before,
                "free_blocks": free,
                "kv_usage": round(1 - free / usable, 6),
                "blocks": {ids[seq.request.id]: batch._blocks.blocks_for(held[seq]) for seq in running},
            }
        )

    def _next_is_empty(self) -> bool:
        """Return whether the next recorded step has no tokens: a schedule that only preempts is a step in some records."""
        index = len(self.steps)
        return index < len(self.expected) and not self.expected[index]["total"]

    def _new_core(self, shortest_first: bool, release: Any) -> EngineCore:
        asked = self.config
        same = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "async_scheduling", *_SWITCHES)
        config = InstanceConfig(
            scheduling_policy=asked["policy"],
            scheduler=f"{__name__}:{ShortestPromptFirst.__name__}" if shortest_first else "fcfs",
            total_kv_blocks=asked["num_blocks"] - 1,
            block_size_in_tokens=asked["block_size"],
            latency=LinearLatency((1.0, 0.0, 0.0)),
            step_by_step=True,
            vllm_release=release,
            **{name: asked[name] for name in same},
        )
        parts = standard_parts(config)
        policy = PreemptionPolicy.LEAST_URGENT_CLIENT if asked["policy"] == "priority" else PreemptionPolicy.LAST_ADMITTED
        batch: NotingBatch | NotingAheadBatch
        # vLLM's scheduler takes requests that could never fit, too, so its own limit holds and not that of the memory.
        if asked["async_scheduling"]:
            batch = NotingAheadBatch(config.batch_limits, parts.blocks, policy, asked["max_model_len"])
        else:
            batch = NotingBatch(config.batch_limits, parts.blocks, policy)
        batch.replay = self
        waiting = config.policy().make_queue(parts.prefix_cache, Random(0))
        core = EngineCore(config, waiting, EngineParts(parts.prefix_cache, parts.blocks, batch))
        core.lengths = LengthLimits(asked["max_model_len"])
        return core

    def _add(self, asked: dict[str, Any]) -> None:
        name, core = asked["id"], self.core
        tokens = PromptTokenIds(tuple(prompt_tokens(self.numbers[name], asked)))
        request = Request(
            id=self.ids[name],
            arrival=asked["arrival"],
            prompt_tokens=asked["prompt_len"],
            max_output_tokens=asked["max_tokens"],
            priority=-asked.get("priority", 0),  # a larger one is more urgent here
            prefix=tokens,
        )
        core.add(request, asked.get("output_len") or asked["max_tokens"], core.next_start, None, None)
        core.reveal_arrivals()
        self.requests[name] = {
            "arrival": float(asked["arrival"]),
            "first_sched": None,
            "first_token": None,
            "finish": None,
            "preemptions": 0,
            "output_tokens": 0,
            "cached_tokens": 0,
            "finish_reason": None,
        }

    def _abort(self, name: str) -> None:
        core = self.core
        seq = core.sequences.get(self.ids[name])
        if seq is not None:
            core.withdraw(seq, core.next_start, EventKind.ABORTED)
            core.events.clear()
            self._end(seq, "abort")

    def _commit(self) -> None:
        core = self.core
        assert core.run is not None
        core.commit_run(core.run)
        core.check()
        self.events += core.events
        core.events = []

    def _process(self) -> None:
        """Note what has come of the oldest step whose results are not in the hands of the scheduler."""
        for event in self.events:
            record = self.requests[self.names[event.seq.request.id]]
            if event.kind is EventKind.FIRST_TOKEN:
                record["first_token"] = self.now
            elif event.kind is EventKind.FINISHED:
                asked = self.asked[self.names[event.seq.request.id]]
                self._end(event.seq, "stop" if event.seq.num_output_tokens == asked.get("output_len") else "length")
        self.events = []

    def _end(self, seq: SequenceState, reason: str) -> None:
        name = self.names[seq.request.id]
        self.requests[name].update(finish=self.now, finish_reason=reason, output_tokens=seq.num_output_tokens)
        self.finished.append(name)

    def _waiting_after(self, plan: StepPlan | None) -> list[str]:
        """Return the names that wait after a schedule. vLLM puts victims back one after the other, also those that have ended,
        which it does not know yet."""
        victims = [] if plan is None else [self.names[seq.request.id] for seq in plan.preempted]
        if self.config["policy"] == "priority":
            both = {*self.waiting(), *victims}
            return sorted(both, key=lambda name: (self.asked[name].get("priority", 0), self.asked[name]["arrival"], name))
        return [*reversed(victims), *(name for name in self.waiting() if name not in victims)]

    def _go_to_next_input(self) -> bool:
        due_at = [requests[0][key] for key, requests in (("arrival", self.arrivals), ("abort_at", self.aborts)) if requests]
        if not due_at:
            self.stuck = bool(self.core.sequences)
            return False
        self.now = max(self.now, float(min(due_at)))
        return True
