"""Sessions: the requests of one client, and its conversations. A prompt of a conversation may contain the history: all earlier
prompts and answers.

The lengths of all rounds of a session are drawn when it starts, so they are the same whenever its answers come, under whatever
policy. The run decides only when a round arrives, and how many tokens of an answer were produced.

Example: a conversation with `context_growth: accumulate` draws rounds of 100 and 30 new tokens, and the first answer has 50.
The second prompt has 180 tokens, of which the first 150 can be in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.core.request import Request, RequestId
from maitred.core.slo_classes import priority_class_of
from maitred.core.units import MILLISECOND, Micros
from maitred.workload.job import Job
from maitred.workload.lengths import LengthDistribution
from maitred.workload.prefix_keys import NO_PIECES, PieceChain
from maitred.workload.spec_clients import DEFAULT_PREFIX_TOKENS, DEFAULT_TIMEOUT, V1_SLO_CLASSES, Client, Cohort, Sender
from maitred.workload.spec_parts import LengthSpec, MultiTurn, build_lengths

SINGLE_ROUND: Final = MultiTurn(max_rounds=1)


class PieceNumbers:
    """Numbers for pieces of text: even ones for the shared prefixes of a workload, odd ones for text that occurs once."""

    def __init__(self) -> None:
        self._group_numbers: dict[str, int] = {}

    def shared_prefix(self, group: str, tokens: int) -> PieceChain:
        """Return the piece with which the prompts of `group` begin."""
        return NO_PIECES.append(2 * self._group_numbers.setdefault(group, len(self._group_numbers)), tokens)

    def own_piece(self, request_id: RequestId) -> int:
        """Return the number of the new tokens of a request and of its answer."""
        return 2 * request_id + 1


class Round(msgspec.Struct, frozen=True, gc=False):
    """The lengths of one round."""

    prompt_tokens: int
    """Tokens of the prompt that are new in this round."""
    output_tokens: int
    think_time: Micros = 0
    """Time from its answer to the next round."""
    children: Sequence[Sequence[Round]] = ()
    """The rounds of the sub-agents that work between this round and the next one."""


class RoundSampler:
    """Draws the rounds of a client, a cohort or one user."""

    def __init__(self, sender: Client | Cohort, stream: str) -> None:
        """`stream` is the prefix of the names of its random streams."""
        self._lengths_by_window = _lengths_by_window(sender)
        # Two streams, so that another distribution of prompts leaves the lengths of the answers as they are.
        self._prompt_draw = Random(f"{stream}/input_tokens").random
        self._output_draw = Random(f"{stream}/output_tokens").random
        self._multi_turn = multi_turn = sender.multi_turn or SINGLE_ROUND
        self._rounds = _optional_lengths(multi_turn.rounds_distribution)
        self._first_input = _optional_lengths(multi_turn.first_input_distribution)
        self._think_time = _optional_lengths(multi_turn.think_time_ms_distribution)
        self._child_rounds = _optional_lengths(multi_turn.fork.rounds_distribution if multi_turn.fork else None)
        self._round_draw = Random(f"{stream}/rounds").random
        self._first_draw = Random(f"{stream}/first_input").random
        self._think_draw = Random(f"{stream}/think_times").random
        self._child_draw = Random(f"{stream}/children").random

    def draw(self, window: int) -> Round:
        """Return a round in a window of the client, or outside of windows if `window` is -1."""
        prompts, outputs = self._lengths_by_window[window]
        return Round(prompts.draw(self._prompt_draw), outputs.draw(self._output_draw), self._draw_think_time())

    def draw_session(self, window: int) -> list[Round]:
        """Return the rounds of a session."""
        limit = self._multi_turn.max_rounds
        number = limit if self._rounds is None else min(limit, self._rounds.draw(self._round_draw))
        rounds = [self.draw(window) for _ in range(number)]
        if self._first_input is not None:
            rounds[0] = replace(rounds[0], prompt_tokens=self._first_input.draw(self._first_draw))
        fork = self._multi_turn.fork
        if fork is not None:
            for index in range(fork.every_rounds - 1, number - 1, fork.every_rounds):
                rounds[index] = replace(rounds[index], children=[self._draw_child(window) for _ in range(fork.children)])
        return rounds

    def _draw_child(self, window: int) -> list[Round]:
        assert self._child_rounds is not None
        return [self.draw(window) for _ in range(min(self._multi_turn.max_rounds, self._child_rounds.draw(self._child_draw)))]

    def _draw_think_time(self) -> Micros:
        if self._think_time is None:
            return self._multi_turn.think_time_us
        return self._think_time.draw(self._think_draw) * MILLISECOND


class VirtualClient:
    """One client, one member of a cohort or one user: the source of requests with one client id."""

    def __init__(self, sender: Client | Cohort, name: str, round_sampler: RoundSampler, piece_numbers: PieceNumbers) -> None:
        """`name` is the client id."""
        self.multi_turn = sender.multi_turn or SINGLE_ROUND
        self.shared_prefix = _shared_prefix_of(sender, name, piece_numbers)
        """The beginning of its prompts."""
        self._name = name
        self._sender = sender
        self._round_sampler = round_sampler
        self._piece_numbers = piece_numbers
        self._slo_class = V1_SLO_CLASSES.get(sender.slo_class, sender.slo_class)
        self._priority_class = priority_class_of(self._slo_class)
        self._timeout = _timeout_of(sender)
        self._num_sessions = 0

    def draw_round(self, window: int = -1) -> Round:
        """Return the lengths of a new round."""
        return self._round_sampler.draw(window)

    def start_session(self, window: int = -1) -> ClientSession:
        """Return a new session."""
        self._num_sessions += 1
        program = f"{self._name}/{self._num_sessions}" if self.multi_turn.max_rounds > 1 else ""
        history = self.shared_prefix if self.multi_turn.context_growth == "accumulate" else None
        return ClientSession(self, program, self._round_sampler.draw_session(window), history)

    def make_job(
        self,
        request_id: RequestId,
        arrival: Micros,
        drawn: Round,
        history: PieceChain | None,
        program: str,
        parent_program: str = "",
        think_time: Micros | None = None,
    ) -> Job:
        """Return the request of a round.

        `history` is that of its session, or None if the prompts of the session do not contain it.
        """
        sender, before = self._sender, self.shared_prefix if history is None else history
        content = None
        # Only what can be shared needs keys: a prompt that begins like no other has none.
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
            parent_program=parent_program,
            stream=sender.streaming,
            routing_key=sender.adapter,
            cache_namespace=sender.adapter,
            deadline=arrival + self._timeout if self._timeout else None,
            slo_class=self._slo_class,
            slo_target=sender.slo_target_us or None,
            prefix=content,
        )
        conversation = None if history is None or content is None else content.extend_last(drawn.output_tokens)
        return Job(request, drawn.output_tokens, conversation, think_time)


class ClientSession:
    """One conversation. With `context_growth: accumulate` each prompt contains the history."""

    def __init__(
        self,
        client: VirtualClient,
        program: str,
        rounds: Sequence[Round],
        history: PieceChain | None,
        parent: ClientSession | None = None,
    ) -> None:
        """`history` is what the first prompt begins with, or None if prompts do not contain it. `parent` is the session that
        forked this one."""
        self.client = client
        self.program = program
        self.parent = parent
        self.num_children = 0
        """Sub-agents that have not ended."""
        self._num_forked = 0
        self._rounds = rounds
        self._next_index = 0
        self._history = history

    def next_job(self, request_id: RequestId, arrival: Micros) -> Job:
        """Return the next round as a request."""
        think_time = self.think_time if self._next_index else None
        drawn = self._rounds[self._next_index]
        self._next_index += 1
        parent = "" if self.parent is None else self.parent.program
        job = self.client.make_job(request_id, arrival, drawn, self._history, self.program, parent, think_time)
        if self._history is not None:
            assert isinstance(job.request.prefix, PieceChain)
            self._history = job.request.prefix
        return job

    def on_answer(self, output_tokens: int) -> None:
        """Add the answer to the latest round to the history."""
        if self._history is not None:
            self._history = self._history.extend_last(output_tokens)

    def fork(self) -> Sequence[ClientSession]:
        """Return the sub-agents that begin when the latest round has its answer. The session waits until `num_children` is 0
        again."""
        children = []
        for rounds in self._rounds[self._next_index - 1].children:
            self._num_forked += 1
            children.append(ClientSession(self.client, f"{self.program}/{self._num_forked}", rounds, self._history, self))
        self.num_children = len(children)
        return children

    @property
    def think_time(self) -> Micros:
        """Time from the answer to the latest round to the next one."""
        return self._rounds[self._next_index - 1].think_time

    @property
    def is_over(self) -> bool:
        """Whether all rounds have been sent."""
        return self._next_index == len(self._rounds)


def _optional_lengths(spec: LengthSpec | None) -> LengthDistribution | None:
    return None if spec is None else build_lengths("", spec)


def _timeout_of(sender: Client | Cohort) -> Micros:
    """Return the timeout in µs, or 0 if there is none."""
    if sender.timeout is not None:
        return sender.timeout
    waits = isinstance(sender, Client) and sender.concurrency > 0
    return DEFAULT_TIMEOUT if waits or (sender.multi_turn is not None and sender.closed_loop is not False) else 0


def _shared_prefix_of(sender: Client | Cohort, name: str, piece_numbers: PieceNumbers) -> PieceChain:
    if not sender.prefix_group:
        return NO_PIECES
    per_member = isinstance(sender, Cohort) and sender.prefix_sharing == "per_member"
    group = f"{sender.prefix_group}\0{name}" if per_member else sender.prefix_group
    return piece_numbers.shared_prefix(group, DEFAULT_PREFIX_TOKENS if sender.prefix_length is None else sender.prefix_length)


def _lengths_by_window(sender: Sender) -> dict[int, tuple[LengthDistribution, LengthDistribution]]:
    """Return the distributions of prompts and answers in each window, and outside of windows at -1."""

    def build_pair(prompts: LengthSpec, outputs: LengthSpec) -> tuple[LengthDistribution, LengthDistribution]:
        return build_lengths("input_distribution", prompts), build_lengths("output_distribution", outputs)

    prompts, outputs = sender.input_distribution, sender.output_distribution
    windows = sender.lifecycle.windows if isinstance(sender, Client) and sender.lifecycle else ()
    by_window = {-1: build_pair(prompts, outputs)}
    for index, window in enumerate(windows):
        by_window[index] = build_pair(window.input_distribution or prompts, window.output_distribution or outputs)
    return by_window
