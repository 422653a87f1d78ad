"""Metrics of requests by class and model: tokens in and out, TTFT, the time between tokens, end to end, answers by status.

`RequestSeries` holds what is counted for one class and one model. A request is given its series once, when it is taken in, and
from then on counting is an addition: no label is looked up for a token.

Clients choose classes, and backends models. There are four classes; the first `model_metric_top_n` models get labels of their
own, and all others are summed up as `other`: a page costs 1.6 ms of CPU time for each model that is used by all classes. A
series begins with its first request. Tokens have the tenant beside that, where the first
`tenant_metric_top_n` tenants have labels of their own (`GatewayCounters.tenant_label`).

**Tokens.** The `usage` of an answer counts (source `reported`). An answer without one is estimated: the prompt from the size of
the body, a stream from its events, any other answer from its bytes. For example, a stream of 21 events, of which the last only
says that it is the last, with `max_tokens: 16`, counts as 16 tokens with the source `estimated`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import Final, TypeAlias

from prometheus_client.core import Metric

from maitred.core.histogram import DURATION_BOUNDS, Histogram
from maitred.core.request import PriorityClass
from maitred.core.units import from_seconds
from maitred.gateway.observe.metric_families import counter, histogram
from maitred.gateway.observe.openmetrics import Examples, Exemplars

OTHER_MODELS: Final = "other"
_SERIES_IN_STEP: Final = 12
"""Series of which a metric is made in a step (`shared_page`): 20 rows each."""
GAP_BOUNDS: Final = tuple(
    from_seconds(ms / 1000)
    for ms in (1, 2.5, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2500, 5000, 10_000, 30_000)
)
"""Upper bounds for the time between two tokens, in µs."""


class TokenCounts:
    """The tokens of the requests of one class, model and tenant."""

    __slots__ = ("estimated_output", "estimated_prompt", "reported_output", "reported_prompt")

    def __init__(self) -> None:
        self.reported_prompt = 0
        self.estimated_prompt = 0
        self.reported_output = 0
        self.estimated_output = 0


class RequestSeries:
    """What is counted for the requests of one class and model. Times are in µs."""

    __slots__ = ("e2e", "exemplars", "itl", "tokens", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(DURATION_BOUNDS)
        """From the arrival of a request to the first data of its streamed answer."""
        self.itl = Histogram(GAP_BOUNDS)
        """Between two pieces of a stream, as the engine sends them."""
        self.e2e = Histogram(DURATION_BOUNDS)
        """From the arrival of a request to the end of its complete answer."""
        self.exemplars = Exemplars()
        """Traces of requests in `ttft` and `e2e`."""
        self.tokens: dict[str, TokenCounts] = {}
        """By the label of the tenant."""

    def tokens_of(self, tenant_label: str) -> TokenCounts:
        """Return the tokens of the tenants with this label."""
        found = self.tokens.get(tenant_label)
        if found is None:
            found = self.tokens[tenant_label] = TokenCounts()
        return found


class RequestMetrics:
    """The series of all classes and models."""

    def __init__(self, max_model_labels: int) -> None:
        self.responses: Counter[tuple[int, str]] = Counter()
        """Answers to requests for forwarded routes, by status and error code. The status of a client that left is 499."""
        self._max_model_labels = max_model_labels
        self._labels: set[str] = set()
        self._series: dict[tuple[PriorityClass, str], RequestSeries] = {}

    def series(self, c: PriorityClass, model: str) -> RequestSeries:
        """Return the series of a class and a model, or that of the class and all models without a label."""
        found = self._series.get((c, model))
        return self._bind(c, model) if found is None else found

    def _bind(self, c: PriorityClass, model: str) -> RequestSeries:
        if model not in self._labels:
            if len(self._labels) >= self._max_model_labels:
                return self._series.setdefault((c, OTHER_MODELS), RequestSeries())
            self._labels.add(model)
        series = self._series[c, model] = RequestSeries()
        return series

    @property
    def labels(self) -> list[tuple[PriorityClass, str]]:
        """The classes and models that have a series."""
        return [*self._series]

    def clear(self) -> None:
        """Forget all series; the models that have labels of their own keep them."""
        self._series.clear()

    def families(self) -> Iterator[Metric]:
        """Yield all metrics; one with many rows as several of the same name, one after the other."""
        labelled = [((c.label, model), series) for (c, model), series in sorted(self._series.items(), key=itemgetter(0))]
        for name, (text, kept) in _HISTOGRAMS.items():
            for begin in range(0, max(1, len(labelled)), _SERIES_IN_STEP):
                part = labelled[begin : begin + _SERIES_IN_STEP]
                times = ((labels, getattr(series, kept)) for labels, series in part)
                examples: dict[tuple[str, ...], Examples] = {
                    labels: found for labels, series in part if (found := series.exemplars.of.get(kept))
                }
                yield histogram(f"maitred_{name}_seconds", text, ["class", "model"], times, examples)
        for name, (text, counts_of) in _TOKENS.items():
            by_class, by_tenant = _sum_tokens(labelled, counts_of)
            yield counter(f"maitred_{name}_tokens", text, ["class", "model", "source"], by_class.items())
            yield counter(f"maitred_tenant_{name}_tokens", text, ["tenant", "model", "source"], by_tenant.items())
        text = "Answers to requests for forwarded routes; 499: the client left before its answer."
        answers = (([str(status), code], n) for (status, code), n in sorted(self.responses.items()))
        yield counter("maitred_http_responses", text, ["status_code", "error_code"], answers)


_Labels: TypeAlias = tuple[str, str, str]


def _sum_tokens(
    labelled: Iterable[tuple[tuple[str, str], RequestSeries]], counts_of: Callable[[TokenCounts], tuple[int, int]]
) -> tuple[dict[_Labels, int], dict[_Labels, int]]:
    """Return tokens by class, model and source, and by tenant, model and source."""
    by_class: dict[_Labels, int] = {}
    by_tenant: Counter[_Labels] = Counter()
    for (label, model), series in labelled:
        by_class |= {(label, model, source): 0 for source in _SOURCES}
        for tenant, tokens in series.tokens.items():
            for source, n in zip(_SOURCES, counts_of(tokens), strict=True):
                by_class[label, model, source] += n
                by_tenant[tenant, model, source] += n
    return by_class, by_tenant


_HISTOGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "time_to_first_token": ("Arrival to first data, streamed answers.", "ttft"),
    "inter_token_latency": ("Between two pieces of a stream: a token each, with most engines.", "itl"),
    "e2e_request_latency": ("Arrival to the end of a complete answer.", "e2e"),
}
"""By name what is said of it, and the attribute of a series."""
_SOURCES: Final = ("reported", "estimated")
_TOKENS: Final[Mapping[str, tuple[str, Callable[[TokenCounts], tuple[int, int]]]]] = {
    "prompt": ("Tokens of prompts that were sent to a backend.", attrgetter("reported_prompt", "estimated_prompt")),
    "generation": ("Tokens of answers.", attrgetter("reported_output", "estimated_output")),
}
