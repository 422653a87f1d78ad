"""The configuration of an Envoy that asks the endpoint picker: complete, for `envoy -c`.

    listener     HTTP/1.1 and HTTP/2, with TLS if there is a certificate; takes away what clients may not say (the endpoint)
    ext_proc     asks the picker; lets requests and responses pass where there is none (`failure_mode_allow`)
    route        a request for which an endpoint was picked goes to the backends; any other one gets a 503
    backends     the host that the picker has named (`override_host`)
    picker       the pickers, of which those get streams whose health says that they are ready

So a picker that dies breaks no response that has begun, and no request passes by it. Only the standard library is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from maitred.scheduler.addresses import LinkAddress
from maitred.wire.origin import Origin

_ENDPOINT: Final = "x-gateway-destination-endpoint"
_SERVED: Final = "x-gateway-destination-endpoint-served"
_TYPES: Final = "type.googleapis.com/envoy."
_CERTIFICATE: Final = "clients"
_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
_LONGEST_WAIT: Final = "3600s"
"""The longest time that Envoy lets the picker think."""
_HEALTH_PATHS: Final = ("/health", "/ready", "/liveness", "/readiness")
_PER_ROUTE: Final = "extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
_FAILURES: Final = ("UF", "UC", "UR", "UH", "UO", "UPE", "LR")
"""Envoy's flags of a backend that cannot be reached, breaks off, resets, is not there, or speaks no HTTP."""
_MANY: Final = 1_000_000
_MANY_ENDPOINTS: Final = 8
"""More than a pick names: behind its last one there is no host, and so no further retry."""
_UNPICKED: Final = (
    '{"error": {"message": "no scheduler can be asked at present", "type": "server_error", "param": null, '
    '"code": "no_scheduler"}}'
)


@dataclass(frozen=True, kw_only=True)
class EnvoyPlan:
    """What an Envoy is to do."""

    backends: Sequence[str]
    """URLs of the backends."""
    pickers: Sequence[LinkAddress]
    listen: LinkAddress
    admin: LinkAddress | None = None
    """Where Envoy's own pages are, or None for nowhere."""
    tls_cert: str | None = None
    """File with the certificate that clients see, in PEM, or None for plain HTTP."""
    tls_key: str | None = None
    certificate_file: str | None = None
    """File from which Envoy reads that certificate (`certificate_of`) whenever it is replaced, in place of both."""
    picker_tls: bool = False
    """Whether the pickers speak TLS; their certificates are not checked then."""
    body_mode: str = "BUFFERED"
    """How bodies of requests are sent to the picker: BUFFERED or FULL_DUPLEX_STREAMED."""
    max_body_bytes: int = 32 * 1024 * 1024
    backends_file: str | None = None
    """File from which Envoy reads its backends (`backends_of`) whenever it is replaced; None: the configuration has them."""
    pages: LinkAddress | None = None
    """Where the pages of health are, which clients get under the same paths, or None if they get none. They speak TLS as
    `listen` does."""


def bootstrap(plan: EnvoyPlan) -> dict[str, Any]:
    """Return the bootstrap configuration. Raises ConfigError for a backend that is no URL."""
    made: dict[str, Any] = {
        "static_resources": {
            "listeners": [_listener(plan)],
            "clusters": [*([_backends(plan)] if plan.backends_file is None else []), _pickers(plan), *_pages(plan)],
        }
    }
    if plan.backends_file is not None:
        watched = _watched(plan.backends_file)
        made |= {"node": {"id": "maitred", "cluster": "maitred"}, "dynamic_resources": {"cds_config": watched}}
    if plan.admin is not None:
        made["admin"] = {"address": _address(plan.admin.host, plan.admin.port)}
    return made


def backends_of(plan: EnvoyPlan) -> dict[str, Any]:
    """Return the content of `backends_file`. Raises ConfigError for a backend that is no URL."""
    return {"resources": [{"@type": _TYPES + "config.cluster.v3.Cluster", **_backends(plan)}]}


def certificate_of(chain: bytes, key: bytes) -> dict[str, Any]:
    """Return the content of `certificate_file`. The arguments are in PEM."""
    parts = {"certificate_chain": chain, "private_key": key}
    inline = {name: {"inline_string": part.decode("latin-1")} for name, part in parts.items()}
    secret = {"@type": _TYPES + "extensions.transport_sockets.tls.v3.Secret", "name": _CERTIFICATE, "tls_certificate": inline}
    return {"resources": [secret]}


