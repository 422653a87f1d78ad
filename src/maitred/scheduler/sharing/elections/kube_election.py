"""An election by a Lease of Kubernetes (`coordination.k8s.io/v1`), as its own controllers elect.

    holderIdentity      the leader and its term; empty: nobody
    leaseTransitions    the epoch; that of a Lease that is made anew is the time of day, since one before may have been deleted
    renewTime           when the leader has renewed it last, by the leader's clock: for people
    annotations         the address of the leader, and which gateways may hold slots

Every write names the version that was read (`resourceVersion`), so of two that write at once one fails (409). Clocks of
machines differ, so `renewTime` decides nothing: the lease of another scheduler is over when its record has not changed for the
length of a lease by the clock of the one who looks, counted from when it saw the record first. That is later than the leader's
own count, which begins with the sending of the renewal.

The service account must be allowed to get, create and update `leases` in the namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

import msgspec

from maitred.core.units import SECOND, Micros, to_seconds
from maitred.scheduler.kube_clients import KubeApi, KubeError
from maitred.scheduler.link.gateway_books import UNKNOWN_GATEWAY, GatewayId
from maitred.scheduler.sharing.elections.election import Election, ElectionCandidate, ElectionError, Term
from maitred.wire.clock import Clock

_ADDRESS: Final = "maitred.dev/address"
_NAME: Final = "maitred.dev/name"
_GATEWAYS: Final = "maitred.dev/gateways"
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404


class _Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, rename="camel"):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class KubeElection(Election):
    """An election by the Lease of one name."""

    lease: Micros
    names_gateways = True

    def __init__(
        self,
        open_api: Callable[[], KubeApi],
        namespace: str,
        name: str,
        lease: Micros,
        draw_boot: Callable[[], str],
        clock: Clock,
    ) -> None:
        """`open_api` is called when the API is first asked, and may raise KubeError; `namespace` is empty for that of this pod.
        `draw_boot` returns some text that no other process draws."""
        self._open_api, self._namespace, self._name = open_api, namespace, name
        self.lease, self._draw_boot, self._clock = lease, draw_boot, clock
        self._api: KubeApi | None = None
        self._seen = ("", 0)
        """The version of the record of another leader, and when it was first seen, µs."""
        self._own: _Lease | None = None
        """The record of this scheduler's term, as it was written last."""

    async def campaign(self, candidate: ElectionCandidate, floor: int) -> Term | None:
        found = await self._read()
        if found is not None and not self._is_free(found):
            return None
        before = _Spec() if found is None else found.spec
        now = self._time()
        self._own = _Lease(
            _Meta(
                self._name,
                "" if found is None else found.metadata.resource_version,
                {**_kept(found), _NAME: candidate.name, _ADDRESS: candidate.address},
            ),
            _Spec(
                f"{candidate.name}_{self._draw_boot()}",
                max(1, ceil(to_seconds(self.lease))),
                now,
                now,
                max(before.lease_transitions or 0, floor, 0 if found else self._clock.wall() // SECOND) + 1,
            ),
        )
        if not await self._write(self._own, is_new=found is None):
            self._own = None
            return None
        return Term(self._own.spec.lease_transitions or 0, _named_in(found), found is None)

    async def renew(self, gateways: Collection[GatewayId]) -> bool:
        own = self._own
        if own is None:
            return False
        own.spec.renew_time = self._time()
        own.metadata.annotations[_GATEWAYS] = msgspec.json.encode(sorted(gateways)).decode()
        if await self._write(own):
            return True
        found = await self._read()  # Somebody else may have put a label on it.
        if found is None or found.spec.holder_identity != own.spec.holder_identity:
            self._own = None
            return False
        own.metadata.resource_version = found.metadata.resource_version
        return await self._write(own)

    async def resign(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.spec.holder_identity = ""
            await self._write(own)

    async def leader(self) -> ElectionCandidate | None:
        found = await self._read()
        if found is None or not found.spec.holder_identity:
            return None
        said = found.metadata.annotations
        if _ADDRESS not in said:
            raise ElectionError(f"the Lease {self._name} is held by {found.spec.holder_identity}, which is no scheduler")
        return ElectionCandidate(said.get(_NAME, found.spec.holder_identity), said[_ADDRESS])

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()

    def _is_free(self, found: _Lease) -> bool:
        """Return whether nobody leads by the record that was found."""
        if not found.spec.holder_identity:
            return True
        version, since = self._seen
        if version != found.metadata.resource_version:
            self._seen = (found.metadata.resource_version, self._clock.now())
            return False
        length = max(to_seconds(self.lease), float(found.spec.lease_duration_seconds or 0))
        return to_seconds(self._clock.now() - since) >= length

    async def _read(self) -> _Lease | None:
        try:
            return msgspec.json.decode(await self._ask("GET", self._name), type=_Lease)
        except KubeError as error:
            if error.status == _NOT_FOUND:
                return None
            raise ElectionError(str(error)) from error
        except msgspec.MsgspecError as error:
            raise ElectionError(f"the Lease {self._name} cannot be read: {error}") from error

    async def _write(self, lease: _Lease, *, is_new: bool = False) -> bool:
        """Write a record, and return whether it was that which had been read. Raises ElectionError."""
        try:
            written = await (self._ask("POST", "", lease) if is_new else self._ask("PUT", self._name, lease))
            lease.metadata.resource_version = msgspec.json.decode(written, type=_Lease).metadata.resource_version
        except KubeError as error:
            if error.status in (_CONFLICT, _NOT_FOUND):
                return False
            raise ElectionError(str(error)) from error
        except msgspec.MsgspecError as error:
            raise ElectionError(f"the Lease {self._name} cannot be read: {error}") from error
        return True

    async def _ask(self, method: str, name: str, body: Any = None) -> bytes:
        if self._api is None:
            self._api = self._open_api()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace or self._api.namespace}/leases"
        return await self._api.ask(method, f"{path}/{name}" if name else path, body=body)

    def _time(self) -> str:
        return datetime.fromtimestamp(to_seconds(self._clock.wall()), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _kept(found: _Lease | None) -> dict[str, str]:
    return {} if found is None else found.metadata.annotations


def _named_in(found: _Lease | None) -> list[GatewayId]:
    """Return the gateways that the last leader has named; where that cannot be read, one that nobody knows. Where there is no
    record yet, nobody has led, or it was lost."""
    if found is None:
        return [UNKNOWN_GATEWAY]
    try:
        return msgspec.json.decode(found.metadata.annotations.get(_GATEWAYS, ""), type=list[GatewayId])
    except msgspec.MsgspecError:
        return [UNKNOWN_GATEWAY]
