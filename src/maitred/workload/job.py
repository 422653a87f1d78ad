"""Job: a request together with what no policy may know, the true length of its answer.

Reactive workloads: what arrives next depends on what became of what arrived before.

A session asks its next question when it has read the answer; a closed loop sends when a place has become free. Neither can be
said in advance. Such a workload is an iterator of `Job` like any other (those that come whatever happens) and besides is told
of every request that ends; it answers with the jobs that follow. The driver merges them into the arrivals, in the order of
(arrival, id).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import msgspec

from maitred.core.request import PrefixKeys, Request
from maitred.core.units import Micros


class Job(msgspec.Struct, frozen=True, gc=False):
    """One arrival of a workload."""

    request: Request
    output_tokens: int
    """How many tokens the answer will have, at least 1: the model's "end of sequence" in advance."""
    conversation_prefix: PrefixKeys | None = None
    """The content of prompt and answer together, whose keys begin with those of the prompt; None: nobody will ask for the
    answer's KV blocks again."""


@runtime_checkable
class ReactiveWorkload(Protocol):
    """A workload with a memory. It is read and told in the order of time: `ended` at `now` comes after the jobs that arrived
    before `now`."""

    def __iter__(self) -> Iterator[Job]: ...

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        """`request` ended at `now` in any way (`completed`: with its whole answer; else it was rejected, dropped, aborted or
        timed out), after `output_tokens` tokens. The jobs that follow from it: their arrivals are `now` or later, and their
        ids are fresh: different from those of all other jobs of this workload, given or to come."""
        ...
