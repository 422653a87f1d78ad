"""Lies: pages of an engine that contradict what it does. Its answers are right all the same.

idle       nothing runs and nothing waits there, while it streams
crowded    thousands run and wait there
full       its KV memory is all used, always
still      it has generated no token since it was started
no number  what is a number on a page is none
memory     its KV memory is one block
few slots, many slots   it runs one request at once, or a thousand
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_KV_USAGE, _PROGRESS = "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"


class Lie(msgspec.Struct, frozen=True):
    """What an engine says in place of the truth."""

    samples: tuple[tuple[str, str], ...] = ()
    """Values of metrics, by their names."""
    labels: tuple[tuple[str, str], ...] = ()
    """Values of labels, by their names."""
    slots: int | None = None
    """Requests that it runs at once; None: it says the truth."""

    def told(self, page: bytes) -> bytes:
        """Return a page of metrics with the false values in it."""
        for name, value in self.samples:
            page = re.sub(rb"(?m)^(%b(?:\{[^}]*\})?) .*$" % name.encode(), rb"\1 " + value.encode(), page)
        for label, value in self.labels:
            page = re.sub(rb'\b%b="[^"]*"' % label.encode(), b'%b="%b"' % (label.encode(), value.encode()), page)
        return page


LIES: Final = {
    "idle": Lie(((_RUNNING, "0"), (_WAITING, "0"))),
    "crowded": Lie(((_RUNNING, "5000"), (_WAITING, "9000"))),
    "full": Lie(((_KV_USAGE, "1.0"),)),
    "still": Lie(((_PROGRESS, "0"),)),
    "no number": Lie(((_RUNNING, "NaN"), (_WAITING, "-1"), (_KV_USAGE, "+Inf"), (_PROGRESS, "many"))),
    "memory": Lie(labels=(("num_gpu_blocks", "1"), ("kv_cache_size_tokens", "16"))),
    "few slots": Lie(slots=1),
    "many slots": Lie(slots=1_000),
}