def _watched(path: str) -> dict[str, Any]:
    return {"path_config_source": {"path": path}, "resource_api_version": "V3"}


def _listener(plan: EnvoyPlan) -> dict[str, Any]:
    chain: dict[str, Any] = {
        "filters": [
            _typed(
                "envoy.filters.network.http_connection_manager",
                "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                _connection_manager(plan),
            )
        ]
    }
    shown: dict[str, Any] = {}
    if plan.certificate_file is not None:
        config = {"name": _CERTIFICATE, "sds_config": _watched(plan.certificate_file)}
        shown = {"tls_certificate_sds_secret_configs": [config]}
    elif plan.tls_cert is not None:
        files = {"certificate_chain": plan.tls_cert, "private_key": plan.tls_key or plan.tls_cert}
        shown = {"tls_certificates": [{name: {"filename": path} for name, path in files.items()}]}
    if shown:
        chain["transport_socket"] = _typed(
            "envoy.transport_sockets.tls",
            "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            {"common_tls_context": {**shown, "alpn_protocols": ["h2", "http/1.1"]}},
        )
    return {
        "name": "clients",
        "address": _address(plan.listen.host, plan.listen.port),
        "per_connection_buffer_limit_bytes": plan.max_body_bytes,
        "filter_chains": [chain],
    }


def _connection_manager(plan: EnvoyPlan) -> dict[str, Any]:
    return {
        "stat_prefix": "clients",
        "codec_type": "AUTO",
        "use_remote_address": True,
        "always_set_request_id_in_response": True,
        "stream_idle_timeout": "0s",  # A request may wait for its slot, or for its first token, for minutes.
        "local_reply_config": {"mappers": [_broken_off()]},
        "early_header_mutation_extensions": [
            _typed(
                "envoy.http.early_header_mutation.header_mutation",
                "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                {"mutations": [{"remove": _ENDPOINT}]},
            )
        ],
        "http_filters": [
            _typed("envoy.filters.http.ext_proc", "extensions.filters.http.ext_proc.v3.ExternalProcessor", _ext_proc(plan)),
            _typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router", {"suppress_envoy_headers": False}),
        ],
        "route_config": {
            "name": "all",
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": _routes(plan)}],
            "validate_clusters": plan.backends_file is None,  # The cluster of a file comes later.
        },
    }


def _broken_off() -> dict[str, Any]:
    """Return Envoy's own reply for a backend that has failed: an error of OpenAI's API, as a gateway sends it."""
    error = {"message": "%LOCAL_REPLY_BODY%", "type": "server_error", "param": None, "code": "upstream_disconnected"}
    return {
        "filter": {"response_flag_filter": {"flags": list(_FAILURES)}},
        "body_format_override": {"json_format": {"error": error}, "content_type": "application/json"},
        "headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}],
    }


def _ext_proc(plan: EnvoyPlan) -> dict[str, Any]:
    return {
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "0s"},
        "failure_mode_allow": True,
        "allow_mode_override": True,  # The picker asks for bodies of responses where tokens are counted.
        "message_timeout": _LONGEST_WAIT,
        "max_message_timeout": _LONGEST_WAIT,
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": plan.body_mode,
            "request_trailer_mode": "SEND" if plan.body_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
            "response_header_mode": "SEND",
            "response_body_mode": "NONE",
            "response_trailer_mode": "SKIP",
        },
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }


def _pages(plan: EnvoyPlan) -> list[dict[str, Any]]:
    """Return the cluster of the pages, if there are any."""
    if plan.pages is None:
        return []
    page = {"endpoint": {"address": _address(plan.pages.host, plan.pages.port)}}
    assignment = {"cluster_name": "pages", "endpoints": [{"lb_endpoints": [page]}]}
    made = {"name": "pages", "type": "STRICT_DNS", "connect_timeout": "1s", "load_assignment": assignment}
    return [made if plan.certificate_file is None else {**made, "transport_socket": _tls_unchecked()}]


