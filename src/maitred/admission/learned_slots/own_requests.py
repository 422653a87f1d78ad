"""The requests that a driver has sent to one engine: counts, rates and the gap between tokens, for learned slots.

Requests are counted by the sequences that they make in the engine, as the engine counts them.

The driver adds a request when it sends it, notes each piece of its answer, and says when it has ended. Both are cheap;
`summary` walks over the requests in flight, a few times per second while the engine is busy.

**The gap between tokens** is the ruler for everything else, because a queue does not lengthen it: over an interval, the
time that streams spent answering, divided by the pieces that they gave. 16 streams that gave 80 pieces in 100 ms have a
gap of 16 · 100 / 80 = 20 ms. Streams that are silent are left out of it.

With a gap g, a request without any data is *unanswered* after 10 ms + 2 g, and *overdue* after 20 ms + (6 + prompt /
1000) g. A stream that gave nothing for 10 g is *silent*.

**Output lengths.** What a request holds in the long run is its prompt and the mean age of its answer when met at random,
E[o²] / (2 E[o]): answers of 100 and 900 tokens, equally often, are 410 tokens old on average, not 250, because the long ones
are met more often.
"""

from __future__ import annotations

from collections import deque
from math import exp
from statistics import median
from typing import Final

from maitred.admission.learned_slots.signals import OwnLoad
from maitred.core.errors import InvariantError
from maitred.core.units import MILLISECOND, SECOND, Micros

_RATE_WINDOW: Final = 2.0
"""Time constant of the rate of completions, s. XXX: a guess: longer than the bursts in which a batch ends, shorter than a limit
is trusted. To be measured: how evenly real engines end requests."""


