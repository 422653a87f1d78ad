"""PrefillDelayer: holding prefill back for a while, so that the data-parallel ranks prefill together and not too little.

In each scheduling pass the ranks say what they have to prefill, and all come to the same answer (`negotiate`):

    no rank has anything         there is nothing to delay
    some have                    delay, since the others would only wait for them
    all have                     delay while a rank would take few requests: because nearly all slots are taken, or because few
                                 requests wait (`queue_min_ratio`)

A delay ends after `max_delay_passes` passes, or at once if a rank with work has nearly no KV memory in use (`low_watermark`). A
short queue is no reason any more once `max_delay` has passed. The very first delay for one of the reasons of the last line is
let through.

Example: `max_delay_passes` is 3, 256 requests may run, 250 do, and the largest batch of late was 16. The free slots are fewer
than that, so two passes are delayed and the third one is not.

Source: sglang 0.5.23, `prefill_delayer.py`. `now` is in µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from maitred.core.units import Micros


class RankReport(msgspec.Struct, frozen=True, array_like=True):
    """What one rank says in a negotiation."""

    is_prefillable: bool
    """Whether it has a request that it could prefill."""
    has_idle_memory: bool
    """Whether it is prefillable, and less of its KV memory is in use than the low watermark."""
    num_running: int
    max_prefill_requests: int
    """The largest batch that it has prefilled, or tried to, in its last passes."""
    num_waiting: int
    has_waited_long: bool
    """Whether a short queue is no reason to delay any more (`PrefillDelayer.is_overdue`)."""


class DelayReason(StrEnum):
    """Why prefill is allowed or not, in SGLang's words."""

    NOTHING = ""
    """There is nothing to prefill."""
    NO_WAIT = "no_wait"
    WAIT_SUCCESS = "wait_success"
    """Prefill was delayed, and the reason is gone."""
    WAIT_TIMEOUT = "wait_timeout"
    TOKEN_WATERMARK = "token_watermark"  # noqa: S105 - a reason, and no secret
    DELAY = "delay"


class DelayRules(msgspec.Struct, frozen=True):
    """When prefill is delayed."""

    max_delay_passes: int = 30
    low_watermark: float | None = None
    """Share of the KV memory below which there is no delay; None: however little is in use."""
    queue_min_ratio: float | None = None
    """Fewer waiting requests than this share of the running ones are few; None: the queue is no reason."""
    max_delay: Micros = 5_000_000
    prefill_max_requests: int | None = None
    num_ranks: int = 1
    has_attention_dp: bool = False
    """Whether the limit of running requests is one for each rank, and not one for all."""


class Negotiation(msgspec.Struct, frozen=True):
    """The answer of a negotiation."""

    allows_prefill: bool
    reason: DelayReason


class PrefillDelayer:
    """The delayer of one rank."""

    def __init__(self, rules: DelayRules) -> None:
        self._rules = rules
        self.num_delayed = 0
        """Passes that have been delayed since prefill was last allowed."""
        self._delayed_since: Micros | None = None
        self._has_let_through = False

    def is_overdue(self, now: Micros) -> bool:
        """Return whether the delay lasts so long that a short queue is no reason for it any more."""
        since = self._delayed_since
        return self._rules.queue_min_ratio is not None and since is not None and now - since >= self._rules.max_delay

    def negotiate(self, ranks: Sequence[RankReport], max_num_running: int, now: Micros) -> Negotiation:
        """Return whether the ranks may prefill in this pass. `ranks` is not empty; all ranks are asked with the same."""
        answer = self._answer(ranks, max_num_running)
        if answer.allows_prefill:
            self.num_delayed, self._delayed_since = 0, None
        else:
            self.num_delayed += 1
            if self._delayed_since is None:
                self._delayed_since = now
        return answer

    def _answer(self, ranks: Sequence[RankReport], max_num_running: int) -> Negotiation:
        if not any(rank.is_prefillable for rank in ranks):
            return Negotiation(True, DelayReason.NOTHING)
        if any(rank.has_idle_memory for rank in ranks):
            return Negotiation(True, DelayReason.TOKEN_WATERMARK)
        if not all(rank.is_prefillable for rank in ranks):
            return self._delay()
        no_delay = Negotiation(True, DelayReason.WAIT_SUCCESS if self.num_delayed else DelayReason.NO_WAIT)
        if not self._takes_few(ranks, max_num_running):
            return no_delay
        if not self._has_let_through:
            self._has_let_through = True
            return no_delay
        return self._delay()

    def _delay(self) -> Negotiation:
        if self.num_delayed < self._rules.max_delay_passes - 1:
            return Negotiation(False, DelayReason.DELAY)
        return Negotiation(True, DelayReason.WAIT_TIMEOUT)

    def _takes_few(self, ranks: Sequence[RankReport], max_num_running: int) -> bool:
        """Return whether the free slots or the waiting requests are so few that more might come with the next batch."""
        rules, num_running = self._rules, max(rank.num_running for rank in ranks)
        most = max(rank.max_prefill_requests for rank in ranks)
        slots = max_num_running if rules.has_attention_dp else -(-max_num_running // rules.num_ranks)
        if slots - num_running < most:
            return True
        if rules.queue_min_ratio is None or not num_running:
            return False
        few = min(int(num_running * rules.queue_min_ratio), rules.prefill_max_requests or most)
        return max(rank.num_waiting for rank in ranks) < few and not any(rank.has_waited_long for rank in ranks)
