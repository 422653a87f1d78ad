"""Who asks: a client's requests one by one, and its sessions, in which a prompt holds all that was said before.

A session knows from its beginning what it will say: the lengths of all its rounds are drawn when it starts, so that they are
the same whenever its answers come, under whatever policy. What only the run can tell is when, and how much of an answer was
produced.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from maitred.request import Request, RequestId
from maitred.slo_classes import class_of
from maitred.units import Micros
from maitred.workload.content import NOTHING, Content
from maitred.workload.job import Job
from maitred.workload.lengths import Lengths
from maitred.workload.spec_clients import USUAL_PREFIX, USUAL_TIMEOUT, V1_NAMES, Client, Cohort, Sender
from maitred.workload.spec_lengths import Tokens, lengths
from maitred.workload.spec_parts import MultiTurn

SINGLE: Final = MultiTurn(max_rounds=1)


class Groups:
    """Numbers for pieces of text: even ones for the shared prefixes of a workload, odd ones for what is said once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def prefix(self, name: str, tokens: int) -> Content:
        """What prompts of the group `name` begin with."""
        return NOTHING.then(2 * self._numbers.setdefault(name, len(self._numbers)), tokens)

    def own(self, request_id: RequestId) -> int:
        """The number of what this request says and is answered."""
        return 2 * request_id + 1


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One round: tokens of the prompt that are new in it, and of its answer."""

    prompt: int
    answer: int


class Turns:
    """Draws what a client, or a cohort, or one user says."""

    def __init__(self, sender: Client | Cohort, stream: str) -> None:
        """`stream` begins the names of its streams."""
        self._lengths = _lengths(sender)
        self._prompt, self._answer = (Random(f"{stream}/{name}").random for name in ("input_tokens", "output_tokens"))

    def draw(self, window: int) -> Turn:
        """One round, in a window of the client; -1: it has none."""
        prompts, answers = self._lengths[window]
        return Turn(prompts.draw(self._prompt), answers.draw(self._answer))


class Asker:
    """One client, one member of a cohort or one user, and all that its requests have in common."""

    def __init__(self, sender: Client | Cohort, name: str, turns: Turns, groups: Groups) -> None:
        """`name` is its client id."""
        self.rounds = sender.multi_turn or SINGLE
        self.begins = _prefix(sender, name, groups)
        """What its prompts begin with."""
        self._name = name
        self._sender = sender
        self._turns = turns
        self._groups = groups
        self._slo_class = V1_NAMES.get(sender.slo_class, sender.slo_class)
        self._class = class_of(self._slo_class)
        self._timeout = _timeout(sender)
        self._sessions = 0

    def turn(self, window: int = -1) -> Turn:
        """What one round says."""
        return self._turns.draw(window)

    def session(self, window: int = -1) -> Session:
        """A new one."""
        self._sessions += 1
        program = f"{self._name}/{self._sessions}" if self.rounds.max_rounds > 1 else ""
        return Session(self, program, [self.turn(window) for _ in range(self.rounds.max_rounds)])

    def job(self, request_id: RequestId, at: Micros, turn: Turn, said: Content | None, program: str) -> Job:
        """The request of a round, after what has been `said` in its session; None: a session without memory."""
        sender, before = self._sender, self.begins if said is None else said
        content = None
        if said is not None or before.tokens:
            content = before.then(self._groups.own(request_id), turn.prompt)
        request = Request(
            id=request_id,
            arrival=at,
            prompt_tokens=before.tokens + turn.prompt,
            client_id=self._name,
            model=sender.model,
            priority_class=self._class,
            tenant=sender.tenant_id,
            program=program,
            stream=sender.streaming,
            routing_key=sender.adapter,
            cache_namespace=sender.adapter,
            deadline=at + self._timeout if self._timeout else None,
            slo_class=self._slo_class,
            slo_target=sender.slo_target_us or None,
            prefix=content,
        )
        return Job(request, turn.answer, content.grown(turn.answer) if said is not None and content is not None else None)


class Session:
    """One conversation, between its rounds. `accumulate`: each prompt holds what was said before."""

    def __init__(self, asker: Asker, program: str, turns: Sequence[Turn]) -> None:
        self.asker = asker
        self._program = program
        self._turns = turns
        self._next = 0
        self._said = asker.begins if asker.rounds.context_growth == "accumulate" else None

    def ask(self, request_id: RequestId, at: Micros) -> Job:
        """Its next round."""
        turn = self._turns[self._next]
        self._next += 1
        job = self.asker.job(request_id, at, turn, self._said, self._program)
        if self._said is not None:
            assert isinstance(job.request.prefix, Content)
            self._said = job.request.prefix
        return job

    def hear(self, answer_tokens: int) -> None:
        """The answer to its latest round."""
        if self._said is not None:
            self._said = self._said.grown(answer_tokens)

    @property
    def over(self) -> bool:
        return self._next == len(self._turns)


def _timeout(sender: Client | Cohort) -> Micros:
    """µs; 0: none."""
    if sender.timeout is not None:
        return sender.timeout
    waits = isinstance(sender, Client) and sender.concurrency > 0
    return USUAL_TIMEOUT if waits or (sender.multi_turn is not None and sender.closed_loop is not False) else 0


def _prefix(sender: Client | Cohort, name: str, groups: Groups) -> Content:
    if not sender.prefix_group:
        return NOTHING
    own = isinstance(sender, Cohort) and sender.prefix_sharing == "per_member"
    group = f"{sender.prefix_group}\0{name}" if own else sender.prefix_group
    return groups.prefix(group, USUAL_PREFIX if sender.prefix_length is None else sender.prefix_length)


def _lengths(sender: Sender) -> dict[int, tuple[Lengths, Lengths]]:
    """Prompts and answers, by window; -1: outside of windows."""

    def pair(prompts: Tokens, answers: Tokens) -> tuple[Lengths, Lengths]:
        return lengths("input_distribution", prompts), lengths("output_distribution", answers)

    usual_prompts, usual_answers = sender.input_distribution, sender.output_distribution
    windows = sender.lifecycle.windows if isinstance(sender, Client) and sender.lifecycle else ()
    of = {-1: pair(usual_prompts, usual_answers)}
    for index, window in enumerate(windows):
        of[index] = pair(window.input_distribution or usual_prompts, window.output_distribution or usual_answers)
    return of
