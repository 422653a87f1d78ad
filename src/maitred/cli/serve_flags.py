"""The flags of `maitred serve`, and the keys of the configuration that they stand for. SMG's flags work under their names.

A flag that is left out is None and overrides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maitred.cli.flags import NO_VALUE, flag
from maitred.core.errors import ConfigError

_SERVER = "Server"
_BACKENDS = "Backends"
_ADMISSION = "Admission: who may be in flight"
_LEGACY = "Admission without classes, and the gate before them"
_CALLERS = "Who may ask, and as whom"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the user said."""

    backend: Annotated[
        list[str] | None,
        flag(_BACKENDS, "--backend", "An OpenAI-compatible engine, as http://host:port. Once for each.", "URL"),
    ] = None
    slots_per_backend: Annotated[
        int | None,
        flag(_BACKENDS, "--slots-per-backend", "In flight per backend and model. Default: what it reports, else 64.", "N"),
    ] = None
    routing_policy: Annotated[
        str | None,
        flag(
            _BACKENDS,
            "--routing-policy",
            "Which backend: least-loaded (default) or another of maitred policies.",
            "POLICY",
            alias="--router",
        ),
    ] = None
    routing_scorers: Annotated[
        str | None,
        flag(_BACKENDS, "--routing-scorers", "What weighted adds up, as queue-depth:2,load-balance:1.", "NAME:WEIGHT,..."),
    ] = None
    max_attempts: Annotated[
        int | None, flag(_BACKENDS, "--max-attempts", "Backends that may lose one request before its answer. Default 2.", "N")
    ] = None

    config: Annotated[Path | None, flag(_SERVER, "--config", "A YAML file; flags win over it.", "FILE")] = None
    strict_config: Annotated[
        bool | None, flag(_SERVER, "--strict-config", "Refuse to start with a configuration that is wrong.", NO_VALUE)
    ] = None
    host: Annotated[str | None, flag(_SERVER, "--host", "Address to listen on. Default 127.0.0.1.", "HOST")] = None
    port: Annotated[int | None, flag(_SERVER, "--port", "Default 8080; 0 takes any free one.", "PORT")] = None
    max_body_bytes: Annotated[
        int | None, flag(_SERVER, "--max-body-bytes", "Largest request body. Default 32 MiB.", "BYTES")
    ] = None
    sse_keepalive_secs: Annotated[
        float | None, flag(_SERVER, "--sse-keepalive-secs", "A comment on streams silent for so long. Default 0: none.", "SECS")
    ] = None
    drain_secs: Annotated[
        float | None, flag(_SERVER, "--drain-secs", "For requests in flight at the end. Default 30.", "SECS")
    ] = None
    decision_log: Annotated[
        Path | None, flag(_SERVER, "--decision-log", "Append all decisions to it, as JSON lines.", "FILE")
    ] = None
    record: Annotated[
        Path | None, flag(_SERVER, "--record", "Append all requests to it, as a trace for maitred simulate.", "FILE")
    ] = None

    admission: Annotated[str | None, flag(_ADMISSION, "--admission", "off, legacy (default) or priority.", "MODE")] = None
    priority_scheduler_enabled: Annotated[
        bool | None, flag(_ADMISSION, "--priority-scheduler-enabled", "The same as --admission priority.", NO_VALUE)
    ] = None
    admission_config: Annotated[
        Path | None,
        flag(
            _ADMISSION,
            "--admission-config",
            "The section admission as a YAML file: SMG's is one.",
            "FILE",
            alias="--priority-scheduler-config",
        ),
    ] = None
    flavour: Annotated[
        str | None, flag(_ADMISSION, "--flavour", "maitred (default), or smg: its numbers, its rules.", "NAME")
    ] = None
    default_max_class: Annotated[
        str | None,
        flag(
            _ADMISSION,
            "--default-max-class",
            "The highest class of tenants that no policy names. Default: default.",
            "CLASS",
            alias="--priority-scheduler-default-max-class",
        ),
    ] = None
    on_overcommit: Annotated[
        str | None, flag(_ADMISSION, "--on-overcommit", "Reservations beyond the capacity: legacy (default), clamp.", "WHAT")
    ] = None
    on_preempt: Annotated[
        str | None, flag(_ADMISSION, "--on-preempt", "What becomes of victims: reject (default), retry.", "WHAT")
    ] = None
    queue_timeout_status: Annotated[
        int | None, flag(_ADMISSION, "--queue-timeout-status", "For who waited too long: 408 (default) or 503.", "STATUS")
    ] = None

    max_concurrent_requests: Annotated[
        int | None, flag(_LEGACY, "--max-concurrent-requests", "In flight at once; also the burst. Default: no limit.", "N")
    ] = None
    rate_limit_tokens_per_second: Annotated[
        float | None, flag(_LEGACY, "--rate-limit-tokens-per-second", "Requests per second. Default: no limit.", "RATE")
    ] = None
    queue_size: Annotated[int | None, flag(_LEGACY, "--queue-size", "How many may wait. Default 100.", "N")] = None
    queue_timeout_secs: Annotated[
        float | None, flag(_LEGACY, "--queue-timeout-secs", "How long one may wait. Default 60.", "SECS")
    ] = None

    api_key: Annotated[
        str | None, flag(_CALLERS, "--api-key", "The key that all clients share, or sha256:HEX of it.", "KEY")
    ] = None
    tenant_api_key: Annotated[
        list[str] | None,
        flag(_CALLERS, "--tenant-api-key", "The key of one tenant, or sha256:HEX. Repeatable.", "ID:KEY"),
    ] = None
    trust_tenant_header: Annotated[
        bool | None, flag(_CALLERS, "--trust-tenant-header", "Believe the header that names the tenant.", NO_VALUE)
    ] = None
    tenant_header_name: Annotated[
        str | None, flag(_CALLERS, "--tenant-header-name", "That header. Default x-smg-tenant-id.", "NAME")
    ] = None
    tenant_metric_top_n: Annotated[
        int | None,
        flag(
            _CALLERS,
            "--tenant-metric-top-n",
            "Tenants with metrics of their own. Default 32.",
            "N",
            alias="--priority-scheduler-tenant-metric-top-n",
        ),
    ] = None


