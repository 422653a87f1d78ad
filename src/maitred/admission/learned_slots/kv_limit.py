"""How many requests fit into the KV memory of an engine in the long run.

Usage lags demand by a whole answer: a young batch holds a third of what it will hold. When usage reads 1, the engine evicts
already, the newest requests first. So the limit is computed ahead, from two things that are known early:

    c      KV usage per token that our answered requests hold: measures block size and shared prefixes
    size   tokens that a request holds in the long run: its prompt, and the mean age of an answer (`own_requests`)

    limit = aim / (c · size)

*Example.* 40 answered requests hold 20,000 tokens at a usage of 0.5: c = 0.000025. Prompts have 300 tokens, and answers are
410 tokens old on average: size = 710. With an aim of 0.92 the limit is 0.92 / (0.000025 · 710) = 51.

The aim falls with each KV preemption at high usage and recovers slowly: 0.80 to 0.92. Before eight requests have ended, the
size is the larger of what the answered ones hold and prompt + 2 · the longest output so far.

Where most answers are not streamed, what they hold is not seen. Then the limit is aim / (usage per running request), once
the engine has preempted a sequence or is above 0.95.
"""

from __future__ import annotations

from typing import Final

from maitred.admission.learned_slots.signals import EngineReading, OwnLoad
from maitred.core.units import SECOND, Micros

_HIGHEST_AIM: Final = 0.92
"""Not 1, because the usage swings about its mean, by more the fewer requests there are. Simulated, with memory for half
of 64 sequences: 0.84 costs 9 % of the answers per second, 0.96 brings 5 %, and the TTFT p99 of chats goes from 43 to 156 ms."""
_LOWEST_AIM: Final = 0.80
"""Less would idle a fifth of the memory for good, where single requests differ in size by so much that any aim evicts some.
XXX: a guess. In simulation it is not reached. To be measured: requests that hold a tenth of the memory each."""


class KvLimit:
    """The limit of one engine."""

    def __init__(self) -> None:
        self._aim = _HIGHEST_AIM
        self._usage_per_token = 0.0
        self._usage_per_request = 0.0
        self._kv_preemptions = 0
        self._is_short = False
        """Whether the memory has been full, where the size of requests is not seen."""

    def update(self, reading: EngineReading, own: OwnLoad, period: Micros) -> int | None:
        """Return the most requests that fit, or None if memory is no limit. `period` is the time since the last reading."""
        has_preempted = reading.kv_preemptions > self._kv_preemptions
        self._kv_preemptions = reading.kv_preemptions
        # At a low usage it was one large request, and says nothing of how many fit.
        if has_preempted and reading.kv_usage > 0.8:
            self._aim = max(_LOWEST_AIM, 0.98 * self._aim)  # From the highest to the lowest aim in seven readings.
        else:
            # By 0.008 a second, so back in 15 s: an aim that is too high costs a preemption, one that is too low a part of the
            # memory. XXX: guesses. To be measured: preemptions and answers per second of a real engine, by these two.
            self._aim = min(_HIGHEST_AIM, self._aim + 0.002 * min(4.0, 4.0 * period / SECOND))
        if reading.kv_usage < 0.05:  # Too little to be divided by: a page is rounded, and blocks are coarse.
            return None
        if 2 * own.unstreamed > own.in_flight:
            return self._by_request(reading, has_preempted=has_preempted)
        if own.held_tokens:
            measured = reading.kv_usage / own.held_tokens
            # A mean over some five readings: pages are rounded, and `held_tokens` is of another instant.
            self._usage_per_token += (0.2 if self._usage_per_token else 1.0) * (measured - self._usage_per_token)
        size = self._size(own)
        # No request holds less than a token, whatever the means say of requests that have hardly begun.
        return max(1, int(self._aim / (self._usage_per_token * max(1.0, size)))) if self._usage_per_token and size else None

    def _by_request(self, reading: EngineReading, *, has_preempted: bool) -> int | None:
        if reading.running:
            measured = reading.kv_usage / reading.running
            # Over ten, because requests differ in size more than tokens do.
            self._usage_per_request += (0.1 if self._usage_per_request else 1.0) * (measured - self._usage_per_request)
        self._is_short = self._is_short or has_preempted or reading.kv_usage > 0.95
        return max(1, int(self._aim / self._usage_per_request)) if self._is_short and self._usage_per_request else None

    def _size(self, own: OwnLoad) -> float:
        # With fewer than 8, the mean is that of the short answers. Simulated as at `_HIGHEST_AIM`: from 4 on 2 % more answers
        # per second, from 16 on 3 % fewer; the TTFT p99 of chats goes from 43 to 73 and 82 ms.
        if own.ended >= 8 and own.output_age:
            return own.mean_prompt + own.output_age
        held = own.held_tokens / own.answered if own.answered else 0.0
        return max(held, own.mean_prompt + 2 * own.longest_output)
