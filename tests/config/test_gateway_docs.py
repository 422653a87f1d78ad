"""docs/gateway.md names every flag of `maitred serve`, every route and every code that the gateway answers with."""

from __future__ import annotations

import re
from pathlib import Path

import maitred
from maitred.cli.app import command_named
from maitred.gateway import error_responses
from maitred.gateway.reload import RELOADABLE_KEYS
from maitred.gateway.retries import AnsweredError
from maitred.gateway.routes import ROUTES
from maitred.wire import refusals
from maitred.wire.errors import ConnectError, UpstreamError

DOC = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
SOURCE = Path(maitred.__file__).parent


def section(heading: str) -> str:
    return DOC.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


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
    files = [*SOURCE.glob("gateway/*.py"), SOURCE / "wire" / "exchange.py", SOURCE / "wire" / "refusals.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    written = set(re.findall(r'code="([a-z_]+)"', text))
    admission = set(re.findall(r'"((?:scheduler|admission)_[a-z_]+)"', (SOURCE / "gateway" / "error_responses.py").read_text()))
    programs = {code for _, code, _ in error_responses.PROGRAM_REJECTIONS.values()}
    rooms = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.glob("admission/**/*.py"))
    policies = {f"admission_{reason}" for reason in ("policy", *re.findall(r'Refusal\(\s*"([a-z_]+)"', rooms))}
    both_paths = {
        f"{path}_{name}" for path in ("scheduler", "admission") for name in ("queue_full", "queue_timeout", "tenant_queue_full")
    }
    failures = {f"upstream_{kind.reason}" for kind in (*UpstreamError.__subclasses__(), error_responses.BackendAbandoned)}
    # Of these the client gets the engine's own answer, the answer of another attempt, or another code.
    never_told = {f"upstream_{kind.reason}" for kind in (ConnectError, AnsweredError, error_responses.UsageRefused)}

    assert {"admission_token_bucket", "admission_reject_all"} <= policies & documented
    framing = set(refusals.FRAMING_CODES.values())
    all_codes = written | framing | admission | programs | policies | both_paths | failures - never_told
    assert documented | policies == all_codes  # what a policy refuses with may stand in its own documentation


def test_what_changes_in_service() -> None:
    live = next(line for line in section("Reload").splitlines() if line.startswith("| `auth`"))

    assert tuple(re.findall(r"`([a-z_]+)`", live)) == RELOADABLE_KEYS