_KEYS: Final[Mapping[str, str]] = {
    "backend": "gateway.backends",
    "slots_per_backend": "gateway.slots_per_backend",
    "routing_policy": "routing.policy",
    "routing_scorers": "routing.scorers",
    "max_attempts": "gateway.max_attempts",
    "host": "gateway.host",
    "port": "gateway.port",
    "max_body_bytes": "gateway.max_body_bytes",
    "sse_keepalive_secs": "gateway.sse_keepalive_secs",
    "drain_secs": "gateway.drain_secs",
    "decision_log": "gateway.decision_log",
    "record": "gateway.record",
    "admission": "admission.mode",
    "flavour": "admission.flavour",
    "default_max_class": "admission.default_max_class",
    "on_overcommit": "admission.on_overcommit",
    "on_preempt": "admission.on_preempt",
    "queue_timeout_status": "gateway.queue_timeout_status",
    "max_concurrent_requests": "admission.legacy.max_concurrent_requests",
    "rate_limit_tokens_per_second": "admission.legacy.rate_limit_tokens_per_second",
    "queue_size": "admission.legacy.queue_size",
    "queue_timeout_secs": "admission.legacy.queue_timeout_secs",
    "api_key": "gateway.api_key",
    "tenant_api_key": "gateway.tenant_api_keys",
    "trust_tenant_header": "gateway.trust_tenant_header",
    "tenant_header_name": "gateway.tenant_header_name",
    "tenant_metric_top_n": "gateway.tenant_metric_top_n",
}
NAMES: Final[Mapping[str, str]] = {key: f"--{name.replace('_', '-')}" for name, key in _KEYS.items()}
"""What the flag for a key is called."""


def said(flags: Flags) -> dict[str, object]:
    """Values by key. Raises ConfigError for what contradicts itself or is no ID:KEY."""
    values: dict[str, object] = {key: getattr(flags, name) for name, key in _KEYS.items()}
    values["gateway.backends"] = flags.backend or None
    values["gateway.tenant_api_keys"] = _tenant_keys(flags.tenant_api_key or ()) or None
    if flags.default_max_class is not None:  # which SMG reads as it reads the header
        values["admission.default_max_class"] = flags.default_max_class.strip().lower()
    if flags.priority_scheduler_enabled:
        if flags.admission not in (None, "priority"):
            raise ConfigError(
                f"contradicts --admission {flags.admission}", where="--priority-scheduler-enabled", hint="give one"
            )
        values["admission.mode"] = "priority"
    return values


def _tenant_keys(given: Sequence[str]) -> dict[str, str]:
    """By tenant. The keys are repeated to nobody, whatever is wrong with them."""
    keys: dict[str, str] = {}
    for pair in given:
        tenant, colon, key = pair.partition(":")
        if not (tenant and colon and key):
            raise ConfigError("this is no ID:KEY", where="--tenant-api-key", hint="as in --tenant-api-key acme:KEY")
        if tenant in keys:
            raise ConfigError(f"two keys for {tenant!r}", where="--tenant-api-key", hint="give each tenant one")
        keys[tenant] = key
    return keys
