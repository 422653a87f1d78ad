"""The inputs of the naive programs core: what each does, step by step, in the words of the rules."""

from naive_programs import Agent, Memory, NaivePrograms

from maitred.core.units import SECOND
from maitred.programs import BackendStatus


class NaiveCore(NaivePrograms):
    """The same inputs as `Programs`; each returns all decisions as tuples."""

    def take(self):
        decided, self.decided = self.decided, []
        return decided

    def find(self, tenant, name, model):
        return next((a for a in self.agents if name and (a.tenant, a.name, a.model) == (tenant, name, model)), None)

    def agent_of(self, request):
        return next((a for a in self.agents if request in a.contexts or request in a.waiting), None)

    def begin(self, request, now):
        self.run_due(now)
        self.left = None
        agent = self.find(request.tenant, request.program, request.model) or self.create(request, now)
        if agent is None:
            self.say(now, None, "reject", "too_many_programs", request.id)
            return self.take()
        agent.priority = int(request.priority_class)
        if not agent.busy:
            agent.expires = agent.idle_since = None
            if agent.steps:
                agent.tools.append(now - agent.last_active)
        agent.steps += 1
        agent.last_active = now
        if agent.backend is None:
            if sum(len(a.waiting) for a in self.agents) >= self.config.max_waiting:
                self.reject(agent, request.id, "too_many_waiting", now)
            else:
                self.place_or_wait(agent, request.id, request.prompt_tokens, now)
        elif (reason := self.must_leave(agent)) is None:
            self.start(agent, request.id, request.prompt_tokens)
            self.say(now, agent, "grant", "sticky", request.id)
            if self.events:
                self.relieve(agent.backend, now)
        elif agent.contexts:
            self.wait(agent, request.id, request.prompt_tokens, now)
            self.say(now, agent, "wait", reason, request.id)
        else:
            self.pause(agent, reason, now)
            self.place_or_wait(agent, request.id, request.prompt_tokens, now)
        if self.left is not None:
            self.react(self.left, now)
        return self.take()

    def create(self, request, now):
        own = [a for a in self.agents if a.tenant == request.tenant]
        if len(own) >= self.config.max_programs_per_tenant:
            idle = [a for a in own if a.idle_since is not None and not a.busy]
            if not idle:
                return None
            self.displace(min(idle, key=lambda a: a.idle_since), now)
        elif len(self.agents) >= self.config.max_programs:
            idle = [a for a in self.agents if a.expires is not None and not a.busy]
            if not idle:
                return None
            self.displace(min(idle, key=lambda a: a.expires), now)
        self.num_created += 1
        parent = self.find(request.tenant, request.parent, request.model) if request.program else None
        if parent is not None and (parent.generation >= 16 or sum(a.root is parent.root for a in self.agents) >= 256):
            parent = None
        agent = Agent(self.num_created, request.tenant, request.program, request.model, now, parent)
        self.agents.append(agent)
        return agent

    def displace(self, agent, now):
        self.left = agent.backend
        self.forget(agent, "expired", now)

    def reject(self, agent, request, reason, now):
        self.say(now, agent, "reject", reason, request)
        self.settle_idle(agent, now)

    def place_or_wait(self, agent, request, tokens, now, left=None):
        needed = sum(agent.waiting.values()) + tokens
        memory = None
        if not self.tr:
            memory = self.with_fewest(agent.model, left)
        elif not agent.paused and not self.queue(agent.model):
            fitting = [m for m in self.open(agent.model) if self.room(m) >= needed + self.config.buffer_tokens]
            at_parent = [m for m in fitting if agent.parent is not None and agent.parent.backend is m]
            memory = at_parent[0] if at_parent else min(fitting, key=self.active, default=None)
        if memory is not None:
            self.place(agent, memory, now)
            agent.ended = {}
            self.start(agent, request, tokens)
            self.say(now, agent, "grant", "placed", request)
        elif self.oversized(agent.model, needed) or not self.serving(agent.model):
            self.reject(agent, request, "oversized" if self.serving(agent.model) else "no_backend", now)
        else:
            self.wait(agent, request, tokens, now)
            if not agent.paused:
                agent.paused, agent.pause_number = True, self.next_number()
            agent.tokens = needed
            self.say(now, agent, "wait", "no_room" if agent.steps == 1 else "paused", request)
            if left is not None:
                self.use_room(agent.model, [m for m in self.serving(agent.model) if m is not left], now)
            self.use_room(agent.model, self.serving(agent.model), now)

    def with_fewest(self, model, but=None):
        candidates = [m for m in self.open(model) if m is not but] or self.open(model)
        return min(candidates, key=lambda m: len(self.at(m)), default=next(iter(self.serving(model)), None))

    def progress(self, request, tokens, now):
        agent = self.agent_of(request)
        if agent is not None and request in agent.contexts:
            agent.contexts[request] += tokens
            self.count_tokens(agent)

    def end(self, request, usage, now):
        self.run_due(now)
        agent = self.agent_of(request)
        if agent is not None:
            agent.last_active = now
            if request in agent.waiting:
                self.leave_queue(agent, [request], now)
            else:
                self.end_step(agent, request, usage, now)
        return self.take()

    def end_step(self, agent, request, usage, now):
        memory = agent.backend
        total = agent.contexts.pop(request)
        if usage is not None:
            total = usage.total_tokens
            if not self.strict and memory.capacity is not None:
                total = min(total, memory.capacity)
            if agent.parent is not None and not agent.inherited and usage.cached_tokens:
                agent.inherited = min(usage.cached_tokens, agent.parent.tokens, total)
        self.end_context(agent, total)
        if agent.waiting and not agent.contexts:
            self.move_on(agent, now)
        elif not agent.name:
            self.forget(agent, "ended", now)
        elif not agent.busy:
            was_marked, agent.marked = agent.marked, False
            self.begin_acting(agent, now)
            agent.share = self.estimate(agent, now)
            self.settle_idle(agent, now)
            if (reason := self.must_leave(agent)) is not None:
                self.pause(agent, reason, now)
            elif was_marked and self.strict:
                self.pause(agent, "overflow", now)
            givers = [self.givers(model, memory, [agent], now) for model in memory.models if self.events]
            if agent.backend is memory and any(givers):
                self.pause(agent, "made_room", now)
        self.react(memory, now)

    def move_on(self, agent, now):
        self.pause(agent, self.must_leave(agent), now)
        if not self.serving(agent.model):
            self.refuse(agent, "no_backend", now)
        elif not self.tr:
            self.resume(agent, self.with_fewest(agent.model), "placed", now)
        elif self.oversized(agent.model, agent.tokens):
            self.refuse(agent, "oversized", now)
        else:
            self.use_room(agent.model, self.serving(agent.model), now)

    def move(self, request, now):
        self.run_due(now)
        agent = self.agent_of(request)
        if agent is None or request not in agent.contexts:
            return self.take()
        reason, left = self.must_leave(agent), agent.backend
        if len(agent.contexts) > 1 and reason is None:
            self.say(now, agent, "grant", "sticky", request)
            return self.take()
        tokens = agent.contexts.pop(request)
        if agent.contexts or agent.waiting:
            self.wait(agent, request, tokens, now)
            self.count_tokens(agent)
            self.say(now, agent, "wait", reason, request)
            if not agent.contexts:
                self.move_on(agent, now)
        else:
            self.end_context(agent, tokens)
            self.pause(agent, "backend_down", now)
            self.place_or_wait(agent, request, tokens, now, left)
        self.react(left, now)
        return self.take()

    def release(self, tenant, name, now):
        self.run_due(now)
        found = [a for a in self.agents if name and (a.tenant, a.name) == (tenant, name)]
        touched = dict.fromkeys(a.backend for a in found if a.backend is not None)
        for agent in found:
            self.forget(agent, "released", now)
        for memory in touched:
            self.react(memory, now)
        return bool(found), self.take()

    def set_backend(self, index, now, *, models, status=BackendStatus.UP, capacity=None, shared_tokens=0):
        self.run_due(now)
        memory = next((m for m in self.memories if m.index == index), None)
        if memory is None:
            memory = Memory(index)
            self.memories.append(memory)
        before = (memory.status, memory.models)
        other_capacity, memory.capacity = capacity != memory.capacity, capacity
        memory.active_at_report = self.active(memory)
        memory.shared = min(shared_tokens, memory.active_at_report)
        memory.status, memory.models = status, frozenset(models)
        if before != (memory.status, memory.models):
            for agent in self.at(memory):
                if (reason := self.must_leave(agent)) is None:
                    self.grant_waiting(agent, "sticky", now)
                elif not agent.contexts:
                    self.pause(agent, reason, now)
        if other_capacity:
            for model in sorted(memory.models):
                for agent in [a for a in self.queue(model) if a.waiting and self.oversized(model, a.tokens)]:
                    self.refuse(agent, "oversized", now)
        self.react(memory, now)
        return self.take()

    def advance(self, now):
        self.run_due(now)
        return self.take()

    def run_due(self, now):
        while True:
            expiring = min((a for a in self.agents if a.expires), key=lambda a: a.expires, default=None)
            waited = min((a for a in self.agents if a.wait_ends), key=lambda a: a.wait_ends, default=None)
            tick = self.last_tick + self.config.scheduler_interval_secs * SECOND if self.tr and self.agents else now + 1
            expiry = expiring.expires[0] if expiring else now + 1
            wait_end = waited.wait_ends[0] if waited else now + 1
            due = min(expiry, wait_end, tick)
            if due > now:
                break
            if due == expiry:
                self.expire(expiring, due)
            elif due == wait_end:
                self.end_wait(waited, due)
            else:
                self.last_tick = due
                self.tick(due)
        if not self.agents:
            self.last_tick = now

    def expire(self, agent, now):
        family = [a for a in self.agents if a is not agent and self.is_below(a, agent)]
        active_at = max((now if a.busy else a.last_active for a in family), default=agent.last_active)
        ends = active_at + self.config.program_ttl_secs * SECOND
        if ends > now:
            agent.expires = (ends, self.next_number())
            return
        memory = agent.backend
        self.forget(agent, "expired", now)
        if memory is not None:
            self.react(memory, now)

    def is_below(self, agent, ancestor):
        return agent is ancestor or (agent.parent is not None and self.is_below(agent.parent, ancestor))

    def end_wait(self, agent, now):
        agent.wait_ends = None
        best = self.roomiest(self.open(agent.model), self.remaining) if agent.backend is None else None
        if best is not None:
            self.resume(agent, best, "max_wait", now)
        else:
            self.refuse(agent, "no_backend", now)
