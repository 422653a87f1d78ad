"""Timeline: each request as a bar over time that shows how long it waited, prefilled and decoded, and when its KV was freed.

A page holds some hundred of them: every n-th in the order of arrival, and those that waited longest for their first token. The
times are ms from the beginning of the run. A request is a list:

    [id, class, outcome, arrival, admitted, first run, first token, end, [freed, next run, ...], reason]

Of a measured run, clients know neither admission nor the first run: these are the arrival and the first token. An instant that
did not come is -1. Between `freed` and `next run` the request waits without its KV, and after `next run` it computes this
again. `class`, `outcome` and `reason` are indices of lists of names.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from maitred.core.units import MILLISECOND, Micros
from maitred.report.breakdown import By, group_codes, group_label
from maitred.report.page.parts import figure_html
from maitred.sim import Outcome, Results

_EVENLY, _LONGEST = 600, 100
"""Requests that are shown: as many spread evenly, and as many that waited longest."""


def timeline_html(results: Results) -> str:
    """Return the timeline as a `figure` element, or nothing for a run without requests."""
    if not len(results):
        return ""
    shown = _shown(results)
    count = len(results)
    part = f"all {count:,}" if len(shown) == count else f"{len(shown):,} of {count:,}: spread evenly, and the longest waits"
    about = f"Timeline of requests ({part}): the wait before admission and before the first step, prefill and decode of each."
    return figure_html("Requests", part, about, "timeline", _data(results, shown))


def _shown(results: Results) -> list[int]:
    """Return the indices of the rows that are shown, in the order of arrival."""
    count = len(results)
    if count <= _EVENLY + _LONGEST:
        return list(range(count))
    evenly = np.linspace(0, count - 1, _EVENLY).astype(np.int64)
    started = np.where(results.first_token >= 0, results.first_token, np.maximum(results.finished, results.arrival))
    longest = np.argsort(results.arrival - started, kind="stable")[:_LONGEST]
    return sorted({*evenly.tolist(), *longest.tolist()})


def _data(results: Results, shown: list[int]) -> dict[str, Any]:
    codes = group_codes(results, By.CLASS)
    classes = sorted({int(codes[row]) for row in shown})
    freed = _freed(results)
    reasons: dict[str, int] = {"": 0}
    known = {} if results.timelines is None else results.timelines.reasons
    measured = results.is_measured
    begun = results.first_token if measured else results.scheduled
    admitted = results.arrival if measured else results.admitted
    requests = []
    for row in shown:
        request_id = int(results.request_id[row])
        stretches = freed.get(request_id, [])
        gaps, scheduled = _kv_gaps(stretches, int(begun[row]))
        reason = known.get(request_id, "")
        instants = (results.arrival[row], admitted[row], scheduled, results.first_token[row], results.finished[row])
        requests.append(
            [
                request_id,
                classes.index(int(codes[row])),
                int(results.outcome[row]),
                *(_ms(int(at)) for at in instants),
                [_ms(at) for at in gaps],
                reasons.setdefault(reason, len(reasons)),
            ]
        )
    return {
        "end": _ms(results.end),
        "measured": measured,
        "classes": [group_label(results, By.CLASS, code) for code in classes],
        "outcomes": _outcome_names(),
        "reasons": list(reasons),
        "requests": requests,
    }


def _outcome_names() -> list[str]:
    """Return the names of outcomes, by their number."""
    names = {int(outcome): outcome.name.lower().replace("_", " ") for outcome in Outcome}
    return [names.get(number, "") for number in range(max(names) + 1)]


def _freed(results: Results) -> dict[int, list[tuple[Micros, Micros]]]:
    """Return for each request the stretches for which it ran until its KV was freed, in their order."""
    stretches: defaultdict[int, list[tuple[Micros, Micros]]] = defaultdict(list)
    logged = results.timelines
    if logged is not None:
        for request_id, began, ended in zip(
            logged.request_id.tolist(), logged.began.tolist(), logged.ended.tolist(), strict=True
        ):
            stretches[request_id].append((began, ended))
    return stretches


def _kv_gaps(stretches: list[tuple[Micros, Micros]], scheduled: Micros) -> tuple[list[Micros], Micros]:
    """Return when the KV of a request was freed and when it ran next, in turn, and when it first ran. `scheduled` is when it
    last entered the batch: before the last of `stretches` ended, if it did not run again."""
    if not stretches:
        return [], scheduled
    nexts = [began for began, _ in stretches[1:]] + [scheduled if scheduled >= stretches[-1][1] else -1]
    return [at for (_, ended), again in zip(stretches, nexts, strict=True) for at in (ended, again)], stretches[0][0]


def _ms(at: Micros) -> float:
    return -1 if at < 0 else round(at / MILLISECOND, 1)
