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
its own number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from maitred.admission.terms.lead import Lead, sum_leads
from maitred.core.request import RequestId
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.served_models import ANY_MODEL, ServedModels
from maitred.scheduler.config import DEFAULT_SLOTS_PER_BACKEND, FleetConfig

SlotSource: TypeAlias = Literal["configured", "reported", "learned", "default", "mixed", "none"]
"""Where a number of slots comes from; `none` if no backend is up, so that there are none."""
_MAX_ID_CHARS: Final = 1_024


class ModelSlots(msgspec.Struct, frozen=True):
    """A number of slots, and where it comes from."""

    slots: int
    source: SlotSource


class FleetListener:
    """What is told how the slots of a fleet change. This one takes note of nothing."""

    def on_slots_changed(self, pools: Iterable[str]) -> None:
        """Called with the pools that may have another number of slots, and when a first poll has ended."""

    def on_vanished(self, pool: str) -> bool:
        """Called with a pool of which no backend lists a model any more. Return whether no request was left in it, so that it
        is forgotten."""
        return True

    def on_stranded(self, request_id: RequestId, stranded: bool) -> None:
        """Called with a request, and with whether its slot goes when it leaves its backend."""


class SlotPools:
    """The pools of one fleet. Call `update` when its models have changed."""

    def __init__(self, config: FleetConfig, models: ServedModels, backends: Sequence[Backend]) -> None:
        self._config, self._models, self._all_backends = config, models, backends
        self._pool_of: dict[str, str] = {}
        self._serving: dict[str, tuple[Backend, ...]] = {}

    @property
    def names(self) -> Sequence[str]:
        """The pools of all models that are known."""
        return list(self._serving)

    def pool_of(self, model: str) -> str:
        """Return the pool of a model: that of its base, or one of its own."""
        return self._pool_of.get(model, model)

    def of_backend(self, backend: Backend) -> Sequence[str]:
        """Return the pools of the models that a backend lists."""
        return list(dict.fromkeys(map(self.pool_of, backend.models)))

    def only_pools(self) -> dict[int, str]:
        """Return the pool of each backend that has models of no other, by the backend's index."""
        pools = {backend.index: self.of_backend(backend) for backend in self._all_backends}
        return {index: names[0] for index, names in pools.items() if len(names) == 1}

    def backends(self, pool: str) -> tuple[Backend, ...]:
        """Return the backends that serve a model of `pool` and take requests."""
        return self._serving.get(pool, ()) if pool else self._models.backends_serving(ANY_MODEL)

    def is_shared(self, model: str) -> bool:
        """Return whether another model that is known has the pool of `model`."""
        pool = self.pool_of(model)
        return any(name != model and self.pool_of(name) == pool for name in self._models.names)

    def update(self) -> Sequence[str]:
        """Look at all models anew, and return all pools, which may have other slots now."""
        bases = [base_models(backend.models) for backend in self._all_backends]
        for name in self._models.names:
            if name not in self._pool_of:
                base = next((of_backend[name] for of_backend in bases if name in of_backend), name)
                self._pool_of[name] = self._pool_of.get(base, base)
        members: dict[str, set[Backend]] = {}
        for name in self._models.names:
            members.setdefault(self._pool_of[name], set()).update(self._models.backends_serving(name))
        self._serving = {pool: tuple(b for b in self._all_backends if b in serving) for pool, serving in members.items()}
        return self.names

    def forget(self, model: str) -> None:
        """Drop a model that is not known any more."""
        del self._pool_of[model]
        self.update()

    def total_slots(self, pool: str) -> int:
        """Return how many sequences for the models of `pool` may be in flight: at the backends that serve them, and those that
        are still at others."""
        serving = self.backends(pool)
        held_elsewhere = sum(self._held_slots(b, pool) for b in self._all_backends if b.requests and b not in serving)
        return self.offered_slots(pool).slots + held_elsewhere

    def _held_slots(self, backend: Backend, pool: str) -> int:
        """Return how many slots of `pool` the requests hold that `backend` has: at most its own for each of them."""
        most = self.backend_slots(backend).slots
        return sum(min(sent.request.sequences, most) for sent in backend.requests if self.pool_of(sent.model) == pool)

    def lead(self, pool: str) -> Lead:
        """Return how many of the slots of `pool` are beyond what its backends run at once."""
        return sum_leads(b.learned_slots.lead for b in self.backends(pool) if b.learned_slots is not None)

    def offered_slots(self, pool: str) -> ModelSlots:
        """Return the slots that the healthy backends of `pool` offer."""
        offers = [self.backend_slots(backend, pool) for backend in self.backends(pool)]
        sources = {offer.source for offer in offers}
        source = sources.pop() if len(sources) == 1 else "mixed" if sources else "none"
        return ModelSlots(sum(offer.slots for offer in offers), source)

    def num_slots(self, backend: Backend) -> int:
        """Return how many slots one backend offers all pools."""
        return self.backend_slots(backend).slots

    def backend_slots(self, backend: Backend, pool: str | None = None) -> ModelSlots:
        """Return the slots that one backend offers each pool; of learned slots, which pools share, those of `pool`, or all."""
        if self._config.slots_per_backend is not None:
            return ModelSlots(self._config.slots_per_backend, "configured")
        if backend.learned_slots is not None:
            slots = backend.learned_slots.slots
            return ModelSlots(slots if pool is None else backend.slot_shares.get(pool, slots), "learned")
        if backend.reported_slots is not None:
            return ModelSlots(backend.reported_slots, "reported")
        return ModelSlots(DEFAULT_SLOTS_PER_BACKEND, "default")


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
