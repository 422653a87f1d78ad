"""What bounds SGLang's prefill batches, and which request gives way to which. The names are those of SGLang's options."""

from __future__ import annotations

import msgspec

from maitred.compat.sglang.orders import PrioritySign
from maitred.compat.sglang.prefill_delayer import DelayRules
from maitred.instance.sglang_config import SGLangConfig


class PrefillLimits(msgspec.Struct, frozen=True):
    """The limits of one prefill batch, in tokens."""

    page_size: int = 1
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int | None = 8192
    """None: prompts are not cut."""
    prefill_max_requests: int | None = None
    """Requests in one batch; None: any number."""
    clip_max_new_tokens: int = 4096
    """At most this many tokens are reserved for an answer."""
    truncation_align_size: int | None = None
    """Chunks have a multiple of this many tokens (deterministic inference); None: of a page."""


class PassRules(msgspec.Struct, frozen=True):
    """The rules of one scheduling pass."""

    limits: PrefillLimits
    max_num_running: int
    preempts: bool = False
    """Whether a request that is much more urgent than running ones takes their place (priority preemption)."""
    preemption_threshold: float = 10
    """How much more urgent, at least: its urgency must differ by more than this."""
    mixes: bool = False
    """Whether running requests decode in the prefill batch (mixed chunk)."""
    caps_chunks: bool = False
    """Whether shorter requests come before the chunked one goes on (`shortest-prefill-first`)."""
    min_free_slots: int = 0
    """Beside running requests, none is admitted while fewer could have a place than this (min-free-slots delayer)."""


class SGLangRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of an instance."""

    passes: PassRules
    max_model_len: int
    """Most tokens of prompt and output together: the limit of an answer whose client names none."""
    options: SGLangConfig = SGLangConfig()
    """What its user says, of which `passes` and `delay` are made, too."""
    sign: PrioritySign = PrioritySign.HIGH_FIRST
    delay: DelayRules | None = None
    """When prefill is delayed; None: never."""
