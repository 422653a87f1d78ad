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

from maitred.core.request import Request, RequestId
from maitred.core.slo_classes import priority_class_of
from maitred.core.units import Micros
from maitred.workload.job import Job
from maitred.workload.lengths import LengthDistribution
from maitred.workload.prefix_keys import NO_PIECES, PieceChain
from maitred.workload.spec_clients import DEFAULT_PREFIX_TOKENS, DEFAULT_TIMEOUT, V1_SLO_CLASSES, Client, Cohort, Sender
from maitred.workload.spec_parts import LengthSpec, MultiTurn, build_lengths

SINGLE_ROUND: Final = MultiTurn(max_rounds=1)


class PieceNumbers:
    """Numbers for pieces of text: even ones for the shared prefixes of a workload, odd ones for what is said once."""

    def __init__(self) -> None:
        self._group_numbers: dict[str, int] = {}

    def shared_prefix(self, name: str, tokens: int) -> PieceChain:
        """What prompts of the group `name` begin with."""
        return NO_PIECES.append(2 * self._group_numbers.setdefault(name, len(self._group_numbers)), tokens)

    def own_piece(self, request_id: RequestId) -> int:
        """The number of what this request says and is answered."""
        return 2 * request_id + 1


class Round(msgspec.Struct, frozen=True, gc=False):
    """One round: tokens of the prompt that are new in it, and of its answer."""

    prompt_tokens: int
    output_tokens: int


class RoundSampler:
    """Draws what a client, or a cohort, or one user says."""

    def __init__(self, sender: Client | Cohort, stream: str) -> None:
        """`stream` begins the names of its streams."""
        self._lengths = _lengths_by_window(sender)
        self._prompt, self._answer = (Random(f"{stream}/{name}").random for name in ("input_tokens", "output_tokens"))

    def draw(self, window: int) -> Round:
        """One round, in a window of the client; -1: it has none."""
        prompts, answers = self._lengths[window]
        return Round(prompts.draw(self._prompt), answers.draw(self._answer))


class VirtualClient:
    """One client, one member of a cohort or one user, and all that its requests have in common."""

    def __init__(self, sender: Client | Cohort, name: str, round_sampler: RoundSampler, piece_numbers: PieceNumbers) -> None:
        """`name` is its client id."""
        self.multi_turn = sender.multi_turn or SINGLE_ROUND
        self.shared_prefix = _shared_prefix_of(sender, name, piece_numbers)
        """What its prompts begin with."""
        self._name = name
        self._sender = sender
        self._round_sampler = round_sampler
        self._piece_numbers = piece_numbers
        self._slo_class = V1_SLO_CLASSES.get(sender.slo_class, sender.slo_class)
        self._priority_class = priority_class_of(self._slo_class)
        self._timeout = _timeout_of(sender)
        self._num_sessions = 0

    def draw_round(self, window: int = -1) -> Round:
        """What one round says."""
        return self._round_sampler.draw(window)

    def start_session(self, window: int = -1) -> ClientSession:
        """A new one."""
        self._num_sessions += 1
        program = f"{self._name}/{self._num_sessions}" if self.multi_turn.max_rounds > 1 else ""
        return ClientSession(self, program, [self.draw_round(window) for _ in range(self.multi_turn.max_rounds)])

    def make_job(self, request_id: RequestId, arrival: Micros, drawn: Round, history: PieceChain | None, program: str) -> Job:
        """The request of a round, after what has been `said` in its session; None: a session without memory."""
        sender, before = self._sender, self.shared_prefix if history is None else history
        content = None
        if history is not None or before.tokens:
            content = before.append(self._piece_numbers.own_piece(request_id), drawn.prompt_tokens)
        request = Request(
            id=request_id,
            arrival=arrival,
            prompt_tokens=before.tokens + drawn.prompt_tokens,
            client_id=self._name,
            model=sender.model,
            priority_class=self._priority_class,
            tenant=sender.tenant_id,
            program=program,
            stream=sender.streaming,
            routing_key=sender.adapter,
            cache_namespace=sender.adapter,
            deadline=arrival + self._timeout if self._timeout else None,
            slo_class=self._slo_class,
            slo_target=sender.slo_target_us or None,
            prefix=content,
        )
        return Job(
            request,
            drawn.output_tokens,
            content.extend_last(drawn.output_tokens) if history is not None and content is not None else None,
        )


class ClientSession:
    """One conversation, between its rounds. `accumulate`: each prompt holds what was said before."""

    def __init__(self, client: VirtualClient, program: str, rounds: Sequence[Round]) -> None:
        self.client = client
        self._program = program
        self._rounds = rounds
        self._next_index = 0
        self._history = client.shared_prefix if client.multi_turn.context_growth == "accumulate" else None

    def next_job(self, request_id: RequestId, arrival: Micros) -> Job:
        """Its next round."""
        turn = self._rounds[self._next_index]
        self._next_index += 1
        job = self.client.make_job(request_id, arrival, turn, self._history, self._program)
        if self._history is not None:
            assert isinstance(job.request.prefix, PieceChain)
            self._history = job.request.prefix
        return job

    def on_answer(self, answer_tokens: int) -> None:
        """The answer to its latest round."""
        if self._history is not None:
            self._history = self._history.extend_last(answer_tokens)

    @property
    def is_over(self) -> bool:
        return self._next_index == len(self._rounds)


def _timeout_of(sender: Client | Cohort) -> Micros:
    """µs; 0: none."""
    if sender.timeout is not None:
        return sender.timeout
    waits = isinstance(sender, Client) and sender.concurrency > 0
    return DEFAULT_TIMEOUT if waits or (sender.multi_turn is not None and sender.closed_loop is not False) else 0


def _shared_prefix_of(sender: Client | Cohort, name: str, groups: PieceNumbers) -> PieceChain:
    if not sender.prefix_group:
        return NO_PIECES
    own = isinstance(sender, Cohort) and sender.prefix_sharing == "per_member"
    group = f"{sender.prefix_group}\0{name}" if own else sender.prefix_group
    return groups.shared_prefix(group, DEFAULT_PREFIX_TOKENS if sender.prefix_length is None else sender.prefix_length)


def _lengths_by_window(sender: Sender) -> dict[int, tuple[LengthDistribution, LengthDistribution]]:
    """Prompts and answers, by window; -1: outside of windows."""

    def pair(prompts: LengthSpec, answers: LengthSpec) -> tuple[LengthDistribution, LengthDistribution]:
        return build_lengths("input_distribution", prompts), build_lengths("output_distribution", answers)

    usual_prompts, usual_answers = sender.input_distribution, sender.output_distribution
    windows = sender.lifecycle.windows if isinstance(sender, Client) and sender.lifecycle else ()
    of = {-1: pair(usual_prompts, usual_answers)}
    for index, window in enumerate(windows):
        of[index] = pair(window.input_distribution or usual_prompts, window.output_distribution or usual_answers)
    return of
