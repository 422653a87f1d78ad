"""A core with a timeline: programs are named, time is in seconds, tokens are exact; decisions read as words."""

from maitred.core.request import PriorityClass
from maitred.core.units import SECOND
from maitred.programs import ProgramAction, ProgramReason, ProgramRequest, Programs, ProgramsConfig, ProgramState, Usage

STATES = (ProgramAction.PAUSE, ProgramAction.RESUME, ProgramAction.MARK, ProgramAction.UNMARK)


class Timeline:
    """Backends b1, b2, ... with the given capacities; all serve the model `m`."""

    def __init__(self, *capacities, mode="tr", **config):
        self.core = Programs(ProgramsConfig(mode=mode, **{"acting_estimator": "fixed"} | config))
        self.now = 0
        self.requests = {}  # by program, those under way or waiting, oldest first
        self.num_requests = 0
        self.log = []
        for index, capacity in enumerate(capacities):
            self.backend(index, capacity=capacity)

    def at(self, seconds):
        """Let time pass until `seconds`."""
        self.now = round(seconds * SECOND)
        return self.follow(self.core.advance(self.now))

    def start(self, name, tokens, **more):
        """A request of a program comes, and stays under way or waits. Return the last word about it."""
        self.num_requests += 1
        request = ProgramRequest(id=self.num_requests, model="m", program=name, prompt_tokens=tokens, **more)
        self.requests.setdefault(name, []).append(request.id)
        decisions = self.follow(self.core.begin(request, self.now))
        last = [d for d in decisions if d.request == request.id][-1]
        return f"{last.action} {last.reason}"

    def end(self, name, total=None, *, prompt=0, cached=None):
        """The oldest request of a program has ended, with `total` tokens as its usage, or without one."""
        usage = None if total is None else Usage(prompt, total, cached)
        return self.follow(self.core.end(self.requests[name].pop(0), usage, self.now))

    def run(self, name, tokens, total=None, **more):
        """A request comes, goes at once, and ends."""
        said = self.start(name, tokens, **more)
        assert said.startswith("grant"), said
        self.end(name, tokens if total is None else total)
        return said

    def release(self, name, tenant=""):
        decisions = self.core.release(tenant, name, self.now)
        self.follow(decisions)
        return any(decision.reason is ProgramReason.RELEASED for decision in decisions)

    def backend(self, index, **known):
        return self.follow(self.core.set_backend(index, self.now, **{"models": ["m"], **known}))

    def follow(self, decisions):
        self.core.check()
        self.log.extend(decisions)
        return decisions

    def program(self, name, tenant=""):
        return next(self.core.find(tenant, name))

    def where(self, *names):
        """Return the backends of programs as b1, b2, ...; None for those that are paused."""
        indexes = [self.program(name).backend for name in names]
        return [None if index is None else f"b{index + 1}" for index in indexes]

    def snapshot(self, name):
        program = self.program(name)
        return (*self.where(name), str(program.state), str(program.phase), program.tokens)

    def changes(self, since=0):
        """Return the changes of programs' states since the n-th decision as words: `pause A`."""
        names = {p.serial: p.key.name for p in self.core.programs}
        return [f"{d.action} {names.get(d.program, d.program)}" for d in self.log[since:] if d.action in STATES]

    def waits(self, name):
        return bool(self.program(name).waiting)


def strict(*capacities, **config):
    """Return a timeline of the flavour `thunderagent`."""
    return Timeline(*capacities, flavour="thunderagent", **config)


def pressed(headroom=0.0, **config):
    """Return a timeline with one backend of 10,000 tokens without headroom."""
    return Timeline(10_000, headroom=headroom, **config)


def paused(timeline, name):
    return timeline.program(name).state is ProgramState.PAUSED


BULK, SYSTEM = PriorityClass.BULK, PriorityClass.SYSTEM
