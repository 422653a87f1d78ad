"""SiliconSteps: what a step with prompts costs by measured kernels, whose formulas are those of `silicon`.

Most of these steps have one prompt, nothing of which is in KV, beside sequences that decode. What such a step is made of is
kept: `shared` by its tokens, `prompts` by the prompt, and `beside` as one curve for each number of sequences.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from maitred.core.contracts import ChunkShape
from maitred.instance.latency.interpolation import Axis
from maitred.instance.latency.silicon_table import SiliconTable
from maitred.instance.latency.step_table import curve_value


class _TimesByTokens(dict[int, float]):
    """The µs that `find` says, asked once for each number of tokens. A step has no more than its budget."""

    def __init__(self, find: Callable[[int], float]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, tokens: int) -> float:
        time = self[tokens] = self._find(tokens)
        return time


class SiliconSteps:
    """The costs of one deployment."""

    def __init__(self, table: SiliconTable, scale: float, of_step: float, of_sequence: float) -> None:
        """Each step takes `scale` times as long as it would; the overheads of a step and of each sequence are part of it."""
        self._table, self._scale = table, scale
        self._of_step, self._of_sequence = of_step, of_sequence
        self._shared = _TimesByTokens(lambda tokens: curve_value(table.shared, tokens))
        self._whole_prompts = _TimesByTokens(lambda tokens: table.prompts.value_at(1, tokens, 0))
        self._contexts: Axis = table.beside.axes[1]
        self._beside: dict[int, list[float]] = {}
        """The µs of attention of so many sequences that decode, at each of `_contexts`."""

    def time_of(self, chunks: Sequence[ChunkShape], decodes: int, context_tokens: int) -> float:
        """Return the µs of a step with prompts on one rank (`MixedSteps`)."""
        return (self._of_step + self.rank_time(chunks, decodes, context_tokens / decodes if decodes else 0.0)) * self._scale

    def prompt_time(self, tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the same for one chunk alone, which is a whole prompt."""
        time = self._shared[tokens + decodes] + self._whole_prompts[tokens]
        if decodes:
            time += self._beside_at(decodes, context_tokens / decodes)
        return (self._of_step + (time + self._of_sequence * (1 + decodes))) * self._scale

    def rank_time(self, chunks: Sequence[ChunkShape], decodes: int, context: float) -> float:
        """Return the µs of a rank in which `decodes` sequences decode over `context` tokens each, without the overhead of a
        step."""
        return self._kernels(chunks, decodes, context) + self._of_sequence * (len(chunks) + decodes)

    def _kernels(self, chunks: Sequence[ChunkShape], decodes: int, context: float) -> float:
        table = self._table
        if not chunks:
            return table.decode.value_at(decodes, context) if decodes else 0.0
        tokens, pairs = 0, 0.0
        for chunk in chunks:
            new = chunk.num_tokens
            tokens += new
            pairs += new * (chunk.num_computed_tokens + new / 2)
        each = tokens / len(chunks)
        before = max(0.0, pairs / tokens - each / 2) if tokens else 0.0
        time = self._shared[tokens + decodes] + table.prompts.value_at(len(chunks), each, before)
        return time + self._beside_at(decodes, context) if decodes else time

    def _beside_at(self, decodes: int, context: float) -> float:
        """Return the µs of attention of `decodes` sequences, at least 1, over `context` tokens each."""
        times, axis = self._beside.get(decodes), self._contexts
        if times is None:
            times = self._beside[decodes] = [self._table.beside.value_at(decodes, point) for point in axis]
        # Straight on after the last point, as `locate`.
        after = bisect_right(axis, context, 0, len(axis) - 1)
        if not after:
            return times[0]
        start, time = axis[after - 1], times[after - 1]
        return time + (times[after] - time) * ((context - start) / (axis[after] - start))
