"""The flags of `maitred serve`, `maitred scheduler` and `maitred envoy-config` that stand for keys, as in `config_flags`."""

from __future__ import annotations

from typing import Final

from maitred.cli.config_flags import FLOW_CONTROL, PROGRAMS, SCORERS
from maitred.cli.flags import FlagGroup, KeyFlag

BACKENDS: Final = FlagGroup(
    "Backends",
    KeyFlag("gateway.backends", "URL", name="--backend"),
    KeyFlag("gateway.discover", "SOURCE"),
    KeyFlag("gateway.slots_per_backend", "N"),
    KeyFlag("gateway.slots", "SOURCE"),
    KeyFlag("routing.policy", "POLICY", name="--routing-policy"),
    KeyFlag("routing.scorers", SCORERS, name="--routing-scorers"),
    KeyFlag("gateway.max_attempts", "N"),
    KeyFlag("gateway.retry.backoff_multiplier", "FACTOR", name="--retry-backoff-multiplier"),
    KeyFlag("gateway.retry.backoff_jitter", "SHARE", name="--retry-jitter-factor"),
    KeyFlag("gateway.ejection.consecutive_failures", "N", name="--cb-failure-threshold"),
    KeyFlag("gateway.ejection.probe_successes", "N", name="--cb-success-threshold"),
    KeyFlag("gateway.ejection.base_ejection_secs", "SECS", name="--cb-timeout-duration-secs"),
    KeyFlag("gateway.ejection.window_secs", "SECS", name="--cb-window-duration-secs"),
    KeyFlag("gateway.health_path", "PATH", alias="--health-check-endpoint"),
)
LIVE_PROGRAMS: Final = FlagGroup(
    PROGRAMS.panel,
    KeyFlag("programs.backend_type", "TYPE"),
    KeyFlag("programs.metrics"),
    KeyFlag("programs.metrics_interval_secs", "SECS", name="--metrics-interval"),
    KeyFlag("programs.state", "FILE"),
)
"""Of `maitred serve` and `maitred scheduler`."""
SERVER: Final = FlagGroup(
    "Server",
    KeyFlag("gateway.host", "HOST"),
    KeyFlag("gateway.port", "PORT"),
    KeyFlag("gateway.workers", "N"),
    KeyFlag("gateway.data_plane", "NAME"),
    KeyFlag("gateway.sse_keepalive_secs", "SECS"),
)
"""Of `maitred serve` alone, as are these:"""
CLIENTS: Final = (
    FlagGroup(
        PROGRAMS.panel,
        KeyFlag("programs.wait_keepalive_secs", "SECS", name="--wait-keepalive"),
        KeyFlag("programs.profile"),
        KeyFlag("programs.profile_dir", "FOLDER"),
    ),
    FlagGroup("Clients and tenants", KeyFlag("gateway.cors_origins", "ORIGIN", name="--cors-origin")),
)
PROCESS: Final = FlagGroup(
    SERVER.panel,
    KeyFlag("scheduler.pages_host", "HOST"),
    KeyFlag("scheduler.pages_port", "PORT"),
    KeyFlag("gateway.tls_cert", "FILE"),
    KeyFlag("gateway.tls_key", "FILE"),
    KeyFlag("gateway.admin_port", "PORT"),
    KeyFlag("gateway.admin_host", "HOST"),
    KeyFlag("gateway.admin_auth", "none"),
    KeyFlag("gateway.admin_tls", "none"),
    KeyFlag("gateway.admin_tls_cert", "FILE"),
    KeyFlag("gateway.admin_tls_key", "FILE"),
    KeyFlag("gateway.max_body_bytes", "BYTES"),
    KeyFlag("gateway.drain_secs", "SECS", alias="--shutdown-grace-period-secs"),
    KeyFlag("gateway.settle_secs", "SECS", alias="--shutdown-delay-secs"),
    KeyFlag("gateway.keep_alive_secs", "SECS"),
    KeyFlag("gateway.record", "FILE"),
    KeyFlag("gateway.decision_log", "FILE"),
    KeyFlag("gateway.recent_requests", "N"),
    KeyFlag("gateway.shadow", "FILE"),
    KeyFlag("gateway.access_log"),
    KeyFlag("gateway.log_level", "LEVEL"),
    KeyFlag("gateway.log_format", "FORMAT"),
    KeyFlag("gateway.otel.endpoint", "URL", name="--otlp-traces-endpoint"),
    KeyFlag("gateway.otel.sample_ratio", "SHARE", name="--trace-sample-ratio"),
)
"""Of `maitred serve` and `maitred scheduler`: what every process that decides has."""
GATEWAY_ADMISSION: Final = FlagGroup(
    "Admission: which requests may be in flight",
    KeyFlag("admission.mode", "MODE", name="--admission"),
    KeyFlag("admission.flavour", "NAME"),
    KeyFlag("admission.default_max_class", "CLASS", alias="--priority-scheduler-default-max-class"),
    KeyFlag("admission.on_overcommit", "WHAT"),
    KeyFlag("admission.on_preempt", "WHAT"),
    KeyFlag("admission.reserve", "WHAT"),
    KeyFlag("gateway.queue_timeout_status", "STATUS"),
)
LEGACY_ADMISSION: Final = FlagGroup(
    "Admission without classes, and the gate before them",
    KeyFlag("admission.legacy.max_concurrent_requests", "N"),
    KeyFlag("admission.legacy.rate_limit_tokens_per_second", "RATE"),
    KeyFlag("admission.legacy.queue_size", "N"),
    KeyFlag("admission.legacy.queue_timeout_secs", "SECS"),  # the keys of classes have no flags
)
CALLERS: Final = FlagGroup(
    CLIENTS[1].panel,
    KeyFlag("gateway.api_key", "KEY"),
    KeyFlag("gateway.keys_file", "FILE"),
    KeyFlag("gateway.trust_tenant_header"),
    KeyFlag("gateway.tenant_header_name", "NAME"),
    KeyFlag("gateway.tenant_metric_top_n", "N", alias="--priority-scheduler-tenant-metric-top-n"),
)
_LINK: Final = (
    KeyFlag("scheduler.name", "NAME"),
    KeyFlag("scheduler.secret_file", "FILE", name="--link-secret-file"),
    KeyFlag("scheduler.tls_cert", "FILE", name="--link-tls-cert"),
    KeyFlag("scheduler.tls_key", "FILE", name="--link-tls-key"),
    KeyFlag("scheduler.tls_ca", "FILE", name="--link-tls-ca"),
    KeyFlag("scheduler.election_name", "NAME"),
)
LINKED: Final = FlagGroup(
    "A scheduler that several gateways share (docs/cluster.md)",
    *_LINK,
    KeyFlag("scheduler.degraded", "WHAT"),
    KeyFlag("scheduler.degraded_after_secs", "SECS"),
)
"""Of `maitred serve`, beside `--scheduler`."""
SCHEDULER: Final = FlagGroup(
    "Scheduler",
    KeyFlag("scheduler.listen", "ADDRESS"),
    KeyFlag("scheduler.advertise", "ADDRESS"),
    KeyFlag("scheduler.ext_proc", "ADDRESS"),
    KeyFlag("scheduler.ext_proc_tls_cert", "FILE"),
    KeyFlag("scheduler.ext_proc_tls_key", "FILE"),
    KeyFlag("scheduler.election", "URL"),
    KeyFlag("scheduler.lease_secs", "SECS"),
    *_LINK,
)
"""Of `maitred scheduler` alone."""
ENVOY: Final = FlagGroup(
    "Envoy",
    KeyFlag("gateway.backends", "URL", name="--backend"),
    KeyFlag("gateway.discover", "SOURCE"),
    KeyFlag("gateway.host", "HOST"),
    KeyFlag("gateway.port", "PORT"),
    KeyFlag("gateway.tls_cert", "FILE"),
    KeyFlag("gateway.tls_key", "FILE"),
    KeyFlag("gateway.max_body_bytes", "BYTES"),
)
"""Of `maitred envoy-config`."""
_DECIDING: Final = (GATEWAY_ADMISSION, LEGACY_ADMISSION, FLOW_CONTROL, CALLERS)
SERVE: Final = (BACKENDS, PROGRAMS, LIVE_PROGRAMS, SERVER, PROCESS, LINKED, *_DECIDING, *CLIENTS)
"""Of `maitred serve`. SMG's flags work under their names."""
SCHEDULE: Final = (SCHEDULER, BACKENDS, PROGRAMS, LIVE_PROGRAMS, PROCESS, *_DECIDING)
"""Of `maitred scheduler`: those of `maitred serve` but for what only a process has that clients connect to, and its own."""