def _routes(plan: EnvoyPlan) -> list[dict[str, Any]]:
    unasked = {"envoy.filters.http.ext_proc": {"@type": _TYPES + _PER_ROUTE, "disabled": True}}
    health = [
        {"match": {"path": path}, "route": {"cluster": "pages"}, "typed_per_filter_config": unasked}
        for path in (_HEALTH_PATHS if plan.pages is not None else ())
    ]
    picked = {"prefix": "/", "headers": [{"name": _ENDPOINT, "present_match": True}]}
    json = {"header": {"key": "content-type", "value": "application/json"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    # Nothing was sent where there was no connection, so any request may go on to the next endpoint of the pick.
    retries = {"retry_on": "connect-failure", "num_retries": _MANY_ENDPOINTS}
    to_backends = {"cluster": "backends", "timeout": "0s", "retry_policy": retries}
    return [
        *health,
        {"match": picked, "route": to_backends, "request_headers_to_remove": [_ENDPOINT]},
        {
            "match": {"prefix": "/"},
            "direct_response": {"status": 503, "body": {"inline_string": _UNPICKED}},
            "response_headers_to_add": [json, {"header": {"key": "retry-after", "value": "1"}}],
        },
    ]


def _backends(plan: EnvoyPlan) -> dict[str, Any]:
    origins = [Origin.parse(url, where="--backend") for url in plan.backends]
    # If no host is there that was picked, none is asked: a subset of nothing.
    none = {"fallback_policy": "NO_FALLBACK", "subset_lb_policy": _policy("round_robin", "round_robin.v3.RoundRobin", {})}
    # The header is taken away by the route, before a host is chosen.
    picked = {"metadata": {"key": "envoy.lb", "path": [{"key": _ENDPOINT}]}}
    override = {
        "override_host_sources": [picked],
        "fallback_policy": _policy("subset", "subset.v3.Subset", none),
        "selected_host_key": {"key": "envoy.lb", "path": [{"key": _SERVED}]},
    }
    made: dict[str, Any] = {
        "name": "backends",
        "type": "STRICT_DNS",
        "connect_timeout": "3s",
        "load_balancing_policy": _policy("override_host", "override_host.v3.OverrideHost", override),
        "load_assignment": {
            "cluster_name": "backends",
            "endpoints": [{"lb_endpoints": [_endpoint(origin) for origin in origins]}],
        },
        "circuit_breakers": _no_limits(),
    }
    if any(origin.tls for origin in origins):
        plain = _typed("envoy.transport_sockets.raw_buffer", "extensions.transport_sockets.raw_buffer.v3.RawBuffer", {})
        made["transport_socket_matches"] = [
            {"name": "tls", "match": {"tls": True}, "transport_socket": _tls_to_backends()},
            {"name": "plain", "match": {}, "transport_socket": plain},
        ]
    return made


def _endpoint(origin: Origin) -> dict[str, Any]:
    made: dict[str, Any] = {"endpoint": {"address": _address(origin.host, origin.port)}}
    if origin.tls:
        made["metadata"] = {"filter_metadata": {"envoy.transport_socket_match": {"tls": True}}}
        made["endpoint"]["hostname"] = origin.host
    return made


def _tls_to_backends() -> dict[str, Any]:
    trusted = {"trusted_ca": {"filename": "/etc/ssl/certs/ca-certificates.crt"}}
    return _typed(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        {"auto_host_sni": True, "auto_sni_san_validation": True, "common_tls_context": {"validation_context": trusted}},
    )


def _pickers(plan: EnvoyPlan) -> dict[str, Any]:
    hosts = [{"endpoint": {"address": _address(picker.host, picker.port)}} for picker in plan.pickers]
    http2 = {"explicit_http_config": {"http2_protocol_options": {"connection_keepalive": {"interval": "10s", "timeout": "5s"}}}}
    made: dict[str, Any] = {
        "name": "picker",
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _TYPES + "extensions.upstreams.http.v3.HttpProtocolOptions",
                **http2,
            }
        },
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "grpc_health_check": {"service_name": _SERVICE},
                "interval": "0.5s",
                "no_traffic_interval": "0.5s",
                "timeout": "2s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
            }
        ],
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": hosts}]},
        "circuit_breakers": _no_limits(),
    }
    if plan.picker_tls:
        made["transport_socket"] = _tls_unchecked("h2")
    return made


def _tls_unchecked(*protocols: str) -> dict[str, Any]:
    """Return TLS to a process of ours, whose certificate is not checked."""
    context = {"common_tls_context": {"alpn_protocols": protocols} if protocols else {}}
    return _typed("envoy.transport_sockets.tls", "extensions.transport_sockets.tls.v3.UpstreamTlsContext", context)


def _policy(name: str, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    typed = _typed(f"envoy.load_balancing_policies.{name}", f"extensions.load_balancing_policies.{kind}", config)
    return {"policies": [{"typed_extension_config": typed}]}


def _no_limits() -> dict[str, Any]:
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, _MANY)]}


def _address(host: str, port: int | None) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _typed(name: str, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": _TYPES + kind, **config}}
