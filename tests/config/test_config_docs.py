"""docs/config.md names every key with the default that the code has, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from maitred.admission.terms.config import TenantPolicy
from maitred.admission.terms.presets import Flavour, preset_of
from maitred.config import Config, load
from maitred.core.request import PriorityClass
from maitred.core.yaml_document import YamlDocument
from maitred.core.yaml_schema import section_keys, type_at
from maitred.instance.latency import LinearLatency, RooflineLatency, TableLatency, TrainedPhysicsLatency

DOC = Path(__file__).parents[2] / "docs" / "config.md"
CLASSES = ("system", "interactive", "default", "bulk")


def documented() -> dict[str, Any]:
    """Return the default of each dotted key in the tables of the page."""
    found: dict[str, Any] = {}
    section = ""
    for line in DOC.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").split()[0]
        if line.startswith("| `"):
            key, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for place, cell in zip(_places(section), cells, strict=False):
                found[f"{place}.{key.strip('`')}"] = YamlDocument(cell.strip("`"), "config.md").value
    return found


def _places(section: str) -> list[str]:
    return [section.replace("CLASS", c) for c in CLASSES] if "CLASS" in section else [section]


def defaults(tree: Any, *path: str) -> dict[str, Any]:
    """Return the default of each dotted key in the code."""
    if not isinstance(tree, dict) or not tree:
        return {".".join(path): list(tree) if isinstance(tree, tuple) else tree}
    return {dotted: value for key, below in tree.items() for dotted, value in defaults(below, *path, key).items()}


def of_classes(flavour: Flavour, *path: str) -> dict[str, Any]:
    rules = {c.label: msgspec.to_builtins(preset_of(flavour).classes[c]) for c in PriorityClass}
    return defaults(rules, *path)


def test_every_key_is_documented_with_its_default_and_nothing_else_is() -> None:
    keys = {key: value for key, value in defaults(msgspec.to_builtins(Config())).items() if ".classes." not in key}
    policy = defaults(msgspec.to_builtins(TenantPolicy()), "admission", "tenant_policies", "TENANT")

    latencies = [LinearLatency(), RooflineLatency(), TrainedPhysicsLatency(), TableLatency()]
    for latency in map(msgspec.to_builtins, latencies):
        policy |= defaults(latency, "instance", "latency", latency["model"])

    assert keys | policy | of_classes("maitred", "admission", "classes") | of_classes("smg") == documented()


def test_classes_are_those_of_the_code() -> None:
    assert tuple(section_keys(type_at(Config, ("admission", "classes")))) == CLASSES
    assert set(CLASSES) == {c.label for c in PriorityClass}


def test_the_example_loads(tmp_path: Path) -> None:
    example = DOC.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
    path = tmp_path / "maitred.yaml"
    path.write_text(example)

    found = load(path)

    assert len(found.gateway.backends) == 2
    assert found.admission.class_rules(PriorityClass.INTERACTIVE).reserved_per_slot == pytest.approx(0.4)
    assert (found.admission.class_rules(PriorityClass.BULK).queue_size, found.routing.policy) == (5000, "round-robin")
    assert found.admission.class_cap("auth:acme") is PriorityClass.INTERACTIVE
