"""Admission: one core for all pools, driven by inputs and time.

Each input first settles everything that fell due before it, in the order in which it fell due. Then it takes effect,
and answers with every decision that came of both. So decisions depend on the inputs alone, and not on how promptly a
driver's timer fires: calling `advance` more often never changes a decision, only when the driver learns of it. A
decision bears the instant at which it fell due.

Example: request a holds the only slot, b and c queue; the timeout of b passes at 30.0 s, and no timer fires. The next
input is the release of a at 30.2 s. It first rejects b, with the time 30.0 s, and then admits c at 30.2 s.

    submit(ticket)    rate gate ─▶ policy gate ─▶ limits ─▶ pool: admit, queue or reject
    release(id)       the slot, or the place in the queue, is free ─▶ waiting requests enter, in other pools too
    advance(now)      timeouts, preemption budgets, starvation, ticks
    decline(id)       it is a victim, and its first byte was sent before the gateway knew ─▶ its preemptor takes another
    leave_backend(id)  its backend has failed it: it goes on to another with its slot, or waits for one again
    resize, reconfigure     capacity and rules may change at any time, also for the requests that are there
    set_stranded(id)  the slot of a request goes when it leaves, so it is no victim; or stays after all
    forget(model)           a model that is not served any more, and has no requests, is removed; its counters stay

The core keeps a ticket from `submit` until its request has left. So a driver may release a request twice, or one that
was rejected meanwhile: both are ignored. In turn, a core may answer with decisions on requests that the driver has given up
at the same instant, and the driver must ignore these.

`now` never runs backwards. With a log, each input is made a struct (`inputs`), and the recorder, set aside meanwhile, has the
method called once more. An `advance` with nothing due changes nothing, and is not logged. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from maitred.admission import inputs
from maitred.admission.adoption import enlist, taken_over
from maitred.admission.coordinator import PoolCoordinator
from maitred.admission.core_views import AdmissionViews
from maitred.admission.gates.gates import Gates
from maitred.admission.pool.agenda import NEVER, Agenda
from maitred.admission.pool.pool_views import HeadroomWatch
from maitred.admission.pool.slot_pool import EMPTY_LOAD, LoadProbe, no_load
from maitred.admission.pool_directory import PoolDirectory
from maitred.admission.terms.config import AdmissionConfig
from maitred.admission.terms.enums import ReleaseReason
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.admission.terms.limits import UsageRecord
from maitred.admission.terms.rules import make_accounts
from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent, TicketState, TransitionError
from maitred.core.contracts import FleetLoad
from maitred.core.copying import copied
from maitred.core.decisions import Decision, DecisionLog, Input, Recorder
from maitred.core.request import Request, RequestId
from maitred.core.slo_classes import slo_class_of, slo_priority
from maitred.core.tapped_log import WatchedRecorder
from maitred.core.units import Micros

# Members of enums are slow to look up.
_NEW, _STREAMING, _VICTIM, _LEFT = TicketState.NEW, TicketState.STREAMING, TicketState.VICTIM, TicketState.LEFT
_DECLINE, _FIRST_BYTE, _PREEMPTED = TicketEvent.DECLINE, TicketEvent.FIRST_BYTE, ReleaseReason.SLOT_PREEMPTED


class Admission(AdmissionViews):
    """Decides which requests may be in flight."""

    def __init__(
        self,
        config: AdmissionConfig,
        pools: Mapping[str, int],
        load_probe: LoadProbe = no_load,
        log: DecisionLog | None = None,
        now: Micros = 0,
    ) -> None:
        """`pools` is the capacity of each model in slots; `resize` adds further models. `load_probe` returns the load of the
        instances of a model, where the rules go by it. `log` gets the inputs and the decisions, from `now` on. Raises
        ConfigError for an admission policy that is unknown."""
        self._agenda = Agenda()
        self._recorder: Recorder | None = None
        self._own_recorder: Recorder | None = None
        """That of its log, also while somebody watches."""
        self._used_recorder: Recorder | None = None
        """That of its log while the log is told."""
        self._watch: Callable[[Input, Sequence[Decision]], object] | None = None
        self.looks = load_probe
        """Whom it asks for loads."""
        if log is None:
            self._pools = PoolDirectory(load_probe, self._agenda)
        else:
            self.looks = load_probe = inputs.LoggedLooks(load_probe, log)
            self._pools = PoolDirectory(load_probe, self._agenda)
            changes = HeadroomWatch(self._pools.headroom).changes if log.keeps_changes else None
            self._recorder = Recorder(log, inputs.ROOM_NAME, inputs.Open(now, config, dict(pools)), changes)
            self._own_recorder = self._used_recorder = self._recorder
        # Every input looks these up. The directory changes both dicts in place, so the references stay valid.
        self._pool_of_model, self._counters_of_model = self._pools.by_model, self._pools.counters
        self._tickets = self._agenda.tickets
        self._coordinator = PoolCoordinator(self._pools, self._agenda)
        self.reads_load = False
        """Whether `submit` reads `load`."""
        self._gates, self._has_gates = Gates(config, self._agenda.reserved, self._pools.count_slots), False
        self.limits = self._gates.limits
        self._use(config)
        for model, capacity in pools.items():
            _check_capacity(capacity)
            self._pools.resize(model, capacity, NO_LEAD)
        if log is not None:
            log.note_core(inputs.ROOM_NAME, self)

    def use_log(self, *, is_used: bool) -> None:
        """Tell the log each input from now on, or none, as without a log."""
        self._used_recorder = self._own_recorder if is_used else None
        self.watch(self._watch)

    def copy(self, load_probe: LoadProbe) -> Admission:
        """Return a core in the same state that asks `load_probe` for loads, and has no log. Raises CannotCopyError."""
        own = (self._recorder, self._own_recorder, self._used_recorder, self._watch)
        kept = [(each, None) for each in own if each is not None]
        return copied(self, [*kept, (self.looks, load_probe), (self.config, self.config)])

    def copy_requests(self, load_probe: LoadProbe, now: Micros) -> Admission:
        """Return a core with the same rules, slots and requests, which remembers nothing else: where `copy` raises."""
        core = Admission(self.config, {}, load_probe, None, now)
        for model, capacity, lead in self._pools.capacities():
            core.resize(model, capacity, now, lead)
        core.adopt([taken_over(ticket) for ticket in self._tickets.values()], now)
        return core

    def watch(self, watch: Callable[[Input, Sequence[Decision]], object] | None) -> None:
        """Tell `watch` each input from now on that raises nothing, with what was decided; None: nobody any more. Loads that are
        read are in the log alone."""
        self._watch = watch
        self._recorder = self._used_recorder if watch is None else WatchedRecorder(self._used_recorder, watch)

    def make_ticket(self, request: Request, cost: int, pool: str | None = None) -> Ticket:
        """Return the ticket of a request, for `submit`. `cost` is in tokens: of the prompt, and of the answer if known. `pool`
        is the model whose pool it asks, if that is not its own."""
        config, target = self.config, request.slo_target
        if target is None and config.slo_targets:
            target = config.slo_targets.get(slo_class_of(request))
        return Ticket(
            request.id,
            request.model if pool is None else pool,
            request.priority_class,
            request.tenant,
            cost,
            request.prompt_tokens,
            slo_priority(request, config.slo_priorities),
            target,
            request.sequences,
            request.client_id,
        )

    def apply(self, given: inputs.AdmissionInput) -> Sequence[Decision]:
        """Take an input, and answer as the method does that it is named after."""
        return self._record(given, lambda: given.apply_to(self))

    def _record_submit(self, ticket: Ticket, now: Micros, load: FleetLoad) -> Sequence[Decision]:
        # Not by `apply`, because the driver keeps this ticket; nor in `submit`, where a closure would cost every request.
        return self._record(inputs.Submit.of(ticket, load, now), lambda: self.submit(ticket, now, load))

    def _record(self, given: inputs.AdmissionInput, take: Callable[[], Sequence[Decision]]) -> Sequence[Decision]:
        recorder, self._recorder = self._recorder, None
        try:
            return take() if recorder is None else recorder.record(given, take)
        finally:
            self._recorder = recorder

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad = EMPTY_LOAD) -> Sequence[Decision]:
        """Let a request ask to enter. What became of it is the state of its ticket afterwards; one of the decisions, in which
        it is the subject, says why. Others may be on other requests.

        `load` is that of the instances of its model, and only read if `reads_load`. Raises KeyError for an unknown model,
        and TransitionError for a ticket, or an id, that is there already.
        """
        if self._recorder is not None:
            return self._record_submit(ticket, now, load)
        counters = self._counters_of_model[ticket.pool]
        if ticket.state is not _NEW or ticket.id in self._tickets:
            raise TransitionError(f"{ticket} was submitted before")
        settled = self._coordinator.run_due_before_input(now)
        # Before the gates, which count there what they refuse.
        ticket.counters = counters[ticket.priority_class]
        if self._has_gates:
            refused = self._gates.reject_refused(ticket, load, now, self._tenant_accounts)
            if refused is not None:
                return [*settled, refused]
        elif self._tenant_accounts:
            ticket.join_account(self._tenant_accounts)
        pool = self._pool_of_model[ticket.pool]
        decisions = pool.submit(ticket, now, load)
        if ticket.state is not _LEFT:
            self._tickets[ticket.id] = ticket
        if self._agenda.is_open:  # Its tenant has reached its limit.
            self._coordinator.mark_all()
            settled += self._coordinator.settle(now)
        return [*settled, *decisions] if settled else decisions

    def confirm_first_byte(self, request_id: RequestId, now: Micros) -> bool:
        """Ask whether the first byte of a response may be sent.

        Returns True if so: then the request is never a victim. Returns False if it is one, or has left: then nothing of
        it may be sent. Raises TransitionError if it still waits.
        """
        if self._recorder is not None:
            self.apply(inputs.FirstByte(now, request_id))
            told = self._tickets.get(request_id)
            return told is not None and told.state is not _VICTIM
        ticket = self._tickets.get(request_id)
        # Nothing that was due is settled first: the answer is a yes or a no, and nobody would carry decisions out. What falls
        # due later finds a request that streams.
        if ticket is None or ticket.state is _VICTIM:
            return False
        ticket.transition(_FIRST_BYTE)
        self._pool_of_model[ticket.pool].victims.discard(ticket)
        return True

    def decline(self, request_id: RequestId, now: Micros) -> Sequence[Decision]:
        """Note that the preemption of a request came after its first byte had been sent: it keeps its slot, and is a victim no
        more. Its preemptor takes the next victim, or waits first in its class. Never needed where the first byte and the
        preemption are decided in one process. Ignored for a request that has left, or streams. Raises TransitionError if it was
        not preempted."""
        if self._recorder is not None:
            return self.apply(inputs.Decline(now, request_id))
        settled = self._coordinator.run_due_before_input(now)
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.state is _STREAMING:
            return settled
        ticket.transition(_DECLINE)
        ticket.counters.declined += 1
        decisions = self._pool_of_model[ticket.pool].on_declined(ticket, now)
        return [*settled, *decisions, *self._coordinator.settle(now)]

    def release(
        self, request_id: RequestId, release_reason: ReleaseReason, now: Micros, tokens: int | None = None
    ) -> Sequence[Decision]:
        """Take a request out that has ended: its slot is free, or its place in the queue. Ignored if it has left already.

        `tokens` are those of its prompt and its answers, if they are known by now: they settle what its tenant was charged.

        SLOT_PREEMPTED is how a driver gives up a victim, which may be tried again (`queue`) and then has not left. Raises
        TransitionError if the request is no victim.
        """
        if self._recorder is not None:
            return self.apply(inputs.Release(now, request_id, release_reason, tokens))
        settled = self._coordinator.run_due_before_input(now)
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return settled
        if release_reason is _PREEMPTED and ticket.state is not _VICTIM:
            raise TransitionError(f"{ticket} was not preempted")
        pool, state = self._pool_of_model[ticket.pool], ticket.state
        if tokens is not None:
            pool.settle(ticket, tokens)  # First, because what is admitted into its slot may be of the same tenant.
        decisions = pool.release(ticket, release_reason, now)
        if ticket.state is _LEFT:
            del self._tickets[request_id]
            if self._agenda.reserved:
                self.limits.settle(request_id, state, release_reason, tokens, now)
        # Asked here, because few releases leave anything to settle, and `settle` would be a call for each.
        if self._agenda.is_open:
            decisions += self._coordinator.settle(now)
        return [*settled, *decisions] if settled else decisions

    def set_stranded(self, request_id: RequestId, *, stranded: bool, now: Micros) -> Sequence[Decision]:
        """Note that the slot of a request goes when the request leaves, or that it stays after all.

        The first is so as soon as its backend takes no new requests: it is down, or drained. Such a request is no victim. A
        preemptor that waits for its slot already has another victim, or waits. Ignored for a request that holds no slot.
        """
        if self._recorder is not None:
            return self.apply(inputs.Strand(now, request_id, stranded))
        settled = self._coordinator.run_due_before_input(now)
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.state not in SLOT_HOLDING_STATES or ticket.stranded == stranded:
            return settled
        decisions = self._pool_of_model[ticket.pool].set_stranded(ticket, stranded=stranded, now=now)
        return [*settled, *decisions, *self._coordinator.settle(now)]

    def leave_backend(self, request_id: RequestId, now: Micros) -> Sequence[Decision]:
        """Note that a request leaves its backend, which has failed it before its response began, and is to be sent to another.

        It keeps its slot if there are as many slots as are held. Otherwise its backend has taken a slot along, and the request
        waits for one again (`queue`), so that it takes no slot of another backend. Ignored for a request that holds none.
        """
        if self._recorder is not None:
            return self.apply(inputs.LeaveBackend(now, request_id))
        settled = self._coordinator.run_due_before_input(now)
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.state not in SLOT_HOLDING_STATES:
            return settled
        pool = self._pool_of_model[ticket.pool]
        decisions = pool.leave_backend(ticket, now)
        self._agenda.note_freed(ticket.tenant_account, pool.name)
        return [*settled, *decisions, *self._coordinator.settle(now)]

    def adopt(self, tickets: Sequence[Ticket], now: Micros, newcomers: Collection[RequestId] = ()) -> Sequence[Decision]:
        """Take over requests that another core has decided on, and that hold slots or wait (`adoption`). Of those that wait, no
        core has decided on `newcomers`, so limits refuse these or count them. Raises as `enlist`."""
        if self._recorder is not None:
            return self._record(inputs.Adopt.of(tickets, now, newcomers), lambda: self.adopt(tickets, now, newcomers))
        settled = self._coordinator.run_due_before_input(now)
        if newcomers and self.limits.is_on:
            refused = [each for t in tickets if t.id in newcomers and (each := self._reject_over_limit(t, now)) is not None]
            settled, tickets = [*settled, *refused], [ticket for ticket in tickets if ticket.state is not _LEFT]
        enlist(tickets, self._tickets, self._counters_of_model, self._pools.sequence_numbers)
        self._pools.note_adopted(tickets)
        return [*settled, *self._renew(self.config, now)]

    def _reject_over_limit(self, ticket: Ticket, now: Micros) -> Decision | None:
        ticket.counters = self._counters_of_model[ticket.pool][ticket.priority_class]
        return self._gates.reject_over_limit(ticket, now)

    def recall(self, records: Sequence[UsageRecord], now: Micros, *, anew: bool = False) -> Sequence[Decision]:
        """Count what another core had counted for limits, in place of what was recalled of these windows before; `anew`: and
        nothing else."""
        if self._recorder is not None:
            return self.apply(inputs.Recall(now, [*records], anew))
        settled = self._coordinator.run_due_before_input(now)
        self.limits.recall(records, now, anew=anew)
        return settled

    def resize(self, pool: str, capacity: int, now: Micros, lead: Lead = NO_LEAD) -> Sequence[Decision]:
        """Set the slots of a model, known or new, of which `lead` are beyond what its engines run at once. After growth waiting
        requests enter at once. After a shrink the requests in flight stay, and none enters before enough have ended. Raises
        ValueError for less than 0 slots."""
        if self._recorder is not None:
            return self.apply(inputs.Resize(now, pool, capacity, lead.kept, lead.lent))
        _check_capacity(capacity)
        settled = self._coordinator.run_due_before_input(now)
        self._agenda.mark(self._pools.resize(pool, capacity, lead).name)
        return [*settled, *self._coordinator.settle(now)]

    def forget(self, pool: str, now: Micros) -> Sequence[Decision]:
        """Remove a model that is not served any more. What it has counted stays in `class_views`. Raises ValueError if a
        request of it waits or holds a slot, and KeyError for an unknown model."""
        if self._recorder is not None:
            return self.apply(inputs.Forget(now, pool))
        settled = self._coordinator.run_due_before_input(now)
        self._pools.remove(pool)
        return [*settled, *self._coordinator.recompute(now)]

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        """Change all rules at once, for all pools; no request loses a slot or its place in a queue. Raises ConfigError for an
        admission policy that cannot be made, and then nothing has changed."""
        if self._recorder is not None:
            return self.apply(inputs.Reconfigure(now, config))
        policy_gate = self._gates.policy_gate_for(config)  # First: if it raises, nothing has changed or is settled.
        settled = self._coordinator.run_due_before_input(now)
        self._gates.use(config, policy_gate)
        return [*settled, *self._renew(config, now)]

    def _renew(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        self._use(config)
        self._coordinator.mark_all()
        # First what the new rules let in, then what they make due: a request that may enter now does so, though a timeout that
        # is shorter now has passed.
        admitted = self._coordinator.settle(now)
        return [*admitted, *self._coordinator.recompute(now)]

    def advance(self, now: Micros) -> Sequence[Decision]:
        """Do everything that is due by `now`."""
        if self._recorder is not None and self._coordinator.is_due(now):
            return self.apply(inputs.Advance(now))
        return self._coordinator.run_due(now)

    def next_deadline(self) -> Micros | None:
        """Return when to call `advance` next, or None while time changes nothing. There may be nothing to do at that time."""
        due = self._agenda.next_due_at
        # That instant may be of a request that has left. If none waits, a timer would ring for nothing.
        if due != NEVER:
            for pool in self._pools.by_name.values():
                if pool.waiting or pool.watches_lead:
                    return due
        return None

    def _use(self, config: AdmissionConfig) -> None:
        self.config, self.uses_costs = config, config.uses_costs
        """The configuration in force, and whether decisions depend on what requests cost, so that `release` should be told of
        `tokens`."""
        self._coordinator.input_lag = 1 if config.mode == "flow-control" else 0
        self.reads_load, self._has_gates = self._gates.reads_load or config.mode == "flow-control", not self._gates.are_open
        self._tenant_accounts: dict[str, TenantAccount] = make_accounts(config)
        for ticket in self._tickets.values():
            ticket.join_account(self._tenant_accounts)
        self._pools.reconfigure(config, self._tickets.values())  # This fills the new accounts, as requests move over.


def _check_capacity(capacity: int) -> None:
    if capacity < 0:
        raise ValueError(f"capacity must be at least 0 slots, not {capacity}")
