"""The source `kubernetes`: the ready endpoints of a service, or the ready pods of an `InferencePool`.

    LIST     all objects, with the version of the list; a pool is read before, since its selector may have changed
    WATCH    what changes from that version on; bookmarks bring newer versions of it where nothing changes
    again    after `resync` seconds, since a watch may lose what nobody notices

    the watch ends, or breaks off     it goes on from the last version
    410 (that version is forgotten)   LIST again
    any other error                   a failure: the last list holds, and is read again after a while, up to `_LONGEST_WAIT`

The service account must be allowed to get, list and watch `endpointslices` (of `discovery.k8s.io`), or `pods` and
`inferencepools`, in the namespace; and `inferenceobjectives`, which are followed in the same way beside the pods of a pool
where classes go by them (`admission.objective_priorities`). If these cannot be read, backends are found all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from maitred.core.units import to_seconds
from maitred.scheduler.discovery.base import (
    SOURCES,
    BackendSource,
    SourceError,
    SourceInfo,
    SourceListener,
    check_scheme,
    check_secs,
)
from maitred.scheduler.discovery.kube_objects import (
    OBJECTIVES_PATH,
    POOL_PATHS,
    KubeList,
    KubeObject,
    Selection,
    WatchEvent,
    pool_selection,
    priorities_of,
    service_selection,
    urls_of,
)
from maitred.scheduler.kube_clients import ACCOUNT, GONE, KubeApi, KubeError, open_kube, require_lightkube
from maitred.wire.machine import Machine

_PAGE: Final = "500"
"""Objects in one part of a list."""
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0
_SHORTEST_WATCH: Final = 1.0
"""Seconds below which a watch that has ended is a failure."""
_Select: TypeAlias = Callable[[KubeApi], Awaitable[Selection]]
_Tell: TypeAlias = Callable[[Iterable[KubeObject], Selection], None]
_decode_list = msgspec.json.Decoder(KubeList).decode
_decode_event = msgspec.json.Decoder(WatchEvent).decode
_decode_object = msgspec.json.Decoder(KubeObject).decode


@SOURCES.register("kubernetes")
class KubernetesSource(BackendSource):
    """Lists the ready endpoints of a service, or the ready pods of an InferencePool."""

    about = SourceInfo(
        summary="the ready endpoints of a service, or the ready pods of an `InferencePool`",
        looks="watches, and reads all again every `resync` seconds",
    )

    def __init__(
        self,
        service: str = "",
        pool: str = "",
        namespace: str = "",
        port: str = "",
        scheme: str = "http",
        resync: float = 300.0,
        account: str = ACCOUNT,
    ) -> None:
        """Raises ValueError, and ConfigError where lightkube is not installed."""
        if bool(service) is bool(pool):
            raise ValueError("name a service or a pool, as in kubernetes(service=vllm)")
        if pool and port and not port.isdecimal():
            raise ValueError("port must be a number with a pool")
        check_scheme(scheme)
        check_secs("resync", resync)
        require_lightkube()
        self._service, self._pool, self._namespace = service, pool, namespace
        self._port, self._scheme, self._resync, self._account = port, scheme, resync, account

    async def run(self, told: SourceListener) -> None:
        following = self._run(self._selection, self._tell_backends(told), told.failed, told.machine)
        if not (self._pool and told.wants_objectives):
            await following
            return
        of_objectives = self._run(self._objectives, self._tell_objectives(told), told.objectives_failed, told.machine)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(following)
            tasks.create_task(of_objectives)

    def _tell_backends(self, told: SourceListener) -> _Tell:
        return lambda objects, of: told.listed([url for found in objects for url in urls_of(found, of)])

    def _tell_objectives(self, told: SourceListener) -> _Tell:
        return lambda objects, _: told.objectives(priorities_of(objects, self._pool))

    async def _run(self, select: _Select, tell: _Tell, failed: Callable[[str], object], machine: Machine) -> None:
        """Follow what `select` names, tell what there is, and why that cannot be said."""
        wait = _FIRST_WAIT
        while True:
            try:
                api = open_kube(self._account)
                try:
                    while True:
                        await self._follow(api, await select(api), tell, failed, machine)
                        wait = _FIRST_WAIT
                finally:
                    await api.close()
            except (KubeError, SourceError, msgspec.MsgspecError) as error:
                failed(" ".join(str(error).split()))
            await asyncio.sleep(wait * (1 + machine.random.random() / 4))
            wait = min(_LONGEST_WAIT, 2 * wait)

    async def _follow(
        self, api: KubeApi, selection: Selection, tell: _Tell, failed: Callable[[str], object], machine: Machine
    ) -> None:
        """List once, and watch for as long as the list is good. Raises KubeError and SourceError."""
        objects, version = await self._list(api, selection)
        listing = _Listing(selection, objects, version, tell)
        listing.tell()
        clock = machine.clock
        end, wait = clock.now() + round(self._resync * 1e6), _FIRST_WAIT
        while (left := to_seconds(end - clock.now())) > 0:
            began_at = clock.now()
            try:
                if not await listing.watch(api, left):
                    return
            except KubeError as error:
                if error.status == GONE:
                    return
                failed(str(error))
            else:
                if to_seconds(clock.now() - began_at) >= _SHORTEST_WATCH:
                    wait = _FIRST_WAIT
                    continue
            await asyncio.sleep(min(wait, max(0.0, to_seconds(end - clock.now()))))
            wait = min(_LONGEST_WAIT, 2 * wait)

    async def _selection(self, api: KubeApi) -> Selection:
        namespace = self._namespace or api.namespace
        if self._service:
            return service_selection(namespace, self._service, self._port, self._scheme)
        for path in POOL_PATHS:
            try:
                pool = await api.ask("GET", path.format(namespace, self._pool))
            except KubeError as error:
                if error.status != 404:
                    raise
                continue
            return pool_selection(pool, namespace, self._port, self._scheme)
        raise SourceError(f"there is no InferencePool {self._pool} in the namespace {namespace}")

    async def _objectives(self, api: KubeApi) -> Selection:
        return Selection(OBJECTIVES_PATH.format(self._namespace or api.namespace))

    async def _list(self, api: KubeApi, selection: Selection) -> tuple[dict[str, KubeObject], str]:
        objects = dict[str, KubeObject]()
        params = {**_labels(selection), "limit": _PAGE}
        while True:
            part = _decode_list(await api.ask("GET", selection.path, params))
            objects |= {found.metadata.name: found for found in part.items}
            if not part.metadata.continue_:
                return objects, part.metadata.resource_version
            params["continue"] = part.metadata.continue_


class _Listing:
    """A list, kept up to date by what a watch says."""

    def __init__(self, selection: Selection, objects: dict[str, KubeObject], version: str, tell: _Tell) -> None:
        self._selection, self._objects, self._version, self._tell = selection, objects, version, tell

    def tell(self) -> None:
        """Tell what is listed now. Raises SourceError."""
        self._tell(self._objects.values(), self._selection)

    async def watch(self, api: KubeApi, secs: float) -> bool:
        """Watch until the API ends that. Return whether the watch may go on from the last version. Raises KubeError."""
        params = {
            **_labels(self._selection),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(secs))),
        }
        is_first = True
        async for line in api.watch(self._selection.path, params, secs):
            event = _decode_event(line)
            if event.type == "ERROR":
                return self._on_error(bytes(event.object))
            self._take(event)
            if event.type != "BOOKMARK" or is_first:
                self.tell()
            is_first = False
        return True

    def _take(self, event: WatchEvent) -> None:
        found = _decode_object(event.object)
        if found.metadata.resource_version:
            self._version = found.metadata.resource_version
        if event.type == "DELETED":
            self._objects.pop(found.metadata.name, None)
        elif event.type != "BOOKMARK":
            self._objects[found.metadata.name] = found

    def _on_error(self, status: bytes) -> bool:
        said = msgspec.json.decode(status, type=_Problem)
        if said.code == GONE:
            return False
        raise KubeError(f"the watch has failed: {said.message or said.code}", said.code)


def _labels(selection: Selection) -> dict[str, str]:
    return {"labelSelector": selection.labels} if selection.labels else {}


class _Problem(msgspec.Struct):
    code: int = 0
    message: str = ""
