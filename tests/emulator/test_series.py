"""The text of series, beside that of `prometheus_client`, with the same values."""

from __future__ import annotations

import prometheus_client as prometheus

from maitred.emulator.series import Counter, Gauge, HistogramSeries, SeriesPage

LABELS = {"model_name": 'a "quoted"\\name\nof two lines', "engine": "0"}
BOUNDS = (0.5, 1, 20, 2_560)


def text_of_prometheus(values: list[float], tokens: float, load: float) -> str:
    registry = prometheus.CollectorRegistry()
    prometheus.Counter("tokens", "Tokens.", LABELS, registry=registry).labels(**LABELS).inc(tokens)
    prometheus.Gauge("load", "Load.", LABELS, registry=registry).labels(**LABELS).set(load)
    ttft = prometheus.Histogram("ttft", "First token.", LABELS, registry=registry, buckets=BOUNDS).labels(**LABELS)
    for value in values:
        ttft.observe(value)
    lines = prometheus.generate_latest(registry).decode().splitlines(keepends=True)
    return "".join(line for line in lines if "_created" not in line)  # They hold the real time.


def test_a_page_is_written_as_prometheus_client_writes_it() -> None:
    page, load = SeriesPage(), [0.25]
    (tokens,) = page.add("counter", "tokens_total", "Tokens.", Counter("tokens_total", LABELS))
    page.add("gauge", "load", "Load.", Gauge("load", LABELS, lambda: load[0]))
    (ttft,) = page.add("histogram", "ttft", "First token.", HistogramSeries("ttft", LABELS, BOUNDS))
    assert page.text() == text_of_prometheus([], 0, 0.25)
    tokens.inc(3_000_000)
    values = [0.5, 0.1, 3.0, 1e5]
    for value in values:
        ttft.observe(value)
    load[0] = 3
    assert page.text() == text_of_prometheus(values, 3e6, 3)
    assert page.text() == text_of_prometheus(values, 3e6, 3)
    ttft.observe(7.0)
    assert page.text() == text_of_prometheus([*values, 7.0], 3e6, 3)


def test_equal_names_with_several_labels_are_one_family() -> None:
    page = SeriesPage()
    ended = [Counter("ended_total", {"reason": reason}) for reason in ("stop", "length")]
    page.add("counter", "ended_total", "Ends.", *ended)
    ended[1].inc()
    assert page.text() == (
        "# HELP ended_total Ends.\n# TYPE ended_total counter\n"
        'ended_total{reason="stop"} 0.0\nended_total{reason="length"} 1.0\n'
    )
