"""The alert rules: they name metrics and labels that a gateway or a scheduler has, and each has a page that says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from maitred.admission import AdmissionConfig
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "prometheus" / "maitred.rules.yml"
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
CLUSTER = {"maitred_cluster_mode": {"mode"}}
"""Metrics of gateways and schedulers that are linked (tests/gateway/test_cluster.py shows them), and their labels."""


def _labels_by_series() -> dict[str, set[str]]:
    admission = msgspec.convert({"mode": "priority"}, AdmissionConfig)
    gateway = Gateway(GatewayConfig(backends=("http://127.0.0.1:9001",)), admission)
    found = dict[str, set[str]](CLUSTER)
    for family in gateway.metric_families():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix: set(vars(family)["_labelnames"]) for suffix in suffixes}
    return found


SERIES = _labels_by_series()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_is_there_and_has_a_page(rule: dict[str, Any]) -> None:
    named = re.findall(r"(maitred_\w+)(?:\{([^}]*)\})?", rule["expr"])
    assert named
    for name, selector in named:
        assert set(re.findall(r"(\w+)(?:=~|!=|=)", selector)) <= SERIES[name]
    labels = set[str]().union(*(SERIES[name] for name, _ in named)) | {"instance", "le"}
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in group.split(",")}
    assert grouped <= labels
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert shown <= (grouped or labels)
    assert rule["labels"]["severity"] in ("page", "ticket")
    page = (ROOT / rule["annotations"]["runbook_url"]).read_text()
    assert page.startswith(f"# {rule['alert']}\n")
    assert "\n## What to do\n\n1. " in page


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [("maitred_backend_circuit", "state", {"ejected"}), ("maitred_config_reload_total", "result", {"failed"}),
     ("maitred_refused_total", "code", {"body_budget_exhausted"}),
     ("maitred_cluster_mode", "mode", {"leading", "standby", "learning", "waiting", "share", "closed"})],
)  # fmt: skip
def test_values_that_alerts_select_are_words_of_the_code(name: str, label: str, values: set[str]) -> None:
    text = FILE.read_text()
    selected = "|".join(re.findall(rf'{name}\{{{label}=~?"([^"]*)"\}}', text))
    assert set(selected.split("|")) == values
    code = "\n".join(path.read_text() for path in (ROOT / "src/maitred").rglob("*.py"))
    assert all(f'"{value}"' in code for value in values)


def test_each_page_of_the_runbook_has_its_alert() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "runbook").glob("Maitred*.md")}
    assert pages == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", FILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
