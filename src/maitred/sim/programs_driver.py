"""Programs driver: the live programs core in virtual time, with the inputs that a gateway would give it.

    arrival -> programs: may the program hold memory, and where?  -> admission -> routing: the instance that was granted

A request that waits for its program holds no slot of admission. The driver knows exactly what a gateway estimates: the
tokens of prompts, and the tokens that programs at one instance share (`shared_tokens`). Of responses under way it tells the
core what a gateway would (`stream_progress`). An instance has as many tokens of memory as its KV blocks hold, unless
`backend_capacity_tokens` says how many may be used.

A program is released when the workload says that no more of its requests come (`workload.ProgramWorkload`); otherwise it
keeps its place until it is paused or expires.

Ends of requests happen amid other work: in the turn of an instance, or while decisions of admission are carried out. The core
is told at once, but what it decides is carried out in an event of its own at the same instant (`SimEventKind.PROGRAMS`), or
before the next input if that comes first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from maitred.core.contracts import Choice, FleetView
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import InstanceConfig
from maitred.programs import ProgramAction, ProgramDecision, ProgramRequest, Programs, ProgramsConfig, Usage
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.lifecycle import GrantLifecycle
from maitred.sim.program_statistics import ProgramStatistics
from maitred.sim.replica import Replica
from maitred.sim.request_state import RequestState
from maitred.sim.results import Outcome
from maitred.sim.shared_tokens import SharedTokens
from maitred.sim.stream_progress import StreamProgress

_GRANT: Final = ProgramAction.GRANT
_REJECT: Final = ProgramAction.REJECT


class ProgramsDriver:
    """The programs core, and everything that a driver of it does. It is also the router of the requests that it grants."""

    def __init__(
        self,
        config: ProgramsConfig,
        cluster: ClusterConfig,
        instance: InstanceConfig,
        arrivals: ArrivalFeed,
        event_queue: EventQueue,
        log: DecisionLog | None,
    ) -> None:
        """`log` receives the inputs and decisions of the core."""
        self.core = Programs(config, log=log)
        self._arrivals = arrivals
        self._event_queue = event_queue
        self._num_instances = cluster.num_instances
        self._capacity = config.backend_capacity_tokens or instance.kv_blocks * instance.block_size_in_tokens
        self._models: list[str] = []
        self._shared = SharedTokens(instance.block_size_in_tokens) if instance.caches_prefixes else None
        self._reported_shared = [0] * cluster.num_instances
        self._progress = StreamProgress()
        self.statistics = ProgramStatistics(cluster.num_instances, self._capacity)
        self.rejections: Counter[str] = Counter()
        """Rejected requests by reason."""
        self._pending: deque[ProgramDecision] = deque()
        """Decisions to be carried out."""
        self._timer_at: Micros | None = None
        """The next instant at which the event queue has a PROGRAMS entry for the core's deadline."""
        self._due_now: Micros | None = None
        """The last instant at which it has one for pending decisions."""
        self._lifecycle: GrantLifecycle

    def attach(self, lifecycle: GrantLifecycle) -> None:
        """Set the object that carries out the effects of decisions. Call this once, before any request arrives."""
        self._lifecycle = lifecycle

    def submit(self, request: Request, now: Micros) -> None:
        """Ask for memory for the program of a request, and carry out the decisions."""
        if request.model not in self._models:
            self._add_model(request.model, now)
        self._report_progress(now)
        decisions = self.core.begin(
            ProgramRequest(
                id=request.id,
                model=request.model,
                tenant=request.tenant,
                program=request.program,
                parent=request.parent_program,
                priority_class=request.priority_class,
                prompt_tokens=request.prompt_tokens,
            ),
            now,
        )
        program = self.core.program_of(request.id)
        if program is not None:
            self.statistics.on_request(program)
            if self._shared is not None:
                self._shared.set_content(program, request.prefix, request.cache_namespace)
        self._note(decisions, now)
        self._carry_out(now)

    def on_first_token(self, request: Request, replica: Replica) -> None:
        """Note that a response has begun."""
        if request.stream:
            self._progress.begin(request.id, replica)

    def on_end(self, state: RequestState, outcome: Outcome, seq: SequenceState | None, now: Micros) -> None:
        """Report the end of a request, however it has ended. What is decided by that is carried out at the end of the event."""
        request = state.request
        program = self.core.program_of(request.id)
        self._progress.end(request.id)
        self._report_progress(now)
        usage = None
        if outcome is Outcome.COMPLETED and seq is not None:
            usage = Usage(request.prompt_tokens, request.prompt_tokens + seq.num_output_tokens)
        self.statistics.on_request_end(program, now, completed=outcome is Outcome.COMPLETED)
        whole = state.job.conversation_prefix
        if program is not None and self._shared is not None and usage is not None and whole is not None:
            self._shared.set_content(program, whole, request.cache_namespace)
        self._note(self.core.end(request.id, usage, now), now)
        self._call_soon(now)

    def release(self, request: Request, now: Micros) -> None:
        """Forget the program of a request that was its last one, unless others of it are still there."""
        if any(program.is_busy for program in self.core.find(request.tenant, request.program)):
            return
        self._report_progress(now)
        self.statistics.on_release(request.tenant, request.program)
        self._note(self.core.release(request.tenant, request.program, now), now)
        self._call_soon(now)

    def on_timer(self, now: Micros) -> None:
        """Let the core do what is due at `now`, such as a tick, and carry out everything that was decided."""
        # An entry of another instant than `_timer_at` is obsolete, or one for pending decisions: the timer is set already.
        if self._timer_at is not None and self._timer_at <= now:
            self._timer_at = None
        self._report_progress(now)
        self._note(self.core.advance(now), now)
        self._carry_out(now)

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        """Return the instance where the program of a granted request has its place."""
        program = self.core.program_of(request.id)
        assert program is not None, "a request has a program until it ends"
        assert program.backend is not None, "the program of a granted request has a place"
        return Choice(program.backend, "program")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        """Ignore that a request has left an instance: the end of the request itself is what counts here."""

    def _add_model(self, model: str, now: Micros) -> None:
        """Tell the core that every instance serves one more model."""
        self._models.append(model)
        for index in range(self._num_instances):
            self._note(self._report_instance(index, now), now)

    def _report_instance(self, index: int, now: Micros) -> Sequence[ProgramDecision]:
        shared = self._reported_shared[index]
        return self.core.set_backend(index, now, models=self._models, capacity=self._capacity, shared_tokens=shared)

    def _report_progress(self, now: Micros) -> None:
        """Before another input, tell the core how far the streams under way have come."""
        for request_id, tokens in self._progress.take():
            self.core.progress(request_id, tokens, now)

    def _note(self, decisions: Sequence[ProgramDecision], now: Micros) -> None:
        """Keep decisions to be carried out, and report the shared tokens anew until they change no decision."""
        while True:
            self._pending += decisions
            self.statistics.on_decisions(decisions)
            if self._shared is None:
                break
            self._shared.on_decisions(decisions)
            changed = [i for i, tokens in enumerate(self._reported_shared) if self._shared.tokens(i) != tokens]
            if not changed:
                break
            following: list[ProgramDecision] = []
            for index in changed:
                self._reported_shared[index] = self._shared.tokens(index)
                following += self._report_instance(index, now)
            decisions = following
        self.statistics.on_usage(self.core.backends, now)
        self._set_timer()

    def _carry_out(self, now: Micros) -> None:
        while self._pending:
            decision = self._pending.popleft()
            if decision.request is None:
                continue
            state = self._lifecycle.live.get(decision.request)
            if state is None:
                continue  # the request has ended at this very instant
            if decision.action is _GRANT:
                program = self.core.program_of(decision.request)
                if program is not None:
                    self.statistics.on_granted(program, now - state.request.arrival)
                self._lifecycle.on_granted(state, now)
            elif decision.action is _REJECT:
                self.rejections[decision.reason] += 1
                self._lifecycle.finish(state, Outcome.REJECTED, now)

    def _call_soon(self, now: Micros) -> None:
        """Have the pending decisions carried out at this instant, after the event under way."""
        if self._pending and self._due_now != now:
            self._due_now = now
            self._event_queue.push(now, SimEventKind.PROGRAMS)

    def _set_timer(self) -> None:
        """Have the core called when it is due. Ticks end with the last request, or the run would last until the programs that
        are left expire."""
        if not (self._arrivals or self._lifecycle.live):
            return
        due = self.core.next_deadline()
        if due is not None and (self._timer_at is None or due < self._timer_at):
            self._timer_at = due
            self._event_queue.push(due, SimEventKind.PROGRAMS)


def make_programs_driver(
    config: ProgramsConfig | None,
    cluster: ClusterConfig,
    instance: InstanceConfig,
    arrivals: ArrivalFeed,
    event_queue: EventQueue,
    log: DecisionLog | None,
) -> ProgramsDriver | None:
    """Return the driver of the configured programs, or None if requests are routed one by one.

    Raises ConfigError for settings that do not go together.
    """
    if config is None or config.mode == "off":
        return None
    if cluster.groups:
        hint = "programs count on equal instances: use --num-instances"
        raise ConfigError("programs are not simulated with instance groups", where="programs.mode", hint=hint)
    if cluster.disaggregation:
        hint = "a program has its whole context in one instance"
        raise ConfigError("programs do not go with prefill and decode instances", where="programs.mode", hint=hint)
    return ProgramsDriver(config, cluster, instance, arrivals, event_queue, log)
