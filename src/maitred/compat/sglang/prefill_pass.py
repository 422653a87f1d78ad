"""The pass: how SGLang's scheduler forms one prefill batch, before it thinks of decoding.

    1. A full batch, or an empty queue, ends the pass, unless a chunked request is to go on.
    2. The queue is sorted by its policy.
    3. The chunked request takes its next piece.
    4. The queue is tried, head first, until one is not taken: there is no look-past. One that lacks memory closes the batch
       (`is_full`) until a request leaves.
    5. With all slots taken, a request may preempt running ones that are less urgent by more than a threshold. From the first
       one that finds no slot on, every request of the pass must.

Preemption looks for as many tokens as the request is expected to need, and counts what its victims were expected to generate,
not what they hold. A defect is kept: the prompt of a request that was never tried before is not counted, so too few may be
preempted, for nothing.

Example: 8 requests may run and 8 do. A request of urgency 20 waits, the running ones have 0, the threshold is 10. The youngest
running one gives way, and the request is taken if it fits; a second one of urgency 20 takes the place of another.

Source: the scheduler of sglang 0.5.23 and its prefill policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from maitred.compat.sglang.prefill_adder import AddResult, PrefillAdder, PrefillMemory
from maitred.compat.sglang.prefill_request import PrefillRequest
from maitred.compat.sglang.retraction import RETRACT_DECODE_STEPS
from maitred.compat.sglang.rules import PassRules


class PrefillHost(PrefillMemory):
    """The queue and the memory of a scheduler, as a pass uses them."""

    @abstractmethod
    def num_waiting(self) -> int:
        """Return the number of requests in the queue."""

    @abstractmethod
    def num_free_slots(self) -> int:
        """Return how many requests could have a place beside those that have one."""

    @abstractmethod
    def sort_queue(self) -> None:
        """Put the queue in the order of its policy."""

    @abstractmethod
    def head(self) -> PrefillRequest | None:
        """Return the first request of the queue, or None if there is none."""

    @abstractmethod
    def take_head(self) -> None:
        """Remove the first request from the queue: it is in the batch."""

    @abstractmethod
    def match(self, request: PrefillRequest) -> None:
        """Set how many tokens of `request` must be there (`fill_tokens`), and how many are cached, all but one at most."""

    @abstractmethod
    def uncached_work(self) -> Iterable[int]:
        """Return for each request of the queue, in order, the tokens that it has to compute, as its policy sees them."""

    @abstractmethod
    def release(self, request: PrefillRequest) -> None:
        """Free the KV of `request`, which ran, and publish nothing of it."""

    @abstractmethod
    def evict_until_free(self, tokens: int) -> None:
        """Evict cached KV until `tokens` tokens are free, or nothing can be evicted."""

    @abstractmethod
    def make_adder(self, running: Sequence[PrefillRequest], num_mixed: int) -> PrefillAdder:
        """Return an empty batch beside `running`, of which `num_mixed` decode in it."""


class PrefillPass:
    """One pass. After `run`, its outcome."""

    def __init__(self, rules: PassRules, host: PrefillHost, running: Sequence[PrefillRequest], is_full: bool) -> None:
        """`running` are the requests that decode. `is_full`: whether the last pass has closed the batch."""
        self._rules = rules
        self._host = host
        self._running = running
        self.is_full = is_full
        """Whether no request is tried until one leaves."""
        self.adder: PrefillAdder | None = None
        """The batch, or None if the pass ended before there was one."""
        self.preempted: list[PrefillRequest] = []
        """Running requests that gave way, in that order. They have been released."""
        self.waits_for_slot = False
        """Whether a pass over the same queue would find nothing again until a running request leaves, whatever these generate:
        slots are missing, and the head is not urgent enough to take one."""

    def run(self, chunked: PrefillRequest | None) -> list[PrefillRequest]:
        """Return the requests of the batch. `chunked` is the request that is to go on, if there is one."""
        rules, host, running = self._rules, self._host, self._running
        # A head that lacked memory may be taken after all: it may preempt, or nothing runs beside it.
        if rules.preempts or not running:
            self.is_full = False
        if chunked is None and (self.is_full or not host.num_waiting()):
            return []
        # The chunked request holds a slot of its own already, which the host does not count as free.
        allocatable = min(rules.max_num_running - len(running), host.num_free_slots() + (chunked is not None))
        if chunked is None and running and rules.min_free_slots > max(0, allocatable):
            self.waits_for_slot = True
            return []
        if allocatable <= 0 and chunked is None and not rules.preempts:
            self.is_full = True
            return []
        # Sorting costs O(n log n) and changes the ties of later passes, so it comes after every reason to end the pass.
        host.sort_queue()
        adder = self.adder = host.make_adder(running, len(running) if rules.mixes else 0)
        if chunked is not None:
            if rules.caps_chunks:
                self._cap_chunk(adder, chunked)
            adder.add_chunked(chunked)
        self._add_waiting(adder, allocatable)
        return adder.admitted

    def _add_waiting(self, adder: PrefillAdder, allocatable: int) -> None:
        host = self._host
        while adder.budget_state() is not AddResult.OTHER:
            request = host.head()
            if request is None:
                return
            if len(adder.admitted) >= allocatable:
                self.is_full = True
            if self.is_full and not (self._rules.preempts and self._preempt_for(request, adder)):
                return
            host.match(request)
            taken = len(adder.admitted)
            verdict = adder.add(request)
            # A request may be taken although the verdict is no: it speaks of the next one.
            if len(adder.admitted) > taken:
                host.take_head()
            if verdict is AddResult.NO_TOKEN:
                self.is_full = bool(adder.admitted or len(self._running) > len(self.preempted))
            if verdict is not AddResult.CONTINUE:
                return

    def _preempt_for(self, request: PrefillRequest, adder: PrefillAdder) -> bool:
        """Preempt running requests for `request`. Return False, and preempt none, if too few are less urgent enough."""
        victims, missing = self._victims_for(request, adder)
        if not victims or missing > 0:
            self.waits_for_slot = not victims and not adder.admitted
            return False
        for victim in victims:
            adder.preempt(victim)
            self.preempted.append(victim)
            self._host.release(victim)
            self._host.evict_until_free(RETRACT_DECODE_STEPS * (len(self._running) - len(self.preempted)))
        return True

    def _victims_for(self, request: PrefillRequest, adder: PrefillAdder) -> tuple[list[PrefillRequest], float]:
        """Return the running requests that may be preempted for `request`, until it fits, and the tokens that it lacks then."""
        most = min(request.max_new_tokens, self._rules.limits.clip_max_new_tokens)
        # Kept as SGLang has it: the prompt of a request that was never matched counts as 0 tokens.
        needed = request.uncached_tokens + most - adder.rem_total
        victims: list[PrefillRequest] = []
        candidates = [each for each in self._running if each not in self.preempted]
        for candidate in sorted(candidates, key=lambda each: (each.urgency, -each.queued_at)):
            # Sorted by urgency, so all that follow are too urgent as well.
            if request.urgency - candidate.urgency <= self._rules.preemption_threshold:
                break
            victims.append(candidate)
            needed -= adder.expected_tokens(candidate)
            if needed <= 0:
                break
        return victims, needed

    def _cap_chunk(self, adder: PrefillAdder, chunked: PrefillRequest) -> None:
        """Leave room in the batch for requests at the head of the queue that have less to compute than the chunked one."""
        page, room = self._rules.limits.page_size, adder.rem_chunk
        # There is one chunked request at a time, and this pass has it: requests of the queue are taken whole or not.
        adder.may_chunk = False
        if room is None or room < 2 * page:
            return
        reserved = self._reserve_for_smaller(chunked, room - page)
        if reserved:
            adder.chunk_cap = (room - reserved) // page * page

    def _reserve_for_smaller(self, chunked: PrefillRequest, most: int) -> int:
        """Return the tokens, in whole pages and `most` at most, of the requests at the head that have less to compute."""
        page, reserved = self._rules.limits.page_size, 0
        for work in self._host.uncached_work():
            pages = -(-work // page) * page
            if work >= chunked.uncached_tokens or reserved + pages > most:
                break
            reserved += pages
        return reserved
