"""The format of the scenarios file. A key that stands here is understood; any other makes its scenario fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec


class CannotCheck(Exception):  # noqa: N818  (an outcome, not an error of the program)
    """A scenario says something that the runner does not understand."""


At: TypeAlias = float | str
"""Seconds from the start, or a condition in words: see `moments`."""


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mock engine behind the gateway."""

    max_running_requests: int | None = None
    """What it reports; null: nothing."""
    model: str = "mock"
    note: str = ""


class Send(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do", tag="send"):
    """A client sends a request; `engine...` is what the engine is to do with it."""

    at: At
    name: str
    priority: str | list[str] | None = msgspec.field(default=None, name="x-smg-priority")
    tenant: str | None = msgspec.field(default=None, name="x-smg-tenant-id")
    authorization: str | None = None
    headers: dict[str, str] = {}
    method: str = "POST"
    path: str = "/v1/chat/completions"
    model: str = "mock"
    body: str | dict[str, Any] | None = None
    """Instead of a chat; text is sent as it is."""
    stream: bool = False
    connection: Literal["keep-alive", "close"] = "keep-alive"
    engine: Literal["hold"] | None = None
    """`hold`: it answers only after the next release_held."""
    engine_delay_s: float = 0.0
    engine_head_delay_s: float | None = None
    """With `stream`: when the head goes out, if not with the first chunk."""
    engine_chunks: int = 1
    engine_gap_s: float = 0.0
    engine_status: int = 200
    client_leaves_after_s: float | None = None
    note: str = ""


class ReleaseHeld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do", tag="release_held"):
    at: At


class RemoveEngine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do", tag="remove_engine"):
    """Its socket listens no more; what it has in flight ends."""

    at: At
    index: int


class AddEngine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do", tag="add_engine"):
    """One that was unreachable so far comes up."""

    at: At
    max_running_requests: int | None = None
    model: str = "mock"


Step: TypeAlias = Send | ReleaseHeld | RemoveEngine | AddEngine


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway is configured, on top of the file's base."""

    classes: dict[str, dict[str, Any]] = {}
    tenant_policies: dict[str, str] = {}
    """Tenant -> max_class."""
    default_max_class: str | None = None
    tenant_api_keys: dict[str, str] = {}
    """Tenant id -> key."""
    api_key: str | None = None
    trust_tenant_header: bool = False
    tenant_header_name: str | None = None
    scheduler: bool = True
    """False: the legacy limiter."""
    max_concurrent_requests: int | None = None
    queue_size: int | None = None
    queue_timeout_secs: float | None = None
    rate_limit_per_s: float | None = None
    retries: bool = True
    no_yaml: bool = False
    """Built-in defaults."""
    sse_keepalive_secs: float | None = None
    note: str = ""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    kind: Literal["match", "defect"]
    title: str
    engines: list[EngineSpec]
    config: Config = Config()
    timeline: list[Step] | str
    expect: dict[str, Any]
    note: str = ""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """What every scenario of a file starts from."""

    classes: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict, name="base_classes")
    default_max_class: str = msgspec.field(default="default", name="base_default_max_class")


class File(Base, frozen=True, kw_only=True, forbid_unknown_fields=True):
    system: str = ""
    scenarios: list[msgspec.Raw]


class Unread(msgspec.Struct, frozen=True):
    """As much of a scenario as is needed to say that the rest of it was not understood."""

    id: str = "?"
    kind: str = "?"
    title: str = ""


def read_file(path: Path) -> File:
    """Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=File)


def read_scenario(raw: msgspec.Raw | bytes) -> Scenario:
    """Raises CannotCheck."""
    try:
        return msgspec.json.decode(raw, type=Scenario)
    except msgspec.ValidationError as error:
        raise CannotCheck(str(error)) from error
