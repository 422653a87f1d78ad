"""The Grafana dashboard: every metric and label in its queries is one that the gateway has. That the queries are PromQL, and
show something under load, `tools/check_dashboard.py` shows with a real Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maitred.admission import AdmissionConfig
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "examples/grafana/maitred.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {"instance", "le"}
"""Labels that Prometheus adds, and that histograms have."""


def metrics() -> dict[str, set[str]]:
    """The labels of each series of a gateway in mode `priority`, by its name."""
    admission = msgspec.convert({"mode": "priority"}, AdmissionConfig)
    gateway = Gateway(GatewayConfig(backends=("http://127.0.0.1:9001",)), admission)
    found: dict[str, set[str]] = {}
    for family in gateway.metric_families():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix: set(vars(family)["_labelnames"]) | OF_PROMETHEUS for suffix in suffixes}
    return found


METRICS = metrics()
TARGETS = [pytest.param(panel["title"], target, id=f"{panel['title']} {target['refId']}")
           for panel in PANELS for target in panel["targets"]]  # fmt: skip


@pytest.mark.parametrize(("title", "target"), TARGETS)
def test_a_query_names_metrics_and_labels_that_there_are(title: str, target: dict[str, Any]) -> None:
    query: str = target["expr"]
    selected = re.findall(r"(maitred_\w+)\{([^}]*)\}", query)
    assert len(selected) == query.count("maitred_") > 0, "each metric has its selector"
    labels = set.union(*(METRICS[name] for name, _ in selected))
    for name, selector in selected:
        asked = set(re.findall(r"(\w+)(?:=~|!=|=)", selector))
        assert asked <= METRICS[name]
        assert "instance" in asked
        assert ("model" in asked) == ('model=~"$model"' in query)
    for group in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",")} <= labels
    grouped = re.findall(r"by \(([^)]*)\)", query)
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert shown <= ({label.strip() for label in grouped[0].split(",")} if grouped else labels)


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance", "model"]
    for variable in DASHBOARD["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
        assert label in METRICS[metric]
    for panel in PANELS:
        assert panel["description"].endswith(".")
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("subject", ["time_to_first_token", "inter_token_latency", "e2e_request_latency", "prompt_tokens",
                                     "generation_tokens", "upstream", "http_responses", "connections", "running", "waiting",
                                     "kv_cache", "event_loop_lag"])  # fmt: skip
def test_what_an_operator_asks_for_first_is_on_it(subject: str) -> None:
    assert any(subject in target["expr"] for panel in PANELS for target in panel["targets"])