class OwnRequest:
    """One request in flight at the engine."""

    __slots__ = ("is_streamed", "last_data_at", "pieces", "prompt_tokens", "seen_pieces", "sent_at", "sequences", "started_at")

    def __init__(self, prompt_tokens: int, is_streamed: bool, now: Micros, sequences: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.sequences = sequences
        """Sequences that it makes in the engine."""
        self.is_streamed = is_streamed
        self.sent_at = now
        self.pieces = 0
        """Pieces of the answer so far, about one for each token."""
        self.last_data_at: Micros = 0
        """When the last of them came, µs."""
        self.started_at: Micros = 0
        """When the first of them came, µs."""
        self.seen_pieces = 0
        """Pieces at the last summary."""


class OwnRequests:
    """All requests of one driver that are in flight at one engine."""

    def __init__(self) -> None:
        # A dict: the order of a set depends on addresses, and sums must not.
        self._requests: dict[OwnRequest, None] = {}
        self._in_flight = self._most_in_flight = 0
        """Sequences, now and at most."""
        self._ended = self._failed = 0
        self._ended_before = 0
        self._rate = 0.0
        self._service_time = 0.0
        self._mean_output = self._mean_squared_output = 0.0
        self._longest_output = 0
        self._token_gap = 0.0
        self._gained = self._answering = 0
        """Pieces of streams since the last summary, and the time in which they gave them, µs."""
        self._summary_at: Micros | None = None
        self._ttft_excesses: deque[Micros] = deque(maxlen=32)
        """How late the last first tokens came, µs. Of 32 the median is that of a queue, and not of a single late one."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def token_gap(self) -> Micros:
        """Mean time between two tokens of a stream, µs; 0 before two were seen."""
        return round(self._token_gap)

    def add(self, prompt_tokens: int, is_streamed: bool, now: Micros, sequences: int = 1) -> OwnRequest:
        """Return the record of a request that is sent now, and makes `sequences` in the engine."""
        request = OwnRequest(prompt_tokens, is_streamed, now, sequences)
        self._requests[request] = None
        self._in_flight += sequences
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        return request

    def note_pieces(self, request: OwnRequest, pieces: int, now: Micros) -> None:
        """Note that the answer of `request` has `pieces` pieces by now. O(1)."""
        if not request.pieces:
            request.started_at = now
            if request.is_streamed:
                # A longer prompt takes longer by itself, and only what exceeds that is a sign of a queue.
                allowed = 20 * MILLISECOND + (6 + request.prompt_tokens / 1000) * self._token_gap
                self._ttft_excesses.append(max(0, now - request.sent_at - round(allowed)))
        request.pieces = pieces
        request.last_data_at = now

    def remove(self, request: OwnRequest, now: Micros, *, completed: bool, failed: bool = False) -> None:
        """End a request. `completed`: its answer came whole, so its length counts. `failed`: the engine failed it."""
        del self._requests[request]
        self._in_flight -= request.sequences
        if request.pieces:
            self._account(request, request.last_data_at)
        self._ended += request.sequences
        self._failed += request.sequences if failed else 0
        if completed:
            share = 0.05 if self._service_time else 1.0  # A mean over some twenty: answers differ by factors.
            self._service_time += share * (now - request.sent_at - self._service_time)
            if request.is_streamed:
                self._note_output(request.pieces // request.sequences)

    def summary(self, now: Micros, *, is_reading: bool) -> OwnLoad:
        """Return the load at `now`. With `is_reading`, a reading of the engine goes with it. O(requests in flight)."""
        self._measure(now)
        gap, answered, unanswered, overdue, silent, unstreamed = self._token_gap, 0, 0, 0, 0, 0
        held = prompts = 0
        for request in self._requests:
            prompts += request.prompt_tokens
            unstreamed += 0 if request.is_streamed else request.sequences
            if not request.pieces:
                # After a dispatch and two steps without data it may be in the engine's own queue. XXX: guesses, as is what is
                # allowed below. To be measured: first tokens of a real engine without a queue, by the length of prompts.
                age = now - request.sent_at
                unanswered += request.sequences if age > 10 * MILLISECOND + 2 * gap else 0
                # A longer prompt takes longer by itself, and only what exceeds that is a sign of a queue.
                allowed = 20 * MILLISECOND + (6 + request.prompt_tokens / 1000) * gap
                overdue += request.sequences if gap and request.is_streamed and age > allowed else 0
            elif request.is_streamed:
                # Its KV was taken, as far as can be told from outside: a stream that runs has a token after each step.
                if gap and now - request.last_data_at > 10 * gap:
                    silent += request.sequences
                else:
                    answered += request.sequences
                    held += request.prompt_tokens + request.pieces
        count, most = self._in_flight, self._most_in_flight
        if is_reading:  # The reading covers the time up to now, so the largest number is counted anew from here.
            self._most_in_flight = count
        return OwnLoad(
            in_flight=count,
            most_in_flight=max(most, count),
            answered=answered,
            unanswered=unanswered,
            overdue=overdue,
            silent=silent,
            unstreamed=unstreamed,
            held_tokens=held,
            mean_prompt=prompts / count if count else 0.0,
            output_age=self._mean_squared_output / (2 * self._mean_output) if self._mean_output else 0.0,
            longest_output=max(
                self._longest_output, max((r.pieces // r.sequences for r in self._requests if r.is_streamed), default=0)
            ),
            ended=self._ended,
            failed=self._failed,
            ended_per_sec=self._rate,
            service_time=round(self._service_time),
            token_gap=round(gap),
            ttft_excess=round(median(self._ttft_excesses)) if self._ttft_excesses else 0,
        )

    def check(self) -> None:
        """Raise InvariantError if the sequences in flight are not those of the requests."""
        sequences = sum(request.sequences for request in self._requests)
        if not self._in_flight == sequences <= self._most_in_flight:
            counted = f"{self._in_flight} sequences are counted, and {self._most_in_flight} at most"
            raise InvariantError(f"{counted}, where requests have {sequences}")

    def _measure(self, now: Micros) -> None:
        """Update the gap between tokens and the rate of completions, over the time since the last summary."""
        since = self._summary_at
        if since is None or now <= since:
            self._summary_at = now
            return
        gap = self._token_gap
        for request in self._requests:
            # A silent stream is no ruler: engines give each running request a token per step, so it runs no more.
            if request.pieces and (not gap or now - request.last_data_at <= 10 * gap):
                self._account(request, now)
            request.seen_pieces = request.pieces
        if self._gained:
            # A mean over some three summaries: a step with a long prompt in it stretches the gaps of all for once.
            self._token_gap += (0.3 if gap else 1.0) * (self._answering / self._gained - gap)
        self._gained = self._answering = 0
        self._summary_at = now
        secs = (now - since) / SECOND
        self._rate += ((self._ended - self._ended_before) / secs - self._rate) * (1 - exp(-secs / _RATE_WINDOW))
        self._ended_before = self._ended

    def _account(self, request: OwnRequest, until: Micros) -> None:
        """Add what a stream has given since the last summary, up to `until`."""
        gained = request.pieces - max(request.sequences, request.seen_pieces)
        begun = request.started_at if self._summary_at is None else max(self._summary_at, request.started_at)
        if request.is_streamed and until > begun:
            self._gained += max(0, gained)
            self._answering += (until - begun) * request.sequences

    def _note_output(self, tokens: int) -> None:
        self._longest_output = max(self._longest_output, tokens)
        share = max(0.01, 1 / self._ended)  # Of all that have ended, and from 100 on of the last hundred or so.
        self._mean_output += share * (tokens - self._mean_output)
        self._mean_squared_output += share * (tokens * tokens - self._mean_squared_output)
