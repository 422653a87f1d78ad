"""The page: complete, self-contained, and safe against names with markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import numpy as np
import pytest

from maitred.instance import InstanceConfig
from maitred.report import RunSetup, Slo, summarise, write_page
from maitred.sim import ClusterConfig, Results

SETUP = RunSetup(
    workload="sample:mixed",
    command="maitred simulate --trace sample:mixed",
    seed=7,
    horizon=2_000_000,
    sections={"cluster": ClusterConfig(num_instances=2), "instance": InstanceConfig(scheduler="sjf")},
)
VOID = {"meta", "br", "link", "img", "input"}


def page_of(results: Results, slo: Slo | None = None, setup: RunSetup = SETUP) -> str:
    parts: list[bytes] = []
    write_page(results, summarise(results, slo), setup, parts.append)
    return b"".join(parts).decode()


class PageChecker(HTMLParser):
    """Checks that the tags of the page are balanced, and collects its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.text.setdefault(self.open[-1], []).append(data.strip())


def test_it_needs_nothing_from_anywhere(told: Results) -> None:
    page = page_of(told, Slo(ttft_ms=200))
    read = PageChecker(page)
    assert not re.search(r"(https?:|//)[a-z]|@import|url\(", page.replace("https://github.com/leeoniya/uPlot", ""))
    assert not [tag for tag, attributes in read.attributes if {"src", "href"} & set(attributes)]
    assert {"link", "img", "iframe"}.isdisjoint(tag for tag, _ in read.attributes)


def test_it_says_what_the_summary_says(told: Results) -> None:
    read = PageChecker(page_of(told, Slo(ttft_ms=200)))
    tiles = dict(zip(read.text["dt"], read.text["dd"], strict=False))
    assert tiles["Within SLO"] == "40.0%"
    assert tiles["TTFT p99"] == "788.0 ms"
    assert tiles["Completed"] == "3"
    assert tiles["With work"] == "50.0%"
    assert {"By class", "By SLO class", "By tenant", "By instance"} == set(read.text["caption"])
    assert "sample:mixed" in read.text["h1"]
    assert "maitred simulate --trace sample:mixed" in read.text["pre"]
    assert "ended after 2 s" in " ".join(read.text["p"])


def test_what_differs_from_the_defaults_is_bold(told: Results) -> None:
    read = PageChecker(page_of(told))
    assert read.text["b"] == ["num_instances: 2", "scheduler: sjf"]
    assert "max_num_seqs: 256" in "\n".join(read.text["pre"])


def test_every_chart_has_words_for_readers_that_do_not_see_it(told: Results) -> None:
    plots = [attributes for tag, attributes in PageChecker(page_of(told)).attributes if "data-chart" in attributes]
    assert len(plots) == 11
    assert all(plot["role"] == "img" and len(plot["aria-label"] or "") > 20 for plot in plots)


def test_a_pointer_reads_the_values_of_the_curves(told: Results) -> None:
    charts: list[Any] = [
        json.loads(attributes["data-chart"] or "")
        for _, attributes in PageChecker(page_of(told, Slo(ttft_ms=200))).attributes
        if "data-chart" in attributes
    ]
    kv = charts[-1]
    assert (kv["unit"], kv["log"], kv["shares"], kv["time"]) == ("s", False, True, True)
    assert [(curve["label"], curve["x"], curve["y"]) for curve in kv["curves"]] == [
        ("instance 0", [0, 1, 2], [0, 0.5, 0]),
        ("instance 1", [0, 1, 2], [0, 1, 0.1]),
    ]
    assert charts[0]["target"] == 200


def test_names_are_text_and_never_markup(told: Results) -> None:
    evil = "<script>alert('\"&')"
    renamed = msgspec.structs.replace(told, tenants=("", evil, "globex"), models=("", evil))
    setup = msgspec.structs.replace(SETUP, workload=evil, command=evil)
    page = page_of(renamed, Slo(ttft_ms=0.001), setup)
    assert page.count("<script>") == 2
    assert evil in PageChecker(page).text["th"]


def test_warnings_stand_at_the_top(told: Results) -> None:
    assert any("KV thrashing" in text for text in PageChecker(page_of(told)).text["p"])
    told.wasted_tokens[:] = 0
    assert not any("KV thrashing" in text for text in PageChecker(page_of(told)).text["p"])


def test_the_same_run_gives_the_same_bytes(told: Results) -> None:
    assert page_of(told) == page_of(told)


def test_a_run_without_requests_is_a_page_too(none: Results) -> None:
    read = PageChecker(page_of(none, Slo(ttft_ms=0.001)))
    assert "data-chart" not in {name for _, attributes in read.attributes for name in attributes}
    assert "nan" not in page_of(none).lower().replace("tenan", "")


def test_many_tenants_are_cut_and_that_is_said(make: Any, five_rows: Any) -> None:
    many = make(five_rows[:1] * 300, 2_000_000)
    names = ("", *(f"tenant-{number}" for number in range(300)))
    page = page_of(msgspec.structs.replace(many, tenant=np.arange(300) + 1, tenants=names))
    assert "the 50 with the most requests, 250 more left out" in page


@pytest.mark.parametrize("count", [10, 200_000])
def test_it_is_small_whatever_the_run(make: Any, five_rows: Any, count: int) -> None:
    many = make(five_rows[:3] * (count // 3), 2_000_000)
    many.arrival[:] = np.sort(np.random.default_rng(1).integers(0, 1_000_000, len(many)))
    many.first_token[:] = many.arrival + np.random.default_rng(2).integers(1, 900_000, len(many))
    many.finished[:] = many.first_token + 500_000
    assert len(page_of(many)) < 300_000
