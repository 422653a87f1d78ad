"""The inputs of a router as data: what it was asked, and what it read. See `core.decisions`.

What a router reads is known by its `Signals`, so a line has no more of an instance than these. Of a prompt it has the keys of
the blocks, for the sizes of blocks that the router has asked for; so with routers that go by prompts, lines are long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from maitred.core.contracts import InstanceView
from maitred.core.decisions import Input
from maitred.core.request import PrefixKeys, PriorityClass, Request, RequestId
from maitred.core.units import Micros
from maitred.routing.base import Signals
from maitred.routing.config import RoutingConfig

if TYPE_CHECKING:
    from maitred.routing.core import RecordedRouter

ROOM_NAME: Final = "routing"


class SeenInstance(msgspec.Struct, omit_defaults=True):
    """An instance as a router saw it: an `InstanceView`."""

    index: int
    in_flight: int = 0
    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
    num_cached_blocks: int = 0
    """Of the prompt of the request."""

    @classmethod
    def of(cls, view: InstanceView, request: Request, signals: Signals) -> SeenInstance:
        """Return `view` as a router sees it that reads `signals`."""
        seen = cls(view.index, view.in_flight)
        if Signals.LOAD in signals:
            seen.waiting, seen.running, seen.kv_usage = view.waiting, view.running, view.kv_usage
        if Signals.MEMORY in signals:
            seen.kv_tokens = view.kv_tokens
        if Signals.CACHES in signals:
            seen.num_cached_blocks = view.cached_blocks(request)
        return seen

    def cached_blocks(self, request: Request) -> int:
        return self.num_cached_blocks

    def become(self, other: SeenInstance) -> None:
        """Take over what another look saw."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))


class AskedKeys(dict[str, Sequence[int]]):
    """The block keys of a prompt by the size of the blocks, in digits; made when they are asked for."""

    def __init__(self, prefix: PrefixKeys) -> None:
        self._prefix = prefix

    def __missing__(self, block_size: str) -> Sequence[int]:
        keys = self[block_size] = list(self._prefix.block_keys(int(block_size)))
        return keys


class SeenPrefix(msgspec.Struct, frozen=True, gc=False):
    """The content of a prompt as a router asked for it: `PrefixKeys`."""

    keys: Mapping[str, Sequence[int]]

    def block_keys(self, block_size: int) -> Sequence[int]:
        return self.keys[str(block_size)]


class RoutingDecision(msgspec.Struct, frozen=True):
    """Which instance was chosen for a request."""

    at: Micros
    request: RequestId
    instance: int
    reason: str


class RouterInput(Input, frozen=True):
    """An input of a router, by its name where there are several."""

    router: str

    @property
    def core_key(self) -> str:
        return self.router


class Open(RouterInput, frozen=True):
    """A router is made."""

    config: RoutingConfig
    seed: int | str


class Choose(RouterInput, frozen=True):
    """An instance is to be chosen for a request."""

    request: dict[str, Any]
    """The fields of the request that are not their defaults, without the prompt."""
    fleet: int
    """Which fleet is shown: the same number means the same object. See `FleetView`."""
    instances: list[SeenInstance]
    prefix: dict[str, Sequence[int]] | None = None
    """The keys that the router asked for, by the size of the blocks; None if nothing is known of the prompt."""

    def apply_to(self, core: RecordedRouter) -> Sequence[RoutingDecision]:
        chosen = core.choose_seen(self)
        return [RoutingDecision(self.at, self.request["id"], chosen.instance, chosen.reason)]


class RequestEnd(RouterInput, frozen=True):
    """A request has ended at an instance."""

    request: dict[str, Any]
    instance: int

    def apply_to(self, core: RecordedRouter) -> Sequence[RoutingDecision]:
        core.end_seen(self)
        return ()


RoutingInput: TypeAlias = Open | Choose | RequestEnd
_PLAIN_FIELDS: Final = [field for field in msgspec.structs.fields(Request) if field.name != "prefix"]
_DEFAULTS: Final = [(field.name, field.default) for field in _PLAIN_FIELDS]
_read_plain: Final = attrgetter(*(field.name for field in _PLAIN_FIELDS))


def fields_of(request: Request) -> dict[str, Any]:
    """Return the fields of a request that are not their defaults, without the prompt."""
    # Twice for each request beside a log or a shadow: one read of all fields, and most are the default object itself.
    pairs = zip(_DEFAULTS, _read_plain(request), strict=True)
    return {name: value for (name, default), value in pairs if value is not default and value != default}


def request_of(fields: Mapping[str, Any], prefix: Mapping[str, Sequence[int]] | None = None) -> Request:
    """Return the request with these fields, and with the keys of its prompt."""
    seen = None if prefix is None else SeenPrefix(prefix)
    priority_class = PriorityClass(fields.get("priority_class", PriorityClass.DEFAULT))
    return Request(**{**fields, "priority_class": priority_class}, prefix=seen)
