"""The `gateway` section of the configuration, and API keys as it keeps them.

The config file may hold a key in clear or as `sha256:HEX`; memory holds only the hash.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from maitred.admission.terms.config import MAX_SECS
from maitred.core.errors import quote
from maitred.scheduler.config import FleetConfig, is_valid_api_key
from maitred.wire.errors import UpstreamLimits

HASH_PREFIX: Final = "sha256:"
"""Prefix of a hashed key; 64 hexadecimal digits follow."""
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_EMPTY_KEY_HASH: Final = HASH_PREFIX + hashlib.sha256(b"").hexdigest()


def hash_api_key(key: str) -> str:
    """Return `key` as sha256:HEX; it may be a hash already. Raises ValueError, without the key, for what cannot be a key."""
    if key.startswith(HASH_PREFIX):
        if not _DIGEST.fullmatch(key.removeprefix(HASH_PREFIX)):
            raise ValueError("must have 64 hexadecimal digits after sha256:")
        if key.lower() == _EMPTY_KEY_HASH:
            raise ValueError("is the hash of an empty text")  # A shell makes this of a variable that is not set.
        return key.lower()
    if not is_valid_api_key(key):
        raise ValueError("must be visible ASCII characters without spaces")
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


MAX_REFUSALS_PER_SEC: Final = 1_000_000
ForwardPriority: TypeAlias = Literal["off", "vllm", "sglang"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["text", "json"]
_FILE_MODES: Final = {"owner": 0o600, "group": 0o640, "all": 0o644}
_HOST_NAME: Final = re.compile(r"[0-9A-Za-z._-]+")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s,A-Z]+")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


MAX_WORKERS: Final = 256
"""Processes of one gateway, at most."""


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests that a backend has failed are sent again. Raises ValueError for invalid values."""

    budget_share: float = 0.2
    """Share of the requests that may be sent again, from 0 to 1."""
    budget_floor_per_sec: float = 10.0
    """Requests per second that may be sent again beside that share. Of both, what 10 seconds bring is kept."""
    initial_backoff_secs: float = 0.025
    """Seconds before the first retry of a request that a backend has had."""
    max_backoff_secs: float = 5.0
    """Most seconds before a retry."""
    backoff_multiplier: float = 1.5
    """Factor by which each further retry of a request waits longer, at least 1."""
    backoff_jitter: float = 0.2
    """Share by which that wait is longer or shorter at random, from 0 to 1."""
    max_retry_after_secs: float = 60.0
    """Longest `Retry-After` of an engine that is believed, in seconds; 0: none is."""

    def __post_init__(self) -> None:
        for name in ("budget_share", "backoff_jitter"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1")
        for name in ("budget_floor_per_sec", "initial_backoff_secs", "max_backoff_secs", "max_retry_after_secs"):
            if not 0 <= getattr(self, name) <= MAX_SECS:
                raise ValueError(f"{name} must be from 0 to {MAX_SECS:g}")
        if not 1 <= self.backoff_multiplier <= MAX_SECS:
            raise ValueError("backoff_multiplier must be at least 1")


class OtelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traces of requests for OpenTelemetry (extra `otel`). Raises ValueError for invalid values."""

    endpoint: str | None = None
    """URL of the collector for OTLP over HTTP, as `http://127.0.0.1:4318/v1/traces`. Null: there are no traces, and headers of
    traces pass as they came."""
    sample_ratio: float = 1.0
    """Share of the requests without a `traceparent` that are sampled, 0 to 1; the others are as its flag says."""
    service_name: str = "maitred"
    """The `service.name` of the spans."""
    max_queued_spans: int = 4096
    """Spans that may wait for the collector; further ones are dropped and counted."""

    def __post_init__(self) -> None:
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError("endpoint must be a URL, as http://127.0.0.1:4318/v1/traces")
        if not 0 <= self.sample_ratio <= 1:
            raise ValueError("sample_ratio must be from 0 to 1")
        if not 1 <= self.max_queued_spans <= 1_000_000:
            raise ValueError("max_queued_spans must be from 1 to 1000000")


Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class JwtConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JSON Web Tokens as keys (extra `jwt`). Raises ValueError for invalid values."""

    jwks: str
    """File or URL (http, https) of the public keys of the issuer, as a JWKS."""
    issuer: str | None = None
    """The `iss` that tokens must have. Null: any."""
    audience: str | None = None
    """The `aud` that tokens must have, or have among others. Null: any."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256")
    """Algorithms of signatures that count. Those of shared secrets, and `none`, never do."""
    tenant_claim: str = "sub"
    """The claim whose value names the tenant: a request with VALUE belongs to `auth:VALUE`."""
    class_claim: str | None = None
    """The claim that names the highest class of its requests, in place of that of the tenant, and the class of those that name
    none. Null, or a token without it: as for other keys."""
    refresh_secs: float = 300.0
    """Seconds between two reads of the keys. One that a token names and that is not there is asked for at once."""
    leeway_secs: float = 30.0
    """Seconds by which the clock of the issuer may differ."""

    def __post_init__(self) -> None:
        if not self.jwks or not self.algorithms or not self.tenant_claim:
            raise ValueError("jwks, algorithms and tenant_claim must not be empty")
        if not 1 <= self.refresh_secs <= MAX_SECS:
            raise ValueError(f"refresh_secs must be from 1 to {MAX_SECS:g}")
        if not 0 <= self.leeway_secs <= 600:
            raise ValueError("leeway_secs must be from 0 to 600")


class GatewayConfig(FleetConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of the live gateway. Raises ValueError for invalid values. Keeps only hashes of clients' keys."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8080
    """Port to listen on; 0 takes any free one."""
    workers: int | Literal["auto"] = 1
    """Processes that serve. More than one share the port, and one scheduler in the process that has started them, so that
    classes, limits and slots hold over all of them (docs/cluster.md). `auto`: as many as this process may use processors."""
    data_plane: Literal["maitred", "envoy"] = "maitred"
    """What forwards: `maitred`, or an `envoy` that is started as a child and asks this process, with HTTP/2 and a thread for
    each processor, or for each of `workers` (docs/envoy.md)."""
    tls_cert: str | None = None
    """File with the certificate and its chain, in PEM; a reload reads it again. Null: plain HTTP."""
    tls_key: str | None = None
    """File with the private key of `tls_cert`, in PEM and without a password. Null: `tls_cert` holds it as well."""
    admin_port: int | None = None
    """Port for the pages and routes of the operator; 0 takes any free one. On `port` they answer 404 then. Null: they are on
    `port`."""
    admin_host: str | None = None
    """Address to listen on with `admin_port`. Null: `host`."""
    admin_auth: Literal["none"] | None = None
    """`none`: whoever reaches `admin_port` is the operator, without a key. Null: keys count there as on `port`."""
    admin_tls: Literal["none"] | None = None
    """`none`: `admin_port` speaks plain HTTP, also if `port` speaks TLS. Null: TLS if there is a certificate for it."""
    admin_tls_cert: str | None = None
    """File with the certificate of `admin_port`, as `tls_cert`. Null: `tls_cert`, with `tls_key`."""
    admin_tls_key: str | None = None
    """File with the private key of `admin_tls_cert`. Null: `admin_tls_cert` holds it as well."""
    auth: Literal["none"] | None = None
    """`none`: every client may send requests, without a key. Only with this word may a reload open a gateway that had keys.
    Null: every request needs a key as soon as one is configured."""
    admin_hosts: tuple[str, ...] = ()
    """Names, without a port, under which `/admin/*` may be called without a key where none is needed (from this machine while
    there are no keys, or with `admin_auth: none`), beside addresses, `localhost`, `host` and `admin_host`."""
    api_key: str | None = None
    """The key that all clients share, as it is or as `sha256:HEX`. It is the only key that opens `/admin/*`."""
    tenant_api_keys: dict[str, str | tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Keys of single tenants by tenant id: `{acme: KEY}` or `{acme: sha256:HEX}`. A request with such a key belongs to the
    tenant `auth:acme`. `{acme: [KEY1, KEY2]}`: each of these is valid, so that clients can change from one to the other."""
    keys_file: str | None = None
    """YAML or JSON file with further keys of tenants, with a class and the date of their end if need be; read again within
    seconds when it changes, and by each reload (docs/access.md#keys-in-a-file-and-tokens)."""
    jwt: JwtConfig | None = None
    """Tokens of an issuer that are keys too. Null: there are none."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the gateway from a browser, as `https://app.example`, or `*` for all."""
    trust_tenant_header: bool = False
    """Whether a request without a key belongs to the tenant that a header names."""
    tenant_header_name: str = "x-smg-tenant-id"
    """Name of that header (`trust_tenant_header`)."""
    tenant_metric_top_n: int = 32
    """Tenants with metrics of their own; all others are summed up as `other`."""
    model_metric_top_n: int = 32
    """Models with metrics of their own for requests and tokens, the first that are asked for; all others are summed up as
    `other`. Each makes a page of metrics longer."""
    passed_paths: tuple[str, ...] = ()
    """Paths of the engines that every client may call, beside those that the gateway knows, such as `/v1/video`; a POST that
    names a model takes a slot there. All other paths are for the operator alone."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body, in bytes."""
    max_parked_body_bytes: int = 1024 * 1024 * 1024
    """Limit for all request bodies that are being read or kept, together, in bytes; at least `max_body_bytes`."""
    forward_priority: ForwardPriority = "off"
    """`vllm` or `sglang`: write the class into the body's `priority` in the polarity of that engine, in place of the client's
    own; `off`: pass it on."""
    max_attempts: int = 3
    """How often one request may be sent to backends that fail it before its response begins, or that answer 408, 429, 500, 502,
    503 or 504. What was not sent does not count: a connection that could not be made, or a kept one that turns out to be dead.
    See docs/backends.md#when-a-backend-fails."""
    queue_timeout_status: Literal[408, 503] = 408
    """Status of the response when a request has waited too long: 408, as SMG documents it, or 503. Some proxies repeat a 408 at
    once."""
    refusals_per_sec: int = 100
    """Answers of status 429 per second that a tenant gets at once. Further ones wait for their turn at this rate, a second at
    most, so that clients that retry at once take no time from other tenants; 0: no answer waits."""
    sse_keepalive_secs: float = 0.0
    """Seconds of silence after which a stream gets a comment (on /v1/messages a ping), even while it waits in the queue
    or for its backend; 0: never. With the first one goes the status 200. An error then comes as an event of the stream."""
    send_timeout_secs: float = 60.0
    """Seconds over which a client must take an answer that waits for it, at 240 bytes per second at least; one that takes less
    is disconnected."""
    keep_alive_secs: float = 75.0
    """Seconds for which a client's idle connection is kept; more than the idle timeout of the balancer in front, which then
    closes first and sends nothing into a connection that closes (AWS ALB and nginx: 60 s; Google Cloud: 600 s)."""
    drain_secs: float = 30.0
    """Seconds that requests in flight may go on once the port is closed, by SIGINT, or after `settle_secs` by SIGTERM."""
    settle_secs: float = 10.0
    """Seconds after SIGTERM or `/admin/drain` for which `/ready`, `/readiness` and `/health` say 503 and requests are served as
    before, so that balancers and Kubernetes send none any more when the port closes; SIGINT closes it at once. `drain_secs`
    begin then."""
    decision_log: str | None = None
    """File to which every input and decision of admission and programs is appended, as JSON lines. If a write fails
    or hangs, recording ends and serving goes on."""
    shadow: str | None = None
    """File with another configuration, by whose `admission`, `routing` and `programs` a shadow decides beside what is in
    force, and affects nothing. See docs/shadow.md. Null: there is none."""
    recent_requests: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None
    """Requests, the latest ones, of which `/admin/requests/ID` tells the story; 0: of none. It costs what a decision log
    costs. Null: 1000 with a decision log, and 0 without."""
    record: str | None = None
    """File to which every generating request is appended when it has ended, as a trace for `maitred simulate`. See
    docs/workloads.md#maitred-our-own. If a write fails, recording ends; if it hangs, rows are dropped; serving goes on."""
    files_readable_by: Literal["owner", "group", "all"] = "owner"
    """Who may read the files that the gateway makes (log, decision log, recording, state and profiles of programs), as far as
    umask allows it: 0600, 0640 or 0644. A file that is there keeps its permissions."""
    log_level: LogLevel = "info"
    """What the log says: `debug`, `info`, `warning` or `error`, and what is more urgent."""
    log_format: LogFormat = "text"
    """`text` or `json`: how a line of the log is written. See docs/operations.md#the-log."""
    access_log: bool = False
    """Whether each request has a line in the log when it has ended."""
    otel: OtelConfig = OtelConfig()
    upstream: UpstreamLimits = UpstreamLimits()
    retry: RetryConfig = RetryConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_ports()
        if self.workers != "auto" and not 1 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"workers must be from 1 to {MAX_WORKERS}, or auto")
        if self.max_parked_body_bytes < self.max_body_bytes:
            raise ValueError(f"max_parked_body_bytes must be at least max_body_bytes ({self.max_body_bytes})")
        if not _HEADER_NAME.fullmatch(self.tenant_header_name):
            raise ValueError("tenant_header_name must be the name of a header")
        if not 0 <= self.refusals_per_sec <= MAX_REFUSALS_PER_SEC:
            raise ValueError(f"refusals_per_sec must be from 0 to {MAX_REFUSALS_PER_SEC:,}")
        self._check_names()
        self._check_counts()
        self._check_times()
        self._hash_keys()

    def _check_ports(self) -> None:
        for name in ("port", "admin_port"):
            if not 0 <= (getattr(self, name) or 0) <= 65_535:
                raise ValueError(f"{name} must be from 0 to 65535")
        if self.admin_port and self.admin_port == self.port:
            raise ValueError("admin_port must differ from port")
        for name in ("admin_host", "admin_auth", "admin_tls", "admin_tls_cert", "admin_tls_key"):
            if self.admin_port is None and getattr(self, name) is not None:
                raise ValueError(f"{name} needs admin_port (give both, or neither)")
        for prefix in ("", "admin_"):
            if getattr(self, f"{prefix}tls_key") is not None and getattr(self, f"{prefix}tls_cert") is None:
                raise ValueError(f"{prefix}tls_key needs {prefix}tls_cert (give both, or neither)")
        if self.admin_tls == "none" and self.admin_tls_cert is not None:
            raise ValueError("admin_tls: none contradicts admin_tls_cert (leave one of them out)")

    def _check_names(self) -> None:
        for name in self.admin_hosts:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"admin_hosts: {quote(name)} is no host name: write it without scheme and port")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"cors_origins: {quote(origin)} is no origin: write it as https://app.example, without a path")
        for path in self.passed_paths:
            if not path.startswith("/") or "?" in path:
                raise ValueError(f"passed_paths: {quote(path)} is no path: write it as /v1/video, without a query")

    def _check_counts(self) -> None:
        counts = {"max_body_bytes": 1, "max_attempts": 1}
        for name, least in (counts | {"tenant_metric_top_n": 0, "model_metric_top_n": 0}).items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}")

    def _check_times(self) -> None:
        for name in ("send_timeout_secs", "keep_alive_secs"):
            if not 0 < getattr(self, name) <= MAX_SECS:
                raise ValueError(f"{name} must be more than 0, and at most {MAX_SECS:g} seconds")
        for name in ("drain_secs", "settle_secs"):
            if not 0 <= getattr(self, name) <= MAX_SECS:
                raise ValueError(f"{name} must be from 0 to {MAX_SECS:g} seconds")
        if not 0 <= self.sse_keepalive_secs <= MAX_SECS:
            raise ValueError("sse_keepalive_secs must be at least 0 seconds")

    def _hash_keys(self) -> None:
        for tenant in self.tenant_api_keys:
            if not tenant or tenant != tenant.strip():
                raise ValueError(f"tenant_api_keys: {tenant!r} is no id of a tenant: write it without spaces around it")
        shared = None if self.api_key is None else _hash_named_key("api_key", self.api_key)
        keys = {tenant: _hash_tenant_keys(f"tenant_api_keys.{tenant}", given) for tenant, given in self.tenant_api_keys.items()}
        owners = {} if shared is None else {shared: "api_key"}
        for tenant, hashes in keys.items():
            for key in keys_of_tenant(hashes):
                if key in owners:
                    raise ValueError(f"tenant_api_keys.{tenant} is the same key as {owners[key]}")
                owners[key] = f"tenant_api_keys.{tenant}"
        msgspec.structs.force_setattr(self, "api_key", shared)
        msgspec.structs.force_setattr(self, "tenant_api_keys", keys)
        if self.auth == "none" and self.has_further_keys:
            raise ValueError("auth: none contradicts keys_file and jwt (leave it out, or them)")
        if self.auth == "none" and owners:
            raise ValueError(f"auth: none contradicts {next(iter(owners.values()))} (leave one of them out)")

    @property
    def tls_files(self) -> tuple[str, str] | None:
        """The files of the certificate and of the key of `port`, or None if it speaks plain HTTP."""
        return None if self.tls_cert is None else (self.tls_cert, self.tls_key or self.tls_cert)

    @property
    def admin_tls_files(self) -> tuple[str, str] | None:
        """Those of `admin_port`, or None if it speaks plain HTTP, or there is none."""
        if self.admin_port is None or self.admin_tls == "none":
            return None
        own = self.admin_tls_cert
        return self.tls_files if own is None else (own, self.admin_tls_key or own)

    @property
    def file_mode(self) -> int:
        """The permissions of files that are made."""
        return _FILE_MODES[self.files_readable_by]

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key."""
        return self.api_key is not None or bool(self.tenant_api_keys) or self.has_further_keys

    @property
    def has_further_keys(self) -> bool:
        """Whether there are keys outside of the configuration."""
        return self.keys_file is not None or self.jwt is not None


def keys_of_tenant(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of a tenant that has one, or several."""
    return (given,) if isinstance(given, str) else given


def _hash_tenant_keys(name: str, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(given, str):
        return _hash_named_key(name, given)
    if not given:
        raise ValueError(f"{name} is an empty list (give a key, or leave the tenant out)")
    return tuple(_hash_named_key(f"{name}[{i}]", key) for i, key in enumerate(given))


def _hash_named_key(name: str, key: str) -> str:
    try:
        return hash_api_key(key)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
