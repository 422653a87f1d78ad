"""A small engine in steps, and gateways before it: the real admission core, with slots that are told or learned.

    arrivals ─▶ Admission (classes, slots) ─▶ the engine's own queue, first come, first served ─▶ batch of at most `limit`

A step takes `step` µs plus `per_sequence` for each running request and gives each of them a token. A step computes at most
`prefill` tokens of prompts. If the KV memory is full, the newest running request is evicted and starts again.

Bulk requests come in a closed loop, chats at random instants. Everything is drawn from one seed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from maitred.admission import Action, Admission, AdmissionConfig, ReleaseReason
from maitred.admission.learned_slots import (
    NO_DEMAND,
    EngineReading,
    OwnRequest,
    OwnRequests,
    SlotController,
)
from maitred.core.request import PriorityClass, Request
from maitred.core.units import SECOND, Micros

CHAT, BULK = PriorityClass.INTERACTIVE, PriorityClass.BULK


@dataclass
class Sequence:
    """A request in the engine."""

    gateway: Gateway | None
    request: Request
    output: int
    own: OwnRequest | None
    left_to_prefill: int
    tokens: int = 0
    is_stopped: bool = False


@dataclass
class Engine:
    """The engine."""

    limit: int
    step: Micros = 20_000
    per_sequence: Micros = 0
    prefill: int = 8192
    kv_tokens: int = 1 << 40
    queue: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    preemptions: int = 0
    generated: int = 0
    is_frozen: bool = False
    """Whether its metrics stand still."""
    page: EngineReading = field(default_factory=lambda: EngineReading(0, 0))
    """What its metrics say: `waiting` is what was not admitted to the step that has just ended, and `running` lacks what has
    ended with it, as at vLLM."""

    def run_step(self, now: Micros) -> Micros:
        """Run one step that begins at `now`, and return when it ends."""
        while self.queue and len(self.running) < self.limit and self._fits(self.queue[0]):
            self.running.append(self.queue.popleft())
        waiting = len(self.queue)
        end = now + self.step + self.per_sequence * len(self.running)
        budget = self.prefill
        for seq in list(self.running):
            if seq.is_stopped:  # by what another one's end has led to
                continue
            if seq.left_to_prefill:
                chunk = min(budget, seq.left_to_prefill)
                budget -= chunk
                seq.left_to_prefill -= chunk
                if seq.left_to_prefill:
                    continue
            seq.tokens += 1
            self.generated += 1
            if seq.gateway is not None:
                seq.gateway.on_token(seq, end)
            if seq.tokens >= seq.output:
                self.running.remove(seq)
                if seq.gateway is not None:
                    seq.gateway.on_end(seq, end)
        while self._held() > self.kv_tokens and len(self.running) > 1:
            evicted = self.running.pop()
            evicted.left_to_prefill = evicted.request.prompt_tokens + evicted.tokens
            self.queue.appendleft(evicted)
            self.preemptions += 1
            waiting += 1
        usage = min(1.0, self._held() / self.kv_tokens)
        if not self.is_frozen:
            self.page = EngineReading(len(self.running), waiting, usage, self.preemptions, self.generated)
        return end

    def _held(self) -> int:
        return sum(seq.request.prompt_tokens + seq.tokens for seq in self.running)

    def _fits(self, seq: Sequence) -> bool:
        return not self.running or self._held() + seq.request.prompt_tokens + seq.tokens <= self.kv_tokens


class Gateway:
    """A gateway that learns its slots, or is told them."""

    def __init__(
        self,
        engine: Engine,
        seed: int = 1,
        *,
        slots: int | None = None,
        controller: SlotController | None = None,
        clients: int = 64,
        chats_per_sec: float = 2.0,
        has_metrics: bool = True,
        output: tuple[int, int] = (30, 90),
        prompt: tuple[int, int] = (50, 250),
        streams: bool = True,
        poll: Micros = 0,
        on_preempt: str = "reject",
        keeps_lead: bool = True,
    ) -> None:
        self.engine = engine
        self.rng = Random(seed)
        self.controller = None if slots is not None else controller or SlotController()
        self.own = OwnRequests()
        self.has_metrics, self.keeps_lead = has_metrics, keeps_lead
        self.clients, self.chats_per_sec = clients, chats_per_sec
        self.output, self.prompt, self.streams = output, prompt, streams
        self.poll, self.next_poll, self.next_tick = poll, 0, 0
        self.next_chat = 0
        classes = {"bulk": {"queue_size": 100_000, "queue_timeout_secs": 9999}, "interactive": {"queue_timeout_secs": 9999}}
        self.preemptions = 0
        section = {"mode": "priority", "default_max_class": "system", "on_preempt": on_preempt, "classes": classes}
        self.core = Admission(msgspec.convert(section, AdmissionConfig), {"m": slots or self.slots})
        self.jobs: dict[int, tuple[Request, int]] = {}
        self.ttfts: list[tuple[Micros, Micros]] = []
        """The arrival and the time to first token of each chat, µs."""
        self.bulk_ends: list[tuple[Micros, int]] = []
        """The end and the tokens of each bulk request."""
        self.slots_at: list[tuple[Micros, int]] = []
        self.most_beyond = 0
        """The most by which requests in flight exceeded the slots when one was let in."""
        self.in_flight = 0
        self._ids = 0

    @property
    def slots(self) -> int:
        return self.core.view("m").capacity if self.controller is None else self.controller.slots

    def advance(self, now: Micros) -> None:
        """Do all that is due by `now`."""
        while self.clients:
            self.clients -= 1
            self._submit(BULK, now)
        while self.chats_per_sec and self.next_chat <= now:
            self._submit(CHAT, self.next_chat)
            self.next_chat += round(self.rng.expovariate(self.chats_per_sec) * SECOND) + 1
        self._apply(self.core.advance(now), now)
        if self.controller is not None and now >= self.next_tick:
            self.next_tick = now + self.controller.look_interval
            self._look(self.controller, now)

    def on_token(self, seq: Sequence, now: Micros) -> None:
        if seq.own is not None and self.streams:
            self.own.note_pieces(seq.own, seq.tokens, now)
        if seq.tokens == 1:
            if self.streams or seq.request.priority_class is CHAT:
                self.core.confirm_first_byte(seq.request.id, now)
            if seq.request.priority_class is CHAT:
                self.ttfts.append((seq.request.arrival, now - seq.request.arrival))

    def on_end(self, seq: Sequence, now: Micros) -> None:
        self.in_flight -= 1
        assert seq.own is not None
        self.own.remove(seq.own, now, completed=True)
        if seq.request.priority_class is BULK:
            self.bulk_ends.append((now, seq.tokens))
            self.clients += 1
        self._apply(self.core.release(seq.request.id, ReleaseReason.DRAINED, now), now)

    def ttft(self, share: float, since: float = 0.0) -> float:
        """Return a quantile of the times to first token of chats from `since` (s) on, ms."""
        times = sorted(ttft for at, ttft in self.ttfts if at >= since * SECOND)
        return times[min(len(times) - 1, int(share * len(times)))] / 1000

    def bulk_tokens(self, since: float, until: float) -> int:
        return sum(tokens for at, tokens in self.bulk_ends if since * SECOND <= at < until * SECOND)

    def slots_between(self, since: float, until: float) -> list[int]:
        """Return the slots at each look between two instants, s."""
        return [slots for at, slots in self.slots_at if since * SECOND <= at < until * SECOND]

    def _look(self, controller: SlotController, now: Micros) -> None:
        demand = self.core.demand("m")
        before, lead = controller.slots, controller.lead
        if not self.keeps_lead:
            demand = msgspec.structs.replace(demand, keeps_lead=False)
        if self.has_metrics and now >= self.next_poll:
            due = controller.reading_due_in(self.in_flight, wanted=demand.wanted)
            self.next_poll = now + max(self.poll, due or 0)
            controller.on_reading(self.engine.page, self.own.summary(now, is_reading=True), demand, now)
        if controller.wants_ticks:
            controller.on_tick(self.own.summary(now, is_reading=False), demand, now)
        assert controller.slots <= before or demand != NO_DEMAND, "nothing waits in front, and the slots grow"
        self.slots_at.append((now, controller.slots))
        if (controller.slots, controller.lead) != (before, lead):
            self._apply(self.core.resize("m", controller.slots, now, controller.lead), now)

    def _submit(self, cls: PriorityClass, now: Micros) -> None:
        self._ids += 1
        request = Request(
            id=self._ids, arrival=now, model="m", prompt_tokens=self.rng.randint(*self.prompt), priority_class=cls,
            stream=self.streams, tenant="t",
        )  # fmt: skip
        self.jobs[request.id] = (request, self.rng.randint(*self.output))
        self._apply(self.core.submit(self.core.make_ticket(request, 1), now), now)

    def _apply(self, decisions: Any, now: Micros) -> None:
        for decision in decisions:
            if decision.action is Action.ADMIT:
                request, output = self.jobs[decision.subject]
                self.in_flight += 1
                self.most_beyond = max(self.most_beyond, self.in_flight - self.slots)
                own = self.own.add(request.prompt_tokens, self.streams, now)
                self.engine.queue.append(Sequence(self, request, output, own, request.prompt_tokens))
            elif decision.action is Action.PREEMPT_SLOT:
                self.preemptions += 1
                self._stop(decision.subject, now)

    def _stop(self, request_id: int, now: Micros) -> None:
        """Stop a victim, which waits again, or is sent again as another bulk request."""
        for place in (self.engine.queue, self.engine.running):
            for seq in list(place):
                if seq.gateway is self and seq.request.id == request_id:
                    place.remove(seq)
                    seq.is_stopped = True
                    self.in_flight -= 1
                    assert seq.own is not None
                    self.own.remove(seq.own, now, completed=False)
        decisions = self.core.release(request_id, ReleaseReason.SLOT_PREEMPTED, now)
        self.clients += not any(d.subject == request_id for d in decisions)  # It is gone, and its client sends another.
        self._apply(decisions, now)


class World:
    """One engine, gateways before it, and the time."""

    def __init__(self, engine: Engine, *gateways: Gateway) -> None:
        self.engine, self.gateways = engine, gateways
        self.now: Micros = 0

    def run(self, secs: float) -> None:
        """Go on for `secs`."""
        until = self.now + round(secs * SECOND)
        while self.now < until:
            for gateway in self.gateways:
                gateway.advance(self.now)
            self.now = self.engine.run_step(self.now)

    def restart(self, limit: int) -> None:
        """Start the engine anew with another limit: its requests fail, and clients send them again."""
        engine = self.engine
        for seq in [*engine.running, *engine.queue]:
            gateway = seq.gateway
            if gateway is not None and seq.own is not None:
                gateway.in_flight -= 1
                gateway.own.remove(seq.own, self.now, completed=False, failed=True)
                gateway.clients += seq.request.priority_class is BULK
        lost, engine.running, engine.queue = [*engine.running, *engine.queue], [], deque()
        engine.limit, engine.generated, engine.preemptions, engine.page = limit, 0, 0, EngineReading(0, 0)
        for gateway in self.gateways:
            if gateway.controller is not None:
                gateway.controller.forget(self.now)
        for seq in lost:
            if seq.gateway is not None:
                seq.gateway._apply(seq.gateway.core.release(seq.request.id, ReleaseReason.FAILED, self.now), self.now)


def told(limit: int, slots: int, secs: float, seed: int = 1, **keys: Any) -> Gateway:
    """Return a gateway with a number of slots, after `secs` before an engine with `limit`."""
    engine = Engine(limit)
    gateway = Gateway(engine, seed, slots=slots, **keys)
    World(engine, gateway).run(secs)
    return gateway
