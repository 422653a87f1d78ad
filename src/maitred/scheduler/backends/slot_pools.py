"""SlotPools: which models share the slots of their engines, and how many slots that makes.

An engine runs one batch for a model and its LoRA adapters, and for all names of one model. Admission has one pool for them,
named after the base model: so an urgent request for one adapter goes before bulk for another, and what is in flight is what the
engine runs. A request still goes only to backends that list the model that it names.

Which models these are follows from the cards in `/v1/models`:

    parent    the base model of an adapter, by its id (vLLM, SGLang)
    root      the id of another model that is listed (NIM), or the same as that of another one: two names of one model

A model that says nothing has a pool of its own, even if other models are behind the same address. A model keeps its pool for as
long as it is known, since requests wait there: what it says later of its base is not looked at.

*Example.* A backend of 4 slots lists `base`, `sql` and `law`, the latter two with `"parent": "base"`. All three have the pool
`base` of 4 slots, and not 4 each. A second backend lists `base` alone: the pool has 8 slots. Requests for `sql` all go to the
first, which then may have more of them than it runs at once: slots are those of a pool, and routing alone keeps a backend to
its own number.

**Counting.** What each backend offers a pool is kept beside the sum, so a backend that changes costs one addition for each of
its pools, however many others there are. `update` finds who serves a pool; `recount` is called when a backend offers another
number than before. `check` adds everything up anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.core.errors import InvariantError
from maitred.core.request import RequestId
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.served_models import ANY_MODEL, ServedChange, ServedModels
from maitred.scheduler.config import DEFAULT_SLOTS_PER_BACKEND, FleetConfig

SlotSource: TypeAlias = Literal["configured", "reported", "learned", "default", "mixed", "none", "scheduler"]
"""Where a number of slots comes from; `none` if no backend is up, so that there are none."""
_MAX_ID_CHARS: Final = 1_024


class SlotCount(msgspec.Struct, frozen=True):
    """A number of slots, and where it comes from."""

    slots: int
    source: SlotSource


class FleetListener:
    """What is told how the slots of a fleet change. This one takes note of nothing."""

    def on_slots_changed(self, pools: Iterable[str], backends: Iterable[Backend]) -> None:
        """Called with the pools that may have another number of slots, and with the backends of which that number may come from
        elsewhere than before; also when a first poll has ended."""

    def on_vanished(self, pool: str) -> bool:
        """Called with a pool of which no backend lists a model any more. Return whether no request was left in it, so that it
        is forgotten."""
        return True

    def on_stranded(self, request_id: RequestId, stranded: bool) -> None:
        """Called with a request, and with whether its slot goes when it leaves its backend."""


class _Offer(NamedTuple):
    """What a backend offers one pool."""

    slots: int
    source: SlotSource
    lead: Lead


class _Pool:
    """A pool, and what its backends offer it."""

    __slots__ = ("backends", "kept", "lent", "models", "offers", "slots", "sources")

    def __init__(self) -> None:
        self.models: dict[str, None] = {}
        self.backends: tuple[Backend, ...] = ()
        """Those that serve one of its models and take requests, in the order of their numbers."""
        self.offers: dict[Backend, _Offer] = {}
        """What each of them offers, as it is in the sums."""
        self.slots = self.kept = self.lent = 0
        self.sources = Counter[SlotSource]()

    def set_offer(self, backend: Backend, offer: _Offer | None) -> None:
        """Count what a backend offers now, or nothing any more."""
        before = self.offers.pop(backend, None)
        if before is not None:
            self._add(before, -1)
        if offer is not None:
            self.offers[backend] = offer
            self._add(offer, 1)

    def _add(self, offer: _Offer, sign: int) -> None:
        self.slots += sign * offer.slots
        self.kept += sign * offer.lead.kept
        self.lent += sign * offer.lead.lent
        self.sources[offer.source] += sign
        if not self.sources[offer.source]:
            del self.sources[offer.source]


class PoolChange(NamedTuple):
    """What an update has found."""

    pools: Sequence[str]
    """Pools that may have another number of slots."""
    moved: set[Backend]
    """Backends that serve a pool which they did not serve, or no longer serve one."""


class _Listed(NamedTuple):
    """What a backend lists."""

    models: Mapping[str, Any]
    only_pool: str | None
    """The pool of all of them, or None if they have several."""


class SlotPools:
    """The pools of one fleet. Call `update` when its models have changed."""

    def __init__(self, config: FleetConfig, models: ServedModels, backends: Sequence[Backend]) -> None:
        self._config, self._models, self._all_backends = config, models, backends
        self._pool_of: dict[str, str] = {}
        self._pools: dict[str, _Pool] = {}
        self._strayed: set[Backend] = set()
        """Backends that are in use and had requests for a pool when they stopped to serve it."""
        self._only_pools: dict[int, str] | None = None
        self._listed: dict[Backend, _Listed] = {}
        """By the backends for which that was asked last."""

    @property
    def names(self) -> Sequence[str]:
        """The pools of all models that are known."""
        return list(self._pools)

    def pool_of(self, model: str) -> str:
        """Return the pool of a model: that of its base, or one of its own."""
        return self._pool_of.get(model, model)

    def of_backend(self, backend: Backend) -> Sequence[str]:
        """Return the pools of the models that a backend lists."""
        return list(dict.fromkeys(map(self.pool_of, backend.models)))

    def only_pools(self) -> Mapping[int, str]:
        """Return the pool of each backend that has models of no other, by the backend's index: the same mapping until that
        changes."""
        if self._only_pools is None:
            listed = {backend: self._listed_by(backend) for backend in self._all_backends}
            self._listed = listed
            self._only_pools = {backend.index: each.only_pool for backend, each in listed.items() if each.only_pool is not None}
        return self._only_pools

    def _listed_by(self, backend: Backend) -> _Listed:
        # Most backends list what they did: to look at all models of all each time is O(backends * models) for each that comes.
        known = self._listed.get(backend)
        if known is not None and known.models.keys() == backend.models.keys():
            return known
        names = self.of_backend(backend)
        return _Listed(backend.models, names[0] if len(names) == 1 else None)

    def backends(self, pool: str) -> tuple[Backend, ...]:
        """Return the backends that serve a model of `pool` and take requests."""
        found = self._pools.get(pool)
        if found is not None:
            return found.backends
        return () if pool else self._models.backends_serving(ANY_MODEL)

    def serves(self, backend: Backend, pool: str) -> bool:
        """Return whether a backend serves a model of `pool` and takes requests."""
        found = self._pools.get(pool)
        return backend in self.backends(pool) if found is None else backend in found.offers

    def is_shared(self, model: str) -> bool:
        """Return whether another model that is known has the pool of `model`."""
        return len(self._pools[self.pool_of(model)].models) > 1

    def update(self, change: ServedChange, resized: Sequence[Backend] = ()) -> PoolChange:
        """Take over what has changed of the models and the numbers that backends report, and return which pools may have other
        slots now."""
        if change.backends:
            self._only_pools = None
        for name, base in self._bases_of_new(change).items():
            pool = self._pool_of[name] = self._pool_of.get(base, base)
            self._pools.setdefault(pool, _Pool()).models[name] = None
        pools = dict.fromkeys(map(self.pool_of, change.models))
        moved, differences = set[Backend](), _Differences()
        for pool in pools:
            came, went = self._set_backends(pool, differences)
            moved.update(came, went)
            self._strayed.update(backend for backend in went if backend.requests)
        self._strayed = {backend for backend in self._strayed if backend.requests}
        for backend in resized:
            self.recount(backend)
            pools.update(dict.fromkeys(self.of_backend(backend)))
        return PoolChange(list(pools), moved)

    def _bases_of_new(self, change: ServedChange) -> dict[str, str]:
        """Return the base of each model that has no pool yet, as the first backend says that lists it."""
        found = dict.fromkeys([name for name in change.models if name not in self._pool_of], "")
        for backend in sorted(change.backends, key=_index_of) if found else ():
            missing = [name for name in backend.models if found.get(name) == ""]
            bases = base_models(backend.models) if missing else {}
            found.update((name, bases[name]) for name in missing)
        return {name: base or name for name, base in found.items()}

    def _set_backends(self, name: str, differences: _Differences) -> tuple[Sequence[Backend], Sequence[Backend]]:
        """Find the backends of a pool, and return those that have come and gone."""
        pool = self._pools[name]
        of_models = {id(serving): serving for serving in map(self._models.backends_serving, pool.models)}
        serving = next(iter(of_models.values()))
        if len(of_models) > 1:
            united = {backend for each in of_models.values() for backend in each}
            serving = tuple(sorted(united, key=_index_of))
        came, went = differences.find(pool.backends, serving)
        pool.backends = serving
        for backend in went:
            pool.set_offer(backend, None)
        for backend in came:
            pool.set_offer(backend, self._offer(backend, name))
        return came, went

    def recount(self, backend: Backend) -> None:
        """Count what a backend offers its pools, which may be another number than before. O(models there)."""
        for name in self.of_backend(backend):
            pool = self._pools.get(name)
            if pool is not None and backend in pool.offers:
                pool.set_offer(backend, self._offer(backend, name))

    def forget(self, model: str) -> None:
        """Drop a model that is not known any more."""
        pool = self._pool_of.pop(model)
        del self._pools[pool].models[model]
        if not self._pools[pool].models:
            del self._pools[pool]

    def total_slots(self, pool: str) -> int:
        """Return how many sequences for the models of `pool` may be in flight: at the backends that serve them, and those that
        are still at others."""
        return next(total for _, total, _ in self.sizes((pool,)))

    def sizes(self, pools: Iterable[str]) -> Iterator[tuple[str, int, Lead]]:
        """Yield each of `pools` with its total slots, and how many of these are beyond what its backends run at once."""
        held = self._held_elsewhere()
        for name in pools:
            pool = self._pools.get(name)
            slots, lead = (0, NO_LEAD) if pool is None else (pool.slots, Lead(pool.kept, pool.lent))
            yield name, slots + held[name], lead

    def _held_elsewhere(self) -> Counter[str]:
        """Return, by pool, how many slots the requests hold that are at backends which do not serve it: at most the backend's
        own for each of them."""
        held = Counter[str]()
        for backend in self._all_backends:
            if backend.requests and (not backend.is_in_use or backend in self._strayed):
                most = self.backend_slots(backend).slots
                for sent in backend.requests:
                    pool = self.pool_of(sent.model)
                    if not self.serves(backend, pool):
                        held[pool] += min(sent.request.sequences, most)
        return held

    def offered_slots(self, pool: str) -> SlotCount:
        """Return the slots that the healthy backends of `pool` offer."""
        found = self._pools.get(pool)
        if found is None or not found.sources:
            return SlotCount(0, "none")
        return SlotCount(found.slots, next(iter(found.sources)) if len(found.sources) == 1 else "mixed")

    def _offer(self, backend: Backend, pool: str) -> _Offer:
        offered = self.backend_slots(backend, pool)
        learned = backend.learned_slots
        return _Offer(offered.slots, offered.source, NO_LEAD if learned is None else learned.lead)

    def check(self) -> None:
        """Raise InvariantError if the sums are not what the backends offer."""
        for name, pool in self._pools.items():
            serving = {backend for model in pool.models for backend in self._models.backends_serving(model)}
            offers = {backend: self._offer(backend, name) for backend in serving}
            if pool.offers != offers or {*pool.backends} != serving or pool.slots != sum(o.slots for o in offers.values()):
                raise InvariantError(
                    f"pool `{name}` counts {pool.slots} slots of {pool.offers}, and its backends offer {offers}"
                )

    def num_slots(self, backend: Backend) -> int:
        """Return how many slots one backend offers all pools."""
        return self.backend_slots(backend).slots

    def backend_slots(self, backend: Backend, pool: str | None = None) -> SlotCount:
        """Return the slots that one backend offers each pool; of learned slots, which pools share, those of `pool`, or all."""
        if self._config.slots_per_backend is not None:
            return SlotCount(self._config.slots_per_backend, "configured")
        if backend.learned_slots is not None:
            slots = backend.learned_slots.slots
            return SlotCount(slots if pool is None else backend.slot_shares.get(pool, slots), "learned")
        if backend.reported_slots is not None:
            return SlotCount(backend.reported_slots, "reported")
        return SlotCount(DEFAULT_SLOTS_PER_BACKEND, "default")


class _Differences:
    """How tuples of backends differ, each pair found once: pools that the same backends serve share theirs."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[list[Backend], list[Backend]]] = {}
        self._kept = list[tuple[Backend, ...]]()  # so that no other tuple gets their identity meanwhile

    def find(self, before: tuple[Backend, ...], now: tuple[Backend, ...]) -> tuple[Sequence[Backend], Sequence[Backend]]:
        """Return those that are in `now` alone, and in `before` alone."""
        if before is now:
            return (), ()
        found = self._found.get((id(before), id(now)))
        if found is None:
            were, are = {*before}, {*now}
            found = [b for b in now if b not in were], [b for b in before if b not in are]
            self._found[id(before), id(now)] = found
            self._kept += before, now
        return found


def _index_of(backend: Backend) -> int:
    return backend.index


def base_models(cards: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return, for each model of one backend, the one whose batch it runs in: its base model, or itself. `cards` is what the
    backend lists, by id."""
    by_root: dict[str, str] = {}
    for name, card in cards.items():
        if (root := _id(card.get("root"))) and not _id(card.get("parent")):
            by_root.setdefault(root, root if root in cards else name)
    stated = {name: _stated_base(name, card, cards, by_root) for name, card in cards.items()}
    return {name: _end_of_chain(name, stated) for name in cards}


def _stated_base(name: str, card: Mapping[str, Any], cards: Iterable[str], by_root: Mapping[str, str]) -> str:
    parent = _id(card.get("parent"))
    if parent:
        return parent if parent in cards else by_root.get(parent, parent)
    return by_root.get(_id(card.get("root")), name)


def _end_of_chain(name: str, stated: Mapping[str, str]) -> str:
    seen = [name]
    while (base := stated.get(seen[-1], seen[-1])) not in seen:
        seen.append(base)
    return seen[-1] if base == seen[-1] else min(seen[seen.index(base) :])


def _id(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _MAX_ID_CHARS else ""
