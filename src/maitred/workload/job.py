"""Job: a request together with what no policy may know, the true length of its answer."""

from __future__ import annotations

import msgspec

from maitred.request import Request


class Job(msgspec.Struct, frozen=True, gc=False):
    """One arrival of a workload."""

    request: Request
    output_tokens: int
    """How many tokens the answer will have, at least 1: the model's "end of sequence" in advance."""
