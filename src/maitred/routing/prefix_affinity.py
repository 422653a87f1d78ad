"""prefix-affinity: where prompts that begin like this one were sent.

The router remembers what it sent where, and asks nobody: for each instance the keys of the blocks of the prompts that went
there, the least recently sent forgotten first. That is about what is in the prefix cache there, if the cache is about as large.
Of a prompt that is longer than all that can be remembered it is the beginning: its end alone would never be found again.

    holders[key]    a bit for each instance that was sent the block `key`

A prompt is looked up once and not in each instance: block by block those drop out that do not have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from maitred.core.contracts import FleetView, InstanceView
from maitred.core.request import Request
from maitred.kv.block_hashes import request_block_hashes
from maitred.routing.base import RouterInfo, Signals
from maitred.routing.scorers import SCORERS, BaseScorer


@SCORERS.register("prefix-affinity")
class PrefixAffinity(BaseScorer):
    """Leading blocks of the prompt that were sent there before, as a share of its blocks (llm-d's approximate prefix scorer,
    BLIS `prefix-affinity`). A prompt of which nothing is known has none.

    `block` is in tokens, `most` is how many blocks are remembered of each instance.
    """

    about = RouterInfo(
        summary="leading blocks of the prompt that were sent there before, as a share of its blocks",
        complexity="O(n + blocks)",
        reads="the prompt",
    )
    signals = Signals.PROMPT

    def __init__(self, block: int = 16, most: int = 10_000) -> None:
        """Raises ValueError for less than 1 of either."""
        if block < 1 or most < 1:
            raise ValueError(f"block and most must be at least 1, not {min(block, most)}")
        self._block, self._max_blocks = block, most
        self._sent: dict[int, OrderedDict[int, None]] = {}
        """Keys by index of the instance; the least recently sent first."""
        self._holders: dict[int, int] = {}
        self._block_hashes: Sequence[int] = ()

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        whole = request_block_hashes(request, self._block)
        chain = self._block_hashes = whole[: self._max_blocks]
        if not chain:
            return [0.0] * len(fleet)
        matched, blocks = self._matched_blocks(chain), len(whole)
        return [matched.get(view.index, 0) / blocks for view in fleet]

    def on_chosen(self, request: Request, view: InstanceView) -> None:
        sent, bit, holders = self._sent.setdefault(view.index, OrderedDict()), 1 << view.index, self._holders
        for key in self._block_hashes:
            if key in sent:
                sent.move_to_end(key)
                continue
            sent[key] = None
            holders[key] = holders.get(key, 0) | bit
            if len(sent) > self._max_blocks:
                self._forget(sent.popitem(last=False)[0], bit)

    def _forget(self, key: int, bit: int) -> None:
        others = self._holders[key] & ~bit
        if others:
            self._holders[key] = others
        else:
            del self._holders[key]

    def _matched_blocks(self, chain: Sequence[int]) -> dict[int, int]:
        """How many leading blocks, by the index of the instances that have any."""
        found: dict[int, int] = {}
        holders = self._holders
        left = holders.get(chain[0], 0)
        for place, key in enumerate(chain):
            still = left & holders.get(key, 0)
            if still != left:
                found.update(dict.fromkeys(_set_bits(left ^ still), place))
                left = still
            if not left:
                return found
        found.update(dict.fromkeys(_set_bits(left), len(chain)))
        return found


def _set_bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
