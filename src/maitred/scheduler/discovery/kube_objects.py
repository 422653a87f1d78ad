"""What the API of Kubernetes says of backends: slices of endpoints, pods, and pools of the Gateway API Inference Extension.

EndpointSlice    an endpoint is a backend unless it is not ready or terminates; `port` by number or name, else the only one
Pod              one that is ready, runs and is not being deleted
InferencePool    selects pods, and says on which port they serve
InferenceObjective    has a priority, for the requests that name it, in one pool
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from maitred.scheduler.discovery.base import SourceError, url_of


class Meta(msgspec.Struct, rename="camel"):
    """What every object, and every list, has."""

    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    continue_: str = msgspec.field(default="", name="continue")


class Conditions(msgspec.Struct):
    """How an endpoint is; null is as if it were ready."""

    ready: bool | None = None
    terminating: bool | None = None


class PodEndpoint(msgspec.Struct):
    """One pod behind a service."""

    addresses: list[str] = []
    conditions: Conditions | None = None


class SlicePort(msgspec.Struct):
    """A port of a slice."""

    name: str | None = None
    port: int | None = None


class PodCondition(msgspec.Struct):
    """What is said of a pod."""

    type: str = ""
    status: str = ""


class PodStatus(msgspec.Struct):
    """How a pod is."""

    phase: str = ""
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: list[PodCondition] | None = None


class PoolReference(msgspec.Struct):
    """Names a pool."""

    name: str = ""


class Spec(msgspec.Struct, rename="camel"):
    """What an InferenceObjective says; pods have other things there."""

    priority: int | None = None
    pool_ref: PoolReference | None = None


class KubeObject(msgspec.Struct):
    """An EndpointSlice, a Pod or an InferenceObjective."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    endpoints: list[PodEndpoint] | None = None
    ports: list[SlicePort] | None = None
    status: PodStatus | None = None
    spec: Spec | None = None


class KubeList(msgspec.Struct):
    """The answer to LIST."""

    metadata: Meta
    items: list[KubeObject]


class WatchEvent(msgspec.Struct):
    """A line of the answer to WATCH."""

    type: str
    object: msgspec.Raw


class Selection(msgspec.Struct, frozen=True):
    """What is listed, and how a backend is read of it."""

    path: str
    labels: str = ""
    port: str = ""
    """The number or the name of the port; empty: the only one."""
    scheme: str = "http"


def service_selection(namespace: str, service: str, port: str, scheme: str) -> Selection:
    """Return the slices of a service."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    return Selection(path, f"kubernetes.io/service-name={service}", port, scheme)


POOL_PATHS: Final = (
    "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/{}",
    "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{}/inferencepools/{}",
)
"""Where pools are: since version 1 of the extension, and before."""


def pool_selection(pool: bytes, namespace: str, port: str, scheme: str) -> Selection:
    """Return the pods that a pool selects; its own port unless `port` says another. Raises SourceError for a pool that selects
    no pods, or names no port."""
    try:
        spec: Mapping[str, Any] = msgspec.json.decode(pool)["spec"]
        selector = spec["selector"]
        labels = selector.get("matchLabels", selector)
        ports = spec.get("targetPorts") or [{"number": spec.get("targetPortNumber")}]
        number = port or str(int(ports[0]["number"]))
        words = ",".join(f"{name}={value}" for name, value in sorted(labels.items()) if isinstance(value, str))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, msgspec.MsgspecError) as error:
        raise SourceError(f"the pool cannot be read: {type(error).__name__}: {error}") from error
    if not words:
        raise SourceError("the pool selects no pods: its selector has no labels")
    return Selection(f"/api/v1/namespaces/{namespace}/pods", words, number, scheme)


def urls_of(found: KubeObject, selection: Selection) -> Iterator[str]:
    """Yield the backends of an object. Raises SourceError for a slice whose port is not clear."""
    if found.endpoints is not None:
        ready = [endpoint for endpoint in found.endpoints if endpoint.addresses and _is_ready(endpoint.conditions)]
        if ready:
            port = _slice_port(found, selection.port)
            yield from (url_of(endpoint.addresses[0], port, selection.scheme) for endpoint in ready)
    elif found.status is not None and found.status.pod_ip and _runs(found):
        yield url_of(found.status.pod_ip, int(selection.port), selection.scheme)


OBJECTIVES_PATH: Final = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{}/inferenceobjectives"
MAX_OBJECTIVES: Final = 10_000
"""Objectives that are kept; the others are not known."""


def priorities_of(objects: Iterable[KubeObject], pool: str) -> dict[str, int]:
    """Return the priorities of the objectives of a pool, by name; 0 of one that names none."""
    specs = [(found.metadata.name, found.spec) for found in objects if found.spec is not None]
    named = [(name, spec.priority or 0) for name, spec in specs if spec.pool_ref is None or spec.pool_ref.name == pool]
    return dict(named[:MAX_OBJECTIVES])


def _is_ready(conditions: Conditions | None) -> bool:
    return conditions is None or (conditions.ready is not False and not conditions.terminating)


def _runs(pod: KubeObject) -> bool:
    status = pod.status
    if status is None or status.phase != "Running" or pod.metadata.deletion_timestamp is not None:
        return False
    return any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())


def _slice_port(found: KubeObject, wanted: str) -> int:
    ports = {port.port: port.name for port in found.ports or () if port.port is not None}
    if wanted.isdecimal():  # A number need not be in the slice: nothing says that a service names all ports of its pods.
        return int(wanted)
    for number, name in ports.items():
        if name == wanted or (not wanted and len(ports) == 1):
            return number
    listed = ", ".join(f"{number} ({name})" if name else str(number) for number, name in ports.items()) or "none"
    what = f"no port {wanted!r}" if wanted else "several ports or none"
    raise SourceError(f"{found.metadata.name} has {what}: name one of {listed} as port=")
