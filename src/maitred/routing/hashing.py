"""Routers that find the instance by a hash: `prefix-hash` and `consistent-hashing`.

Each instance has a number of places on a ring of hashes, and a key belongs to the instance at the next place. When an instance
comes or goes, only the keys of its places move. Nothing is remembered of requests, so several gateways before the same
instances agree, and one that starts anew finds what the last one has placed. The instances are told apart by their index, the
order in which they are configured.

    prefix-hash          the key is the beginning of the prompt (SMG's `prefix_hash`)
    consistent-hashing   the key is the session: program, routing key or tenant (SMG's `consistent_hashing`)

If the instance is overloaded compared with the mean (`load_bound`), the request goes to the instance with the fewest requests
in flight. A request without a key goes there, too.

Example: two instances with 10 and 2 in flight. With the request that comes the mean is 6.5, so with a load factor of 1.25 and
no absolute threshold the first one is overloaded above 8.1, and its keys go to the second one.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect, insort
from collections.abc import Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from maitred.core.contracts import Choice, FleetView, InstanceView
from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.kv.block_hashes import request_block_hashes
from maitred.routing.affinity import session_of
from maitred.routing.base import MAX_CHECKED, ROUTERS, BaseRouter, RouterInfo, Signals
from maitred.routing.load_bound import LOAD_FACTOR, MEAN_ABS_THRESHOLD, LoadBound
from maitred.routing.per_fleet import InFlightRouter, PerFleetCache, check_views, views_by_index
from maitred.routing.sent_prefixes import DEFAULT_BLOCK_TOKENS

_PLACES: Final = 64
"""Places of an instance on the ring: enough that shares of keys differ by about an eighth (1 / sqrt(64))."""


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


class HashRing:
    """The places of all instances that were ever shown. One that may not be chosen now is passed over."""

    def __init__(self) -> None:
        self._places: list[tuple[int, int]] = []
        """Hash and index of the instance, in order."""
        self._known: set[int] = set()
        self._next_check = 0
        """The position of the place that the next `check` begins with."""

    def add(self, index: int) -> None:
        """Put an instance on the ring, if it is not there."""
        if index not in self._known:
            self._known.add(index)
            for place in range(_PLACES):
                insort(self._places, (_hash(f"{index}/{place}"), index))

    def find(self, key: str, views: Mapping[int, InstanceView]) -> InstanceView:
        """Return the instance of `views`, all of which are on the ring, to which the key belongs."""
        places = self._places
        start = bisect(places, (_hash(key), -1))
        for step in range(len(places)):
            index = places[(start + step) % len(places)][1]
            if index in views:
                return views[index]
        raise ValueError("no instance to choose from")

    def check(self) -> None:
        """Raise InvariantError if the places are out of order, or are not those of the known instances."""
        places, start = self._places, self._next_check
        if len(places) != _PLACES * len(self._known):
            raise InvariantError(f"the ring has {len(places)} places for {len(self._known)} instances of {_PLACES}")
        end = start + MAX_CHECKED
        self._next_check = end if end < len(places) else 0
        looked_at = places[start : end + 1]  # One more, because that the next part begins with the right place is checked here.
        if any(one >= other for one, other in pairwise(looked_at)):
            raise InvariantError("the places of the ring are out of order")
        for _, index in looked_at:
            if index not in self._known:
                raise InvariantError(f"the ring has a place of instance {index}, which was never shown")


class HashRouter(BaseRouter):
    """A router that finds the instance by the hash of a key."""

    def __init__(self, load_factor: float, balance_abs_threshold: float) -> None:
        """Raises ValueError for a threshold that is out of range."""
        self._bound = LoadBound(balance_abs_threshold, load_factor)
        self._limit_beside_idle = self._bound.limit(0)
        self._ring = HashRing()
        self._views = PerFleetCache(self._placed)
        self._least = InFlightRouter()

    @abstractmethod
    def key(self, request: Request) -> str:
        """Return the key by which the instance is found; empty if the request has none."""

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        views, key = self._views.get(fleet), self.key(request)
        if key:
            view = self._ring.find(key, views)
            if not self._is_overloaded(view, fleet):
                return Choice(view.index, "hashed")
        return self._least.choose(request, fleet, now)

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self._least.on_request_end(request, instance, now)

    def check(self) -> None:
        self._ring.check()
        self._views.check(check_views)
        self._least.check()

    def _is_overloaded(self, view: InstanceView, fleet: FleetView) -> bool:
        in_flight = view.in_flight
        if in_flight <= self._limit_beside_idle:
            return False
        mean = (sum(each.in_flight for each in fleet) + 1) / len(fleet)
        return in_flight > self._bound.limit(mean)

    def _placed(self, fleet: FleetView) -> Mapping[int, InstanceView]:
        for view in fleet:
            self._ring.add(view.index)
        return views_by_index(fleet)


@ROUTERS.register("prefix-hash")
class PrefixHash(HashRouter):
    """The instance that a hash of the beginning of the prompt belongs to, unless it is overloaded; else the one with the fewest
    requests in flight (SMG's `prefix_hash`).

    `prefix_token_count` is how much of the prompt counts, in tokens; of a shorter prompt, its full blocks of 16. `load_factor`
    and `balance_abs_threshold` are the thresholds of `load_bound`, compared with the mean.
    """

    about = RouterInfo(
        summary="by a hash of the beginning of the prompt, unless that is overloaded; else fewest requests in flight",
        complexity="O(log n); O(n) beyond balance_abs_threshold",
        reads="the prompt, in flight",
    )
    signals = Signals.PROMPT

    def __init__(
        self, prefix_token_count: int = 256, load_factor: float = LOAD_FACTOR, balance_abs_threshold: float = MEAN_ABS_THRESHOLD
    ) -> None:
        """Raises ValueError for a value that is out of range."""
        if prefix_token_count < 1:
            raise ValueError(f"prefix_token_count must be at least 1, not {prefix_token_count}")
        super().__init__(load_factor, balance_abs_threshold)
        self._tokens = prefix_token_count

    def key(self, request: Request) -> str:
        """Return the hash of the first tokens of the prompt; empty if nothing is known of its content."""
        first = request_block_hashes(request, self._tokens)[:1] or request_block_hashes(request, DEFAULT_BLOCK_TOKENS)[-1:]
        return str(first[0]) if first else ""


@ROUTERS.register("consistent-hashing")
class ConsistentHashing(HashRouter):
    """The instance that a hash of the session belongs to, unless it is overloaded; else the one with the fewest requests in
    flight. A session is a program, else a routing key, else a tenant.

    `load_factor` and `balance_abs_threshold` are the thresholds of `load_bound`, compared with the mean.
    """

    about = RouterInfo(
        summary="by a hash of the program, routing key or tenant, unless that is overloaded; else fewest requests in flight",
        complexity="O(log n); O(n) beyond balance_abs_threshold",
        reads="program, routing key, tenant; in flight",
    )
    signals = Signals.SESSION

    def __init__(self, load_factor: float = LOAD_FACTOR, balance_abs_threshold: float = MEAN_ABS_THRESHOLD) -> None:
        """Raises ValueError for a threshold that is out of range."""
        super().__init__(load_factor, balance_abs_threshold)

    def key(self, request: Request) -> str:
        """Return the session of the request; empty if it has none."""
        session = session_of(request)
        return "/".join(session) if session is not None else ""
