"""A second, naive programs core, written from the rules: no heap and no running sum, lists are sorted when they are needed.

It takes the inputs of `Programs` with the same arguments and returns its decisions as plain tuples.
"""

from dataclasses import dataclass, field
from math import ceil, inf

from maitred.core.units import SECOND
from maitred.programs import BackendStatus

UP, DOWN = BackendStatus.UP, BackendStatus.DOWN
HIGHEST_CLASS = 3


@dataclass(eq=False)
class Memory:
    index: int
    status: BackendStatus = UP
    capacity: int | None = None
    models: frozenset = frozenset()
    shared: int = 0
    active_at_report: int = 0


@dataclass(eq=False)
class Agent:
    serial: int
    tenant: str
    name: str
    model: str
    last_active: int
    parent: "Agent | None" = None
    priority: int = 1
    acting: bool = False
    paused: bool = False
    backend: Memory | None = None
    tokens: int = 0
    ended: dict = field(default_factory=dict)
    """Tokens of contexts in memory by the number of the end of their last request."""
    num_ended: int = 0
    contexts: dict = field(default_factory=dict)
    waiting: dict = field(default_factory=dict)
    steps: int = 0
    acting_since: int = 0
    waiting_since: int = 0
    wait_ends: tuple | None = None
    expires: tuple | None = None
    idle_since: tuple | None = None
    settles_at: int = 0
    was_placed: bool = False
    marked: bool = False
    share: float = 1.0
    tools: list = field(default_factory=list)
    inherited: int = 0
    registered: int = 0
    pause_number: int = 0

    @property
    def root(self):
        return self if self.parent is None else self.parent.root

    @property
    def busy(self):
        return bool(self.contexts or self.waiting)

    @property
    def generation(self):
        return 0 if self.parent is None else 1 + self.parent.generation

    @property
    def tool_secs(self):
        """The mean of the tool times, a new one weighs 0.2, in µs."""
        mean = float(self.tools[0])
        for time in self.tools[1:]:
            mean = (1 - 0.8) * time + 0.8 * mean
        return mean


