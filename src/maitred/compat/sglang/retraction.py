"""Retraction: which decoding requests give up their KV when the next decode step does not find its memory.

    keep order    the most tokens generated first, and of equals the shortest prompt (`length`); under the policy `priority` the
                  most urgent first, and then the same
    victims       from the end of that order: one at least, until the others fit; the last request stays
    each victim   its KV is freed, and nothing of it goes to the prefix cache; then cached KV is evicted until there is room for
                  `RETRACT_DECODE_STEPS` tokens of every request that is left

A victim keeps the tokens that it has generated and goes to the tail of the queue. If the last request alone does not fit, it is
aborted.

Example, pages of 1 token, 2 of them free: requests a, b and c have generated 5, 1 and 1 tokens from prompts of 10, 40 and 104.
The step needs 3. The order is a, b, c; c goes, and a and b fit.

Source: the batches of sglang 0.5.23.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from maitred.compat.sglang.prefill_request import PrefillRequest

RETRACT_DECODE_STEPS: Final = 20
"""Decode steps for which memory is made free, and by which requests are expected to go on, after a retraction."""


class DecodeMemory(ABC):
    """The KV memory of the running requests."""

    @abstractmethod
    def fits_decode(self) -> bool:
        """Return whether the requests that are still there find the pages of their next token, if what can be is evicted."""

    @abstractmethod
    def release(self, request: PrefillRequest) -> None:
        """Free the KV of `request`, and publish nothing of it."""

    @abstractmethod
    def evict_until_free(self, tokens: int) -> None:
        """Evict cached KV until `tokens` tokens are free, or nothing can be evicted."""


class Retraction:
    """What a decode step that lacked memory has cost."""

    def __init__(self, retracted: list[PrefillRequest], aborted: list[PrefillRequest], kept: list[PrefillRequest]) -> None:
        self.retracted = retracted
        """The victims, in the order in which they gave way."""
        self.aborted = aborted
        """The last request, if it does not fit even alone."""
        self.kept = kept
        """The others, in the order in which they are worth keeping: so they stand in the batch from now on."""


def keep_order(running: Sequence[PrefillRequest], *, by_urgency: bool) -> list[int]:
    """Return the indices of `running`, the request that is worth the most to keep first."""

    def worth(index: int) -> tuple[float, int, int]:
        request = running[index]
        return (request.urgency if by_urgency else 0, request.output_tokens, -request.prompt_tokens)

    return sorted(range(len(running)), key=worth, reverse=True)


def retract(running: Sequence[PrefillRequest], memory: DecodeMemory, *, by_urgency: bool) -> Retraction:
    """Release victims of `running`, which is not empty, until the others fit; one at least if there are several."""
    order = keep_order(running, by_urgency=by_urgency)
    retracted: list[PrefillRequest] = []
    # One victim at least, since memory has been found short already.
    while len(order) > 1 and (not retracted or not memory.fits_decode()):
        retracted.append(running[order.pop()])
        memory.release(retracted[-1])
        memory.evict_until_free(RETRACT_DECODE_STEPS * len(order))
    aborted: list[PrefillRequest] = []
    if len(order) == 1 and not memory.fits_decode():
        aborted.append(running[order.pop()])
        memory.release(aborted[0])
    return Retraction(retracted, aborted, [running[index] for index in order])
