"""The Helm chart, as it was rendered with three files of values (`tools/chart.py`): Kubernetes knows each field, maitred takes
its configuration and its flags, and what the parts say of one another fits.

Helm itself is asked where it is there: the binary, or its library (`pip install helm-python-sdk`)."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from maitred.cli.scheduler import run as run_scheduler
from maitred.cli.serve import run as run_serve
from maitred.config import ConfigSources

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy" / "helm"
NAMES = sorted(path.stem for path in (HELM / "values").glob("*.yaml"))
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "InferencePool"}
"""Kinds that Kubernetes has with an operator's definitions alone, so that there is no schema to hold them against."""


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_tool", ROOT / "tools" / "chart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()


def manifests(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((HELM / "rendered" / f"{name}.yaml").read_text()) if each]


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in manifests(name) if each["kind"] == kind]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_rendered_is_of_this_chart(name: str) -> None:
    """It begins with a digest of the chart and the values: python tools/chart.py."""
    assert (HELM / "rendered" / f"{name}.yaml").read_text().startswith(TOOL.header(HELM / "values" / f"{name}.yaml"))


@pytest.mark.skipif(
    shutil.which("helm") is None and importlib.util.find_spec("helm_python") is None, reason="needs helm or helm-python-sdk"
)
def test_helm_finds_nothing_wrong_and_renders_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["chart.py", "--check"])
    assert TOOL.main() == 0


@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_takes_the_manifests(name: str) -> None:
    for manifest in manifests(name):
        if manifest["kind"] not in OF_OPERATORS:
            kubernetes_validate.validate(manifest, "1.37", strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_maitred_takes_the_configuration_and_the_flags(name: str, tmp_path: Path) -> None:
    config = next(each["data"]["maitred.yaml"] for each in of_kind(name, "ConfigMap") if "maitred.yaml" in each["data"])
    (tmp_path / "maitred.yaml").write_text(config)
    assert ConfigSources(file=tmp_path / "maitred.yaml", env={}).problems() == []
    for deployment in of_kind(name, "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        command, *flags = container["args"]
        known = {"serve": run_serve, "scheduler": run_scheduler}[command]
        assert {flag.partition("=")[0] for flag in flags} <= {"--config", "--scheduler", *known.flag_names.values()}


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_fit_together(name: str) -> None:
    """Services select pods and name their ports, probes ask ports that are open, and nothing is killed while it drains."""
    config = next(yaml.safe_load(c["data"]["maitred.yaml"]) for c in of_kind(name, "ConfigMap") if "maitred.yaml" in c["data"])
    templates = [deployment["spec"]["template"] for deployment in of_kind(name, "Deployment")]
    for service in of_kind(name, "Service"):
        selector = service["spec"]["selector"].items()
        (pods,) = [template for template in templates if selector <= template["metadata"]["labels"].items()]
        ports = {port["name"]: port["containerPort"] for port in pods["spec"]["containers"][0]["ports"]}
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    for template in templates:
        spec, (container,) = template["spec"], template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        asked = [(probe.get("httpGet") or probe["grpc"])["port"] for key, probe in container.items() if key.endswith("Probe")]
        assert len(asked) == 3
        assert set(asked) <= {*ports, *ports.values()}
        assert ports["admin"] == config["gateway"]["admin_port"]
        waits = container["lifecycle"]["preStop"]["sleep"]["seconds"] + config["gateway"].get("settle_secs", 10)
        assert spec["terminationGracePeriodSeconds"] >= waits + config["gateway"].get("drain_secs", 30) + 10
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_the_alerts_and_dashboards_are_those_of_the_repository() -> None:
    (rules,) = of_kind("cluster", "PrometheusRule")
    text = (ROOT / "deploy" / "prometheus" / "maitred.rules.yml").read_text()
    served = re.sub(r"docs/runbook/(\w+)\.md\n", r"https://docs.example.com/maitred/runbook/\1/\n", text)
    assert rules["spec"] == yaml.safe_load(served)
    (dashboards,) = [each for each in of_kind("cluster", "ConfigMap") if each["metadata"]["name"].endswith("dashboards")]
    for name, text in dashboards["data"].items():
        assert json.loads(text) == json.loads((ROOT / "examples" / "grafana" / name).read_text())


def test_the_values_have_a_schema_that_names_each_of_them() -> None:
    def names(value: object, schema: dict[str, Any], where: str) -> None:
        if isinstance(value, dict) and "properties" in schema:
            assert set(value) == set(schema["properties"]) - {"global"}, where
            assert schema["additionalProperties"] is False
            for key, each in value.items():
                names(each, schema["properties"][key], f"{where}.{key}")

    schema = json.loads((HELM / "maitred" / "values.schema.json").read_text())
    names(yaml.safe_load((HELM / "maitred" / "values.yaml").read_text()), schema, "values")


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"gateway": {"replicas": 3}}, "set scheduler.enabled"),
    ({"scheduler": {"enabled": True}}, "scheduler.linkSecret"),
    ({"scheduler": {"enabled": True, "linkSecret": "s", "replicas": 2}}, "scheduler.election"),
    ({"picker": {"enabled": True, "replicas": 2}}, "picker.election"),
    ({"gateway": {"enabled": False}}, "nothing is enabled"),
    ({"gatway": {}}, "gatway"),
    ({"adminPort": 70_000}, "adminPort"),
]


@pytest.mark.skipif(importlib.util.find_spec("helm_python") is None, reason="needs helm-python-sdk")
@pytest.mark.parametrize(("values", "says"), MISTAKES)
def test_a_mistake_in_the_values_is_told(values: dict[str, Any], says: str) -> None:
    import helm_python

    with helm_python.Chart.load(HELM / "maitred") as chart, pytest.raises(helm_python.HelmError, match=re.escape(says)):
        chart.render(values, name="m", namespace="n")
