"""The engines of a recorded run, as far as a simulation must know them, from the record itself.

    step times         `linear`, fitted to when the answers of each engine began and ended (`fit_timeline`), and what a request
                       waits outside of the steps (`fit_outside`). Tokens of the prompt that the engine had cached cost nothing
    error of these     how far the speed of the engines differed from it between parts of the record (`_drift`)
    sequences at once  the slots of a backend, as the log has them, or the most requests that it had at once if these were more:
                       whichever tells the record better (what the engine does not run waits in it)
    KV memory          what programs were told of it, or else the default of `instance`
    prefix cache       there is one if an answer says that tokens were cached

What a file says of the engines (the section `instance`) holds in place of what the record shows. An answer that did not stream
shows no first token: it counts as one that began as late as those of streams did, in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.units import SECOND
from maitred.instance import InstanceConfig
from maitred.instance.latency import LatencyConfig
from maitred.study.calibration.fitting import Fit, fit_timeline
from maitred.study.calibration.measurements import MeasuredRequest
from maitred.study.calibration.outside import fit_outside
from maitred.study.what_if.recorded import Recorded, RecordedRequest

_LEAST_STREAMS: Final = 30
"""Streamed answers without which nothing can be said of an engine."""
_BLOCK, _MOST_BLOCKS = 20, 50
"""Answers of a block in which the speed of the engines is looked at, and how many blocks there are at most."""
_MOST_ERROR: Final = 0.5
"""Of the step times: with more, a draw of them would say nothing."""
_MOST_FITTED: Final = 5_000
"""Answers that are fitted of one engine, the first ones: more make the fit slower and no better."""


class Engines(msgspec.Struct, frozen=True, kw_only=True):
    """Equal engines."""

    instance: InstanceConfig
    num_instances: int
    num_fitted: int = 0
    """Answers to which the step times are fitted; 0: they are stated."""


def find_engines(recorded: Recorded, sequences: int, stated: Mapping[str, Any] | None = None) -> Engines:
    """Return the engines of a run, which run so many `sequences` at once. `stated` are keys of the section `instance`. Raises
    ConfigError for too few answers."""
    keys: dict[str, Any] = {
        "max_num_seqs": sequences,
        "enable_prefix_caching": any(each.cached_tokens for each in recorded.requests),
        **(stated or {}),
    }
    if recorded.kv_tokens is not None and "total_kv_blocks" not in keys:
        keys["total_kv_blocks"] = max(1, recorded.kv_tokens // InstanceConfig(**keys).block_size_in_tokens)
    instance = InstanceConfig(**keys)
    count = max(1, len(recorded.backends))
    if instance.latency is not None or instance.has_model:
        return Engines(instance=instance, num_instances=count)
    timelines = [rows for backend in range(count) if (rows := _timeline(recorded.requests, backend))]
    num_streams = sum(each.is_complete and each.ttft is not None for each in recorded.requests)
    if num_streams < _LEAST_STREAMS:
        hint = "or say what the engines are: --engine FILE with the section instance"
        problem = f"{num_streams} streamed answers are too few to know the engines by: at least {_LEAST_STREAMS}"
        raise ConfigError(problem, where="--record", hint=hint)
    fit = fit_timeline(*timelines)
    # Cached tokens are left out of the prompts, so a cache must not find them once more.
    plain = replace(instance, enable_prefix_caching=False, latency=None)
    latency, _ = fit_outside(fit.latency, timelines, plain)
    assert isinstance(latency, LatencyConfig)
    error = min(_MOST_ERROR, _drift(fit))
    found = replace(
        instance, latency=latency, latency_error=error if instance.latency_error is None else instance.latency_error
    )
    return Engines(instance=found, num_instances=count, num_fitted=sum(map(len, timelines)))


def _drift(fit: Fit) -> float:
    """Return the standard deviation of how fast the engines were in blocks of about twenty consecutive answers, in times of the
    model. What single answers are off by averages out in a run, and does not count: a stream whose tokens come all at once, as
    its reader was held up, would count a hundredfold."""
    count = min(_MOST_BLOCKS, max(2, len(fit.measured) // _BLOCK))
    measured, predicted = ([part.sum() for part in np.array_split(np.array(of), count)] for of in (fit.measured, fit.predicted))
    speeds = np.array(predicted) / np.array(measured)
    # By the number of blocks, and not by one less: chance within a block is in it, too, so it is rather too large already.
    return float(speeds.std() / speeds.mean()) if speeds.any() else 0.0


def sequences_at_once(recorded: Recorded) -> Sequence[int]:
    """Return how many sequences an engine may have run at once: one number, or two that differ."""
    count = max(1, len(recorded.backends))
    most = max(_most_at_once(recorded.requests, backend) for backend in range(count))
    slots = -(-max(recorded.rules.slots.values(), default=0) // count)
    return (slots, most) if 0 < slots < most else (max(slots, most),)


def _most_at_once(requests: Sequence[RecordedRequest], backend: int) -> int:
    at = [
        (each.arrival + each.sent, each.arrival + each.e2e)
        for each in requests
        if each.backend == backend and each.sent is not None
    ]
    if not at:
        return 1
    begins, ends = (np.sort(np.array(column)) for column in zip(*at, strict=True))
    return int((np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")).max())


def _timeline(requests: Sequence[RecordedRequest], backend: int) -> list[MeasuredRequest]:
    """Return the complete answers of one backend as measurements, in the order in which they were sent."""
    mine = [each for each in requests if each.backend == backend and each.is_complete and each.sent is not None]
    waits = [each.ttft - each.sent for each in mine if each.ttft is not None and each.sent is not None]
    if not waits:
        return []
    usual = int(np.median(waits))
    rows = [_measured(each, usual) for each in mine]
    possible = [row for row in rows if row.sent < row.first_token <= row.last_token]
    return sorted(possible, key=lambda row: row.sent)[:_MOST_FITTED]


def _measured(each: RecordedRequest, usual_wait: int) -> MeasuredRequest:
    assert each.sent is not None
    assert each.output_tokens is not None
    sent = each.arrival + each.sent
    first = min(sent + usual_wait, each.arrival + each.e2e) if each.ttft is None else each.arrival + each.ttft
    return MeasuredRequest(
        prompt_tokens=max(1, each.prompt_tokens - each.cached_tokens),
        output_tokens=each.output_tokens,
        sent=sent / SECOND,
        queued=sent / SECOND,
        scheduled=sent / SECOND,
        first_token=first / SECOND,
        last_token=(each.arrival + each.e2e) / SECOND,
        shared_blocks=0,
        seen_by_client=True,
    )