class NaivePrograms:
    def __init__(self, config):
        self.config = config
        self.strict = config.flavour == "thunderagent"
        self.tr = config.mode == "tr"
        self.events = self.tr and not self.strict
        self.agents, self.memories = [], []
        self.last_tick = self.num_created = self.number = 0
        self.decided = []

    # What follows from what.

    def charge(self, agent):
        tokens, parent = agent.tokens, agent.parent
        if parent is not None and parent.backend is not None and parent.backend is agent.backend:
            tokens = max(0, tokens - agent.inherited)
        return round(agent.share * tokens * 1024) / 1024 if agent.acting else tokens

    def at(self, memory):
        return sorted((a for a in self.agents if a.backend is memory), key=lambda a: a.registered)

    def active(self, memory):
        return int(sum(self.charge(a) for a in self.at(memory)))

    def used(self, memory):
        active = self.active(memory)
        shared = memory.shared * min(active, memory.active_at_report) // max(1, memory.active_at_report)
        return active - shared + self.config.buffer_tokens * len(self.at(memory))

    def remaining(self, memory):
        return inf if memory.capacity is None else memory.capacity - self.used(memory)

    def room(self, memory):
        has_headroom = not self.strict and self.at(memory) and memory.capacity is not None
        return self.remaining(memory) - (self.config.headroom * memory.capacity if has_headroom else 0)

    def freed(self, agent):
        return self.charge(agent) + self.config.buffer_tokens

    def serving(self, model):
        return [m for m in self.memories if model in m.models]

    def open(self, model):
        return [m for m in self.serving(model) if m.status is UP]

    def roomiest(self, memories, room):
        return max(memories, key=lambda m: (room(m), -self.active(m)), default=None)

    def pause_order(self, agents):
        return sorted(agents, key=lambda a: (a.root.priority, a.root.tokens, a.root.serial, a.serial))

    def queue(self, model):
        return sorted((a for a in self.agents if a.paused and a.model == model), key=self.resume_key)

    def resume_key(self, agent):
        root = agent.root
        group = 2 if not agent.waiting else 1 if root.steps <= 1 else 0
        if self.strict:
            return (-root.priority, group, root.tokens, agent.pause_number)
        since = root.waiting_since if root.waiting else root.last_active
        place = since + self.config.ageing_secs_per_1k_tokens * 1000 * root.tokens
        return (-root.priority, group, place, root.serial, agent.serial)

    def estimate(self, agent, now):
        name, time = self.config.estimator, now - agent.acting_since
        if name == "decay":
            return 2.0 ** (-time / SECOND)
        if name == "learned":
            grace = max(4 * agent.tool_secs if agent.tools else 0, 5 * SECOND)
            return 1.0 if time <= grace else 2.0 ** ((grace - time) / SECOND)
        return float(name[len("fixed(weight=") : -1]) if "(" in name else 1.0

    def need(self, agent, now):
        share = 1 if agent.waiting or self.strict else max(1, self.estimate(agent, now))
        return ceil(share * agent.tokens) + self.config.buffer_tokens

    def must_leave(self, agent):
        if agent.backend.status is DOWN:
            return "backend_down"
        return None if agent.backend.status is UP and agent.model in agent.backend.models else "drained"

    def oversized(self, model, tokens):
        memories = self.serving(model)
        too_small = (m.capacity is not None and tokens + self.config.buffer_tokens > m.capacity for m in memories)
        return not self.strict and bool(memories) and all(too_small)

    def next_number(self):
        self.number += 1
        return self.number

    # Changes of one program.

    def say(self, now, agent, action, reason, request=None):
        backend = None if agent is None or agent.backend is None else agent.backend.index
        self.decided.append((now, 0 if agent is None else agent.serial, action, reason, request, backend))

    def count_tokens(self, agent):
        idle, under_way = sum(agent.ended.values()), sum(agent.contexts.values())
        agent.tokens = max(idle, under_way) if self.strict else idle + under_way

    def begin_acting(self, agent, now):
        agent.acting, agent.acting_since = True, now

    def place(self, agent, memory, now):
        agent.paused, agent.was_placed, agent.backend, agent.registered = False, True, memory, self.next_number()
        agent.settles_at = now + self.config.min_stay_secs * SECOND if self.events else 0
        if agent.acting:
            agent.share = self.estimate(agent, now)

    def start(self, agent, request, tokens):
        continued = [n for n, size in agent.ended.items() if size * 8 <= tokens * 9]
        trimmed = [n for n, size in agent.ended.items() if size <= 3 * tokens]
        if self.strict and not agent.contexts:
            agent.ended = {}
        elif not self.strict and continued:
            del agent.ended[max(continued, key=lambda n: (agent.ended[n], -n))]
        elif not self.strict and trimmed:
            del agent.ended[min(trimmed, key=lambda n: (agent.ended[n], n))]
        agent.contexts[request] = tokens
        self.evict(agent, sum(agent.contexts.values()))
        agent.acting = False
        self.count_tokens(agent)

    def evict(self, agent, in_use):
        """What does not fit into the memory beside `in_use` tokens is gone from it, oldest first."""
        room = inf if self.strict or agent.backend.capacity is None else agent.backend.capacity - self.config.buffer_tokens
        left = max(0, room - in_use)
        for number in sorted(agent.ended, reverse=True):  # the youngest keep theirs
            agent.ended[number] = min(agent.ended[number], left)
            left -= agent.ended[number]
        agent.ended = {number: size for number, size in agent.ended.items() if size}

    def end_context(self, agent, tokens):
        self.evict(agent, sum(agent.contexts.values()) + tokens)
        agent.num_ended += 1
        agent.ended[agent.num_ended] = tokens
        kept = 1 if self.strict else 8
        agent.ended = {number: size for number, size in agent.ended.items() if number > agent.num_ended - kept}
        self.count_tokens(agent)

    def last(self, agent):
        return agent.ended[max(agent.ended)] if agent.ended else 0

    def grant_waiting(self, agent, reason, now):
        waiting, agent.waiting, agent.wait_ends = agent.waiting, {}, None
        for request, tokens in waiting.items():
            self.start(agent, request, tokens)
            self.say(now, agent, "grant", reason, request)

    def resume(self, agent, memory, reason, now):
        self.place(agent, memory, now)
        agent.ended = {} if agent.waiting else agent.ended
        self.say(now, agent, "resume", reason)
        self.grant_waiting(agent, "resumed", now)

    def pause(self, agent, reason, now):
        self.say(now, agent, "pause", reason)
        agent.backend, agent.marked, agent.paused, agent.pause_number = None, False, True, self.next_number()
        agent.ended = {number: size for number, size in agent.ended.items() if number == max(agent.ended)}
        agent.tokens = sum(agent.waiting.values()) if agent.waiting else self.last(agent)
        if not agent.waiting and not agent.acting:
            self.begin_acting(agent, now)

    def wait(self, agent, request, tokens, now):
        if not agent.waiting:
            agent.waiting_since = now
            agent.wait_ends = (now + self.config.max_wait_secs * SECOND, self.next_number())
        agent.waiting[request] = tokens
        agent.acting = False

    def forget(self, agent, reason, now):
        for request in agent.waiting:
            self.say(now, agent, "reject", reason, request)
        self.say(now, agent, "end", reason)
        self.agents.remove(agent)
        for child in self.agents:
            child.parent = None if child.parent is agent else child.parent

    def settle_idle(self, agent, now):
        if agent.busy:
            return
        if not agent.name or (agent.backend is None and not agent.paused):
            self.forget(agent, "ended", now)
            return
        agent.idle_since = (now, self.next_number())
        agent.expires = (now + self.config.program_ttl_secs * SECOND, self.next_number())

    def refuse(self, agent, reason, now):
        for request in agent.waiting:
            self.say(now, agent, "reject", reason, request)
        self.leave_queue(agent, list(agent.waiting), now)

    def leave_queue(self, agent, requests, now):
        for request in requests:
            del agent.waiting[request]
        if not agent.waiting:
            agent.wait_ends = None
        if agent.backend is not None:
            return
        agent.tokens = sum(agent.waiting.values()) if agent.waiting else self.last(agent)
        if not agent.waiting:
            self.begin_acting(agent, now)
        if agent.waiting or agent.was_placed:
            self.settle_idle(agent, now)
        else:
            self.forget(agent, "ended", now)
        self.use_room(agent.model, self.serving(agent.model), now)

    # Who is paused, and who is resumed.

    def too_long(self, model, secs, now):
        """Return the program that has waited longest, if that is for `secs`."""
        waiting = [a for a in self.queue(model) if a.waiting]
        oldest = min(waiting, key=lambda a: (-a.root.priority, a.waiting_since, a.serial), default=None)
        if oldest is None or self.strict or now - oldest.waiting_since < secs * SECOND:
            return None
        first = {}  # of each tenant
        for agent in sorted(waiting, key=lambda a: (-a.root.priority, a.waiting_since, a.serial)):
            first.setdefault(agent.tenant, agent)
        overdue = [a for a in first.values() if now - a.waiting_since >= secs * SECOND]
        return min(overdue, key=lambda a: (-a.root.priority, self.held(a.tenant), a.waiting_since, a.serial))

    def held(self, tenant):
        return sum(self.charge(a) for a in self.agents if a.tenant == tenant and a.backend is not None)

    def givers(self, model, memory, agents, now):
        """Return those of `agents` that are paused for another tenant's turn, and what they would free too few tokens by."""
        taker = self.too_long(model, self.config.patience_secs, now)
        best = self.roomiest(self.open(model), self.room)
        if taker is None or best is None or memory not in (None, best):
            return []
        need = taker.tokens + self.config.buffer_tokens
        missing, own = need - self.room(best), self.held(taker.tenant)
        least = own + need if own else 0
        others = {a.tenant: self.held(a.tenant) for a in self.agents if a.tenant != taker.tenant}
        spare = sum(max(0, held - least) for held in others.values())
        if missing <= 0 or need > best.capacity or (own and spare < missing):
            return []
        found, left = [], missing
        for agent in self.pause_order(a for a in agents if a.backend is best and a.acting):
            if left <= 0 or agent.tenant == taker.tenant or agent.settles_at > now:
                continue
            if agent.root.priority > taker.root.priority or others[agent.tenant] - self.charge(agent) < least:
                continue
            others[agent.tenant] -= self.charge(agent)
            left -= self.freed(agent)
            found.append(agent)
        return found if left > 0 or memory is not None else self.victims(found, missing)

    def serve_oldest(self, model, reason, now):
        while (oldest := self.too_long(model, self.config.patience_secs, now)) is not None:
            best = self.roomiest(self.open(model), self.room)
            if best is None or self.need(oldest, now) > self.room(best):
                return best
            self.resume(oldest, best, reason, now)
        return None

    def use_room(self, model, memories, now):
        if not self.events or not self.queue(model):
            return
        while True:
            held = self.serve_oldest(model, "room", now)
            best = self.roomiest([m for m in memories if m.status is UP and m is not held], self.room)
            fitting = [] if best is None else [a for a in self.queue(model)[:4] if self.need(a, now) <= self.room(best)]
            if not fitting:
                return
            self.resume(fitting[0], best, "room", now)

    def relieve(self, memory, now):
        while self.remaining(memory) < 0 and memory.models:
            acting = self.pause_order(a for a in self.at(memory) if a.acting)
            victims = self.victims([a for a in acting if a.settles_at <= now], -self.remaining(memory))
            missing = -self.remaining(memory) - sum(map(self.freed, victims))
            if missing > 0:
                victims += self.victims([a for a in acting if a.settles_at > now], missing)
            for agent in victims:
                self.pause(agent, "overflow", now)
            if not victims:
                break
        if memory.models:
            self.mark(memory, now)

    def victims(self, agents, missing):
        victims = []
        while agents and sum(map(self.freed, victims)) < missing:
            victims.append(agents.pop(0))
        if self.strict or sum(map(self.freed, victims)) < missing:
            return victims
        last_class = victims[-1].root.priority if victims else 0
        for agent in list(victims):
            others = sum(map(self.freed, victims)) - self.freed(agent)
            if others >= missing and agent.root.priority == last_class:
                victims.remove(agent)
        return victims

    def mark(self, memory, now):
        excess = max(0, -self.remaining(memory))
        running = self.pause_order(a for a in self.at(memory) if not a.acting)
        marks = [a for a in running if a.marked]
        for agent in reversed(list(marks)):
            if sum(map(self.freed, marks)) - self.freed(agent) >= excess:
                marks.remove(agent)
                agent.marked = False
                self.say(now, agent, "unmark", "pressure_ended")
        unmarked = [a for a in running if not a.marked and a not in marks]
        while unmarked and sum(map(self.freed, marks)) < excess:
            agent = unmarked.pop(0)
            agent.marked = True
            marks.append(agent)
            self.say(now, agent, "mark", "overflow")

    def room_without_acting(self, memory):
        return self.room(memory) + sum(self.charge(a) for a in self.at(memory) if a.acting)

    def make_room(self, model, now):
        oldest = self.too_long(model, self.config.displace_secs, now)
        best = max(self.open(model), key=self.room_without_acting, default=None)
        if oldest is None or best is None or self.room(best) >= self.need(oldest, now):
            return
        acting = self.pause_order(a for a in self.at(best) if a.acting and a.settles_at <= now)
        while acting and acting[-1].root.priority > oldest.root.priority:
            acting.pop()
        missing = self.need(oldest, now) - self.room(best)
        everything = len(acting) == len(self.at(best)) and self.need(oldest, now) <= best.capacity
        if sum(map(self.freed, acting)) >= missing or everything:
            for agent in self.victims(acting, missing):
                self.pause(agent, "made_room", now)

    def make_room_of_idle(self, model, now):
        oldest = self.too_long(model, 0, now)
        best = self.roomiest(self.open(model), self.room)
        missing = 0 if oldest is None or best is None else oldest.tokens + self.config.buffer_tokens - self.room(best)
        if missing <= 0:
            return False
        idle = [a for a in self.at(best) if a.acting and a.share <= 1 / 32 and a.root.priority <= oldest.root.priority]
        is_enough = sum(map(self.freed, idle)) >= missing
        for agent in self.victims(self.pause_order(idle), missing) if is_enough else []:
            self.pause(agent, "made_room", now)
        return is_enough

    def resume_all(self, model, now):
        for _ in range(1 if self.strict else 4):
            held = self.serve_oldest(model, "room", now)
            rooms = [[m, self.room(m), self.active(m)] for m in self.open(model) if m is not held]
            rooms = sorted((r for r in rooms if r[1] > self.config.buffer_tokens), key=lambda r: -r[1])
            chosen = self.choose(model, rooms, now)
            placed = False
            for agent, need in chosen:
                if held is None and self.too_long(model, self.config.patience_secs, now) is not None:
                    break
                rooms.sort(key=lambda r: (-r[1], r[2] if r[1] == inf else 0))
                if need <= rooms[0][1]:
                    rooms[0][1] -= need
                    rooms[0][2] += need
                    self.resume(agent, rooms[0][0], "room", now)
                    placed = True
            if not placed:
                return

    def choose(self, model, rooms, now):
        left, chosen = sum(r[1] for r in rooms), []
        largest = max((r[1] for r in rooms), default=0)
        for agent in self.queue(model) if rooms else []:
            need = self.need(agent, now)
            if need <= left and (self.strict or need <= largest):
                left -= need
                chosen.append((agent, need))
        return sorted(chosen, key=lambda pair: (0 if self.strict else -pair[0].root.priority, -pair[0].tokens))

    def react(self, memory, now):
        if self.events:
            self.relieve(memory, now)
            for model in sorted(memory.models):
                self.use_room(model, [memory], now)

    def tick(self, now):
        for agent in self.agents:
            if agent.backend is not None and agent.acting:
                agent.share = self.estimate(agent, now)
        for model in sorted({model for m in self.memories for model in m.models}):
            self.make_room(model, now)
            self.resume_all(model, now)
            if self.make_room_of_idle(model, now):
                self.resume_all(model, now)
            givers = self.givers(model, None, self.agents, now)
            for agent in givers:
                self.pause(agent, "made_room", now)
            if givers:
                self.resume_all(model, now)
        for memory in self.memories:
            self.relieve(memory, now)
