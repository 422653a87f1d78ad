"""Job: a request together with what no policy may know, the true length of its answer."""

from __future__ import annotations

import msgspec

from maitred.request import PrefixKeys, Request


class Job(msgspec.Struct, frozen=True, gc=False):
    """One arrival of a workload."""

    request: Request
    output_tokens: int
    """How many tokens the answer will have, at least 1: the model's "end of sequence" in advance."""
    whole: PrefixKeys | None = None
    """The content of prompt and answer together, whose keys begin with those of the prompt; None: nobody will ask for the
    answer's KV blocks again."""
