"""What became of each request of a run, by its id, for who writes it down beside the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from maitred.request import RequestId
from maitred.sim import Outcome, Results
from maitred.workload import Measured

Seen: TypeAlias = Callable[[RequestId], Measured | None]


def seen(results: Results) -> Seen:
    """Of a request that did not arrive, or of which no row was kept, None."""
    order = np.argsort(results.request_id, kind="stable")
    ids = results.request_id[order]

    def of(request_id: RequestId) -> Measured | None:
        place = int(np.searchsorted(ids, request_id))
        if place == len(ids) or ids[place] != request_id:
            return None
        row = order[place]
        return Measured(
            first_token=int(results.first_token[row]),
            finished=int(results.finished[row]),
            output_tokens=int(results.output_tokens[row]),
            outcome=Outcome(results.outcome[row]).name.lower(),
        )

    return of
