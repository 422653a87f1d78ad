"""NewTokenRatio: which share of the tokens that its clients allow SGLang expects a running request to generate.

The share begins optimistic or pessimistic by configuration, sinks a little with every decode step that finds its memory, and is
set anew from the survivors when one does not:

    decode step     ratio = max(ratio - (initial - minimum) / decay_steps, minimum)
    retraction      ratio = min(1, (tokens generated + reserve * requests) / (tokens allowed + 1)), over those that stay
    idle            ratio = initial

Example: with a conservativeness of 1 the ratio is 0.7 at first and 0.098 after 600 decode steps. Two requests stay after a
retraction, with 105 and 291 tokens of 16 and 4,096: the ratio is (396 + 40) / 4,113 = 0.106.

Decode steps are only counted until the ratio is asked for, since a run of a thousand of them is one call.
"""

from __future__ import annotations

from collections.abc import Iterable


class NewTokenRatio:
    """The ratio of one scheduler. Source: sglang 0.5.23."""

    def __init__(
        self,
        conservativeness: float = 1.0,
        initial: float = 0.7,
        min_factor: float = 0.14,
        decay_steps: int = 600,
        reserve: int = 20,
    ) -> None:
        """`conservativeness` scales `initial`, and `min_factor` of that is the minimum, which `decay_steps` steps reach.
        `reserve` is how many tokens more each request that stays is expected to generate after a retraction."""
        self.initial = min(initial * conservativeness, 1.0)
        self.minimum = min(self.initial * min_factor, 1.0)
        self.decay = (self.initial - self.minimum) / decay_steps
        self._reserve = reserve
        self._value = self.initial
        self._num_pending_steps = 0

    @property
    def value(self) -> float:
        """The ratio, as of all that it has been told."""
        value, before = self._value, -1.0
        # Subtracted step by step: a product would differ in the last bits. After `decay_steps` or so nothing changes any more.
        while self._num_pending_steps and value != before:
            value, before = max(value - self.decay, self.minimum), value
            self._num_pending_steps -= 1
        self._num_pending_steps = 0
        self._value = value
        return value

    def on_decode_steps(self, steps: int) -> None:
        """Note `steps` decode steps that found their memory."""
        self._num_pending_steps += steps

    def on_retraction(self, survivors: Iterable[tuple[int, int]]) -> None:
        """Note a retraction. `survivors` are those that stay: tokens generated, and tokens allowed."""
        generated = allowed = count = 0
        for emitted, most in survivors:
            generated += emitted
            allowed += most
            count += 1
        self._value = min(1.0, (generated + self._reserve * count) / (allowed + 1))
        self._num_pending_steps = 0

    def reset(self) -> None:
        """Note that nothing runs and nothing waits."""
        self._value = self.initial
        self._num_pending_steps = 0
