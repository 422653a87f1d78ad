"""StepPlan: what a batch former has decided about one step. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.batching.limits import PrefillChunk
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros


class StepPlan:
    """What one step does: a token for every decoding sequence, and some chunks of prompts."""

    preempted: Sequence[SequenceState] = ()
    """Sequences that have lost their KV for it."""
    stalled: Sequence[SequenceState] = ()
    """Sequences that decode and emit nothing in this step."""
    holds_decodes: bool = False
    """Whether it is a step of prefill alone, while all sequences that decode stand still."""
    fetch_time: Micros = 0
    """µs that it takes longer because KV blocks are fetched for it. Then it does not repeat itself."""
    is_plain: bool = False
    """Whether it is known that every decoding sequence emits a token, nothing is preempted and no KV was transferred: no
    care is needed when the step is counted."""

    def __init__(self, max_repeats: int, chunks: Sequence[PrefillChunk] = (), prefill_tokens: int = 0) -> None:
        """`max_repeats` is how often the step may run without being planned anew, `prefill_tokens` the sum over the chunks."""
        self.max_repeats = max_repeats
        self.chunks = chunks
        self.prefill_tokens = prefill_tokens
