"""PrefillCadence: prompts are computed in one of N steps, so that decodes run undisturbed in between (vLLM 0.33).

vLLM has it as `prefill_schedule_interval`; N = 1 computes prompts in every step. A step *holds* prefill back if

    some sequence decodes,
    fewer than N steps have been made since the last one with prefill, itself included, and
    the last step that was free to admit has emptied the wait queue.

In a step that holds, a sequence whose prompt is half computed stands still, and the wait queue is closed but for a head of
which a single token is left to compute (the rest is cached): it costs what a decode costs.

Example: N = 4, and step 10 computes a prompt. Steps 11, 12 and 13 hold, whatever waits. Step 14 admits two prompts and leaves
a third one for want of tokens. So step 15 does not hold.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations


class PrefillCadence:
    """When the steps of one instance hold prefill back."""

    __slots__ = ("_has_backlog", "_has_prefill", "_interval", "_last_prefill", "_num_steps", "holds")

    def __init__(self, interval: int) -> None:
        """`interval` is N, in steps."""
        self._interval = interval
        self._num_steps = 0
        """Steps with tokens so far."""
        self._last_prefill = -interval  # so that nothing holds the first prompt back
        self._has_backlog = False
        self._has_prefill = False
        """Whether the step that is planned computes a prompt, or was to before the sequence was preempted."""
        self.holds = False
        """Whether the step that is planned holds prefill back."""

    def begin_step(self, *, any_decodes: bool) -> None:
        """Decide whether the step that is planned holds prefill back."""
        self._has_prefill = False
        since = self._num_steps + 1 - self._last_prefill
        # Without the condition on the backlog it would grow: one step in N may be too few to admit all that comes.
        self.holds = any_decodes and not self._has_backlog and since < self._interval

    def note_backlog(self, num_waiting: int) -> None:
        """Note how many sequences wait after a step that might admit some."""
        if not self.holds:  # what waits behind a closed queue says nothing about its size
            self._has_backlog = num_waiting > 0

    def note_prefill(self) -> None:
        """Note that the step that is planned computes a prompt."""
        self._has_prefill = True

    def end_step(self, *, has_tokens: bool) -> None:
        """Note that the step has been planned, and whether it computes anything."""
        self._num_steps += has_tokens
        if self._has_prefill:
            self._last_prefill = self._num_steps
