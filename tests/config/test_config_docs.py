"""docs/config.md names every key with the default that the code has, and no other; docs/gateway.md names every flag of `maitred
serve`, every route and every code that the gateway answers with.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import maitred
from maitred.admission.terms.config import TenantPolicy
from maitred.admission.terms.presets import Flavour, preset_of
from maitred.cli.app import command_named
from maitred.config import Config, load
from maitred.core.request import PriorityClass
from maitred.core.yaml_document import YamlDocument
from maitred.core.yaml_schema import section_keys, type_at
from maitred.gateway import error_responses
from maitred.gateway.admin.reload import RELOADABLE_KEYS
from maitred.gateway.routes import ROUTES
from maitred.instance.latency import AIConfiguratorLatency, LinearLatency, RooflineLatency, TableLatency, TrainedPhysicsLatency
from maitred.scheduler.failures import AnsweredError, BackendAbandoned, UsageRefused
from maitred.wire import refusals
from maitred.wire.errors import ConnectError, UpstreamError

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

    latencies = [LinearLatency(), RooflineLatency(), TrainedPhysicsLatency(), TableLatency(), AIConfiguratorLatency()]
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


GATEWAY_PAGES = ("gateway", "access", "backends", "operations")
GATEWAY_DOC = "".join((Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in GATEWAY_PAGES)
SOURCE = Path(maitred.__file__).parent


def section(heading: str) -> str:
    return GATEWAY_DOC.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_flags() -> None:
    flags = {name for option in command_named("serve").params for name in option.opts} - {"--help"}

    assert set(re.findall(r"`(--[a-z-]+)", section("Flags"))) == flags


def test_routes() -> None:
    slots, free = (line for line in section("Routes").splitlines() if line.startswith("| POST"))

    assert set(re.findall(r"`([^`]+)`", slots)) == {route.path for route in ROUTES.values() if route.needs_slot}
    assert set(re.findall(r"`([^`]+)`", free)) == {route.path for route in ROUTES.values() if not route.needs_slot}


def test_codes() -> None:
    documented = set(
        re.findall(r"`([a-z_]+)`", " ".join(line.split("|")[1] for line in section("Errors").splitlines() if "|" in line))
    )
    files = [*SOURCE.glob("gateway/**/*.py"), SOURCE / "wire" / "exchange.py", SOURCE / "wire" / "refusals.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    written = set(re.findall(r'code="([a-z_]+)"', text))
    admission = set(re.findall(r'"((?:scheduler|admission)_[a-z_]+)"', (SOURCE / "gateway" / "error_responses.py").read_text()))
    programs = {code for _, code, _ in error_responses.PROGRAM_REJECTIONS.values()}
    rooms = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.glob("admission/**/*.py"))
    policies = {f"admission_{reason}" for reason in ("policy", *re.findall(r'Refusal\(\s*"([a-z_]+)"', rooms))}
    both_paths = {
        f"{path}_{name}" for path in ("scheduler", "admission") for name in ("queue_full", "queue_timeout", "tenant_queue_full")
    }
    failures = {f"upstream_{kind.reason}" for kind in (*UpstreamError.__subclasses__(), BackendAbandoned)}
    # Of these the client gets the engine's own answer, the answer of another attempt, or another code.
    never_told = {f"upstream_{kind.reason}" for kind in (ConnectError, AnsweredError, UsageRefused)}

    assert {"admission_token_bucket", "admission_reject_all"} <= policies & documented
    framing = set(refusals.FRAMING_CODES.values())
    all_codes = written | framing | admission | programs | policies | both_paths | failures - never_told
    assert documented | policies == all_codes  # what a policy refuses with may stand in its own documentation


def test_what_changes_in_service() -> None:
    live = next(line for line in section("Reload").splitlines() if line.startswith("| `auth`"))

    assert tuple(re.findall(r"`([a-z_]+)`", live)) == RELOADABLE_KEYS
